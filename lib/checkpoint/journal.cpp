#include "checkpoint/journal.hpp"

#include <cerrno>
#include <cstring>
#include <set>
#include <string>
#include <string_view>

#include <sys/stat.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/model_format.hpp"
#include "files/checksum.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

constexpr const char* journal_kind = "fsdp consolidation";
constexpr std::size_t longest_journal = std::size_t{256} << 20;  // 240 TB of model
constexpr std::size_t line_bytes = 17;

std::string line_of(std::span<const std::byte> bytes) { return checksum_text(checksum(bytes.data(), bytes.size())) + "\n"; }

std::string head_of(const nlohmann::ordered_json& identity) {
  nlohmann::ordered_json head;
  head["format"] = journal_kind;
  head["of"] = identity;
  return seal_json(head);
}

void unlink_if_there(const fs::path& path) {
  check_errno(::unlink(path.c_str()) == 0 || errno == ENOENT, "remove " + path.string());
}

}  // namespace

// --- the folder ---

WorkFolder::WorkFolder(const fs::path& folder) : folder_(folder) {
  if (::mkdir(folder.c_str(), 0770) == 0) return;  // only the result is for others
  if (errno == EACCES || errno == EROFS)
    throw UserError(format("{} cannot be made ({}; the result is written there first); choose a place where you may write",
                           folder.string(), std::strerror(errno)));
  check_errno(errno == EEXIST, "make folder " + folder.string());
  const auto refuse = [&](const char* why) {
    throw UserError(
        format("{} is in the way ({}; the result is made there); move it away, or choose another name for the result",
               folder.string(), why));
  };
  struct stat info {};
  check_errno(::lstat(folder.c_str(), &info) == 0, "stat " + folder.string());
  if (!S_ISDIR(info.st_mode)) refuse("it is no folder");
  if (!is_ours(info)) refuse("it belongs to another user");
  if (::access(folder.c_str(), W_OK | X_OK) != 0) refuse("it cannot be written to");
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  is_ours_ = !names.empty();
  if (names.contains("journal")) {
    if (!Journal::is_one(journal())) refuse("no earlier call has made it");
    for (const fs::path& result : {model(), layout()})
      if (::lstat(result.c_str(), &info) == 0 && S_ISLNK(info.st_mode)) refuse("it holds a link");
    return;
  }
  // A call that dies before it has a journal leaves nothing, its lock, or the beginning of the journal.
  names.erase("lock");
  if (names.contains("journal.tmp") && Journal::is_beginning(folder / "journal.tmp")) names.erase("journal.tmp");
  if (!names.empty()) refuse("no earlier call has made it");
}

WorkFolder::~WorkFolder() {
  if (is_ours_) ::rmdir(folder_.c_str());
}

void WorkFolder::remove(const fs::path& result) const {
  struct stat info {};
  if (::lstat(result.c_str(), &info) != 0) {
    check_errno(errno == ENOENT, "stat " + result.string());
  } else if (!S_ISDIR(info.st_mode)) {
    unlink_if_there(result);
  } else if (!remove_our_files(result, is_model_file)) {
    throw RunError(
        format("{} holds files that no earlier call has made (they are not removed); move them away", result.string()));
  }
}

void WorkFolder::clear() const {
  remove(layout());
  remove(model());
  unlink_if_there(journal());  // last: without it the folder is not ours
}

// --- the journal ---

bool Journal::is_one(const fs::path& path) {
  const std::string text = read_text_file(path, longest_journal);
  std::size_t end = 0;
  if (check_seal(text, &end) != Seal::right) return false;
  const nlohmann::json head = parse_json(std::string_view(text).substr(0, end));
  return head.is_object() && head.value("format", nlohmann::json()) == journal_kind;
}

bool Journal::is_beginning(const fs::path& path) {
  const std::string text = read_text_file(path, longest_journal), all = head_of({});
  const std::string common = all.substr(0, all.find("\"of\""));
  return text.substr(0, common.size()) == common.substr(0, text.size());
}

std::unique_ptr<Journal> Journal::find(const fs::path& path, const nlohmann::ordered_json& identity) {
  if (kind_of(path) == PathKind::missing) return nullptr;
  const std::string text = read_text_file(path, longest_journal), head = head_of(identity);
  if (!text.starts_with(head)) return nullptr;
  std::unique_ptr<Journal> journal(new Journal(path, head.size()));
  for (std::size_t at = head.size(); at + line_bytes <= text.size(); at += line_bytes)
    journal->checksums_.push_back(text.substr(at, line_bytes));
  return journal;
}

std::unique_ptr<Journal> Journal::begin(const fs::path& path, const nlohmann::ordered_json& identity) {
  const std::string head = head_of(identity);
  write_text_file_durably(path, head);
  return std::unique_ptr<Journal>(new Journal(path, head.size()));
}

bool Journal::has(std::size_t k, std::span<const std::byte> bytes) const {
  return k < checksums_.size() && checksums_[k] == line_of(bytes);
}

void Journal::note(std::size_t k, std::span<const std::byte> bytes) {
  const std::string line = line_of(bytes);
  output_.write(start_ + k * line_bytes, line.data(), line.size());
}

}  // namespace fsdp
