#include "nn/patterns.hpp"

#include <algorithm>

#include <fnmatch.h>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

bool matches(std::string_view pattern, std::string_view name) {
  const std::string glob(pattern);
  const auto fits = [&](std::string_view text) { return fnmatch(glob.c_str(), std::string(text).c_str(), 0) == 0; };
  if (fits(name)) return true;
  for (const std::string_view prefix : {"transformer.", "model."})
    if (name.starts_with(prefix) && fits(name.substr(prefix.size()))) return true;
  return false;
}

std::vector<bool> named_by(const std::vector<std::string>& patterns, const char* what,
                           const std::vector<Parameter>& parameters) {
  std::vector<bool> named(parameters.size());
  for (const std::string& pattern : patterns) {
    bool found = false;
    for (std::size_t p = 0; p < parameters.size(); ++p)
      if (matches(pattern, parameters[p].name)) named[p] = found = true;
    if (!found)
      throw UserError(format("`{}` '{}' matches no parameter (the first are {}, {}); correct the pattern; '*' crosses dots",
                             what, pattern, parameters.front().name,
                             parameters[std::min<std::size_t>(2, parameters.size() - 1)].name));
  }
  return named;
}

}  // namespace fsdp
