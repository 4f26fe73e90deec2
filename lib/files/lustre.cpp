#include "files/lustre.hpp"

#include <algorithm>
#include <sstream>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/number_in.hpp"
#include "base/system.hpp"

namespace fsdp {

namespace {

constexpr double patience_s = 5;  // for an answer of lfs: a busy metadata server may take seconds

/// The project of a folder, which sites use for quotas; 0: none.
std::uint32_t project_of(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return 0;
  struct fsxattr attributes {};
  const bool known = ::ioctl(fd, FS_IOC_FSGETXATTR, &attributes) == 0;
  ::close(fd);
  return known ? attributes.fsx_projid : 0;
}

template <class Number>
void lower(std::optional<Number>& least, const std::optional<Number>& other) {
  if (other && (!least || *other < *least)) least = other;
}

}  // namespace

bool is_on_lustre(const std::filesystem::path& folder) {
  struct statfs info {};
  constexpr std::uint32_t lustre = 0x0bd00bd0;
  return ::statfs(folder.c_str(), &info) == 0 && static_cast<std::uint32_t>(info.f_type) == lustre;
}

std::optional<Stripe> parse_stripe(const std::string& text) {
  const std::size_t colon = text.find(':');
  const auto count = number_in<int>(std::string_view(text).substr(0, colon));
  Stripe stripe{count.value_or(0), colon == text.npos ? "" : text.substr(colon + 1)};
  bool fits = stripe.count >= 1 || stripe.count == -1;
  if (colon != text.npos) {
    const std::size_t unit = std::string_view("KMG").find(stripe.size.empty() ? '?' : stripe.size.back());
    const std::string_view digits =
        std::string_view(stripe.size).substr(0, stripe.size.size() - (unit == std::string_view::npos ? 0 : 1));
    const std::uint64_t number = number_in<std::uint32_t>(digits).value_or(0);
    const std::uint64_t bytes = number << (unit == std::string_view::npos ? 0 : 10 * (unit + 1));
    fits = fits && bytes > 0 && bytes % (64 << 10) == 0;
  }
  return fits ? std::optional(stripe) : std::nullopt;
}

std::string describe_striping(const std::string& printed) {
  std::istringstream words(printed);
  std::string text, end, count;
  const auto plain = [](std::string key) { return key.starts_with("lmm_") ? key.substr(4) : key; };
  for (std::string word; words >> word;) {
    word = plain(word);
    if (word == "lcme_extent.e_end:") words >> end;
    if (word == "stripe_count:") words >> count;
    if (word != "stripe_size:") continue;
    std::string size;
    words >> size;
    const auto bytes = number_in<std::uint64_t>(size);
    const auto targets = number_in<std::int64_t>(count), up_to = number_in<std::int64_t>(end);
    if (!bytes || !targets) return "";
    // Versions print "all" as -1, or as the largest number of 16 or 32 bits.
    const bool all = *targets == -1 || *targets == 0xffff || *targets == 0xffffffff;
    text += text.empty() ? "" : ", then ";
    text += *targets == 0 ? (end.empty() ? "the file system's default" : "in the metadata server")
                          : format("{} in stripes of {}", all ? "all targets" : plural(*targets, "target"),
                                   format_bytes(static_cast<double>(*bytes)));
    if (up_to && *up_to > 0) text += format(" up to {}", format_bytes(static_cast<double>(*up_to)));
  }
  return text;
}

std::string striping_of(const std::filesystem::path& folder) {
  const auto answer = ask_program({"lfs", "getstripe", "-d", folder.string()}, patience_s);
  if (!answer)
    return format("unknown (there is no lfs on this node, or it did not answer within {})", format_duration(patience_s));
  const std::string text = answer->exit_code == 0 ? describe_striping(answer->text) : "";
  return text.empty() ? format("unknown (lfs getstripe -d printed: {})", excerpt(answer->text)) : text;
}

std::string set_striping(const std::filesystem::path& folder, const Stripe& stripe) {
  std::vector<std::string> command = {"lfs", "setstripe", "-c", format("{}", stripe.count)};
  if (!stripe.size.empty()) command.insert(command.end(), {"-S", stripe.size});
  command.push_back(folder.string());
  const auto answer = ask_program(command, patience_s);
  if (!answer) return format("there is no lfs on this node, or it did not answer within {}", format_duration(patience_s));
  if (answer->exit_code != 0)
    throw UserError(
        format("{} is refused by Lustre ({}); give another striping, or none", fmt::join(command, " "), excerpt(answer->text)));
  return "";
}

QuotaLeft parse_quota(const std::string& printed) {
  // The folder, which may be on a line of its own, is no number. A grace time is "-", "none" or "6d23h".
  std::vector<std::string> fields;
  std::istringstream words(printed);
  for (std::string word; words >> word;) fields.push_back(word);
  QuotaLeft left;
  if (fields.size() < 9) return left;
  const auto number = [&](std::size_t i) {
    std::string_view text = fields[i];
    if (text.ends_with('*')) text.remove_suffix(1);
    return number_in<std::uint64_t>(text);
  };
  const auto of = [&](std::size_t used, std::uint64_t unit) -> std::optional<std::uint64_t> {
    const auto now = number(used), soft = number(used + 1), hard = number(used + 2);
    if (!now || !soft || !hard) return std::nullopt;
    const std::uint64_t limit = *hard > 0 ? *hard : *soft;
    return limit == 0 ? std::nullopt : std::optional((limit - std::min(limit, *now)) * unit);
  };
  left.bytes = of(1, 1024);
  left.files = of(5, 1);
  return left;
}

QuotaLeft quota_left(const std::filesystem::path& folder) {
  struct stat info {};
  if (::stat(folder.c_str(), &info) != 0) return {};
  const std::uint32_t project = project_of(folder);
  QuotaLeft least;
  for (const auto& [kind, id] : {std::pair("-u", ::geteuid()), std::pair("-g", info.st_gid), std::pair("-p", project)}) {
    if (kind == std::string_view("-p") && id == 0) continue;
    const auto answer = ask_program({"lfs", "quota", "-q", kind, format("{}", id), folder.string()}, patience_s);
    if (!answer) return {};
    const QuotaLeft left = answer->exit_code == 0 ? parse_quota(answer->text) : QuotaLeft();
    lower(least.bytes, left.bytes);
    lower(least.files, left.files);
  }
  return least;
}

}  // namespace fsdp
