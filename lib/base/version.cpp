#include "base/version.hpp"

#include <algorithm>

#include <boost/version.hpp>

#include "base/format.hpp"
#include "fsdp_git.hpp"

namespace fsdp {

namespace {
#if defined(__clang__)
constexpr const char* compiler = "Clang " __clang_version__;
#else
constexpr const char* compiler = "g++ " __VERSION__;
#endif
}  // namespace

std::string version_string() { return FSDP_VERSION " (" FSDP_GIT ")"; }

std::string version_text(std::string_view program, const std::vector<std::pair<std::string, std::string>>& libraries) {
  std::vector<std::pair<std::string, std::string>> rows = {
      {"compiler", compiler},
      {"Boost", format("{}.{}.{}", BOOST_VERSION / 100000, BOOST_VERSION / 100 % 1000, BOOST_VERSION % 100)},
      {"fmt", format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
  };
  rows.insert(rows.end(), libraries.begin(), libraries.end());
  std::size_t width = 0;
  for (const auto& [name, version] : rows) width = std::max(width, name.size());
  std::string out = format("{} {}\n", program, version_string());
  for (const auto& [name, version] : rows) out += format("  {:<{}}  {}\n", name, width, version);
  return out;
}

}  // namespace fsdp
