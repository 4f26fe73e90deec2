#include "checkpoint/unchecked.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/stored.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "h5/h5.hpp"

namespace fsdp {

namespace {

using nlohmann::json;

/// Makes all calls of HDF5 that a reader of this file may make.
json ask_hdf5(const std::filesystem::path& path, const std::string& kind, std::vector<std::string> groups) {
  const h5::File file = h5::File::open(path, Verify::no);
  json said = {{"texts", json::object()}, {"integers", json::object()}, {"datasets", json::array()}};
  for (const char* name : {"format", "config", "states", "checksums", "optimizer", "version"})
    if (file.has_attribute(name)) said["texts"][name] = file.read_text(name);
  for (const char* name : {"format_version", "save_id", "rank"})
    if (file.has_attribute(name)) said["integers"][name] = file.read_integer(name);
  if (said["texts"].value("format", "") != kind) return said;
  if (said["texts"].contains("states"))
    for (const std::string& state : stored::read_states(file))
      if (state != parameters_state || std::find(groups.begin(), groups.end(), "/") == groups.end()) groups.push_back(state);
  std::vector<float> values;
  for (const std::string& group : groups) {
    if (group != "/" && !file.has(group)) continue;
    for (const std::string& name : file.dataset_names(group)) {
      const std::string whole = group == "/" ? name : group + "/" + name;
      const h5::Dataset dataset = file.dataset(whole);
      dataset.require_whole();
      if (dataset.has_attribute("begin")) dataset.read_integer("begin");
      json entry = {{"name", whole}, {"shape", dataset.shape()}};
      const std::size_t n = numel(dataset.shape());
      if (const auto type = dataset.plain_type()) {
        entry["type"] = static_cast<int>(*type);
        entry["offset"] = dataset.offset().value();
      } else {
        values.resize(std::min(n, std::size_t{1} << 20));
        for (std::size_t at = 0; at < n; at += values.size())
          dataset.read({at, std::min(n, at + values.size())}, values.data());
      }
      said["datasets"].push_back(std::move(entry));
    }
  }
  return said;
}

/// Memory that a process and its children share, as a file.
class SharedText {
 public:
  SharedText() : fd_(::memfd_create("fsdp", MFD_CLOEXEC)) { check_errno(fd_ >= 0, "memfd_create"); }
  SharedText(const SharedText&) = delete;
  ~SharedText() { ::close(fd_); }
  void write(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t n = ::write(fd_, text.data(), text.size());
      check_errno(n > 0, "write");
      text.remove_prefix(static_cast<std::size_t>(n));
    }
  }
  std::string read() const {
    const off_t size = ::lseek(fd_, 0, SEEK_END);
    check_errno(size >= 0, "lseek");
    std::string text(static_cast<std::size_t>(size), '\0');
    check_errno(::pread(fd_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()), "pread");
    return text;
  }

 private:
  int fd_;
};

}  // namespace

UncheckedFile read_unchecked(const std::filesystem::path& path, const std::string& kind, std::vector<std::string> groups,
                             const std::string& remedy) {
  // A compressed dataset is read as a whole, which takes time; so the limit grows with the size of the file.
  const double seconds = 10 + static_cast<double>(size_of_file(path).value_or(0)) / 20e6;
  const SharedText answer;
  const std::string end = h5::what_ends_hdf5(
      [&] {
        json said;
        try {
          said = ask_hdf5(path, kind, groups);
        } catch (const DamagedError& damage) {
          said = {{"damaged", damage.what()}};
        } catch (const UserError& refusal) {
          said = {{"refused", refusal.what()}};
        } catch (const std::exception& failure) {
          said = {{"damaged", format("{} is damaged ({}); {}", path.string(), failure.what(), remedy)}};
        }
        answer.write(json_text(said));
      },
      seconds);
  if (!end.empty())
    throw DamagedError(
        format("{} is damaged (it was read in a process of its own first, and {}); {}", path.string(), end, remedy));
  const json said = parse_json(answer.read());
  if (said.contains("refused")) throw UserError(said["refused"].get<std::string>());
  if (said.contains("damaged")) throw DamagedError(said["damaged"].get<std::string>());
  UncheckedFile file;
  file.texts = said["texts"].get<std::map<std::string, std::string>>();
  file.integers = said["integers"].get<std::map<std::string, std::uint64_t>>();
  for (const json& entry : said["datasets"]) {
    UncheckedFile::Dataset& dataset = file.datasets[entry["name"]];
    dataset.shape = entry["shape"].get<Shape>();
    if (entry.contains("type"))
      dataset.plain = UncheckedFile::Plain{static_cast<DType>(entry["type"].get<int>()), entry["offset"].get<std::uint64_t>()};
  }
  return file;
}

}  // namespace fsdp
