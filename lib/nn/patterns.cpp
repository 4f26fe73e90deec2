#include "nn/patterns.hpp"

#include <algorithm>

#include <fnmatch.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "nn/families.hpp"

namespace fsdp {

bool matches(std::string_view pattern, std::string_view name) {
  const std::string glob(pattern);
  const auto fits = [&](std::string_view text) { return fnmatch(glob.c_str(), std::string(text).c_str(), 0) == 0; };
  if (fits(name)) return true;
  for (const std::string_view prefix : {"transformer.", "model."})
    if (name.starts_with(prefix) && fits(name.substr(prefix.size()))) return true;
  return false;
}

std::optional<std::string> tied_head(std::string_view pattern, const std::vector<Parameter>& parameters) {
  const auto has = [&](const std::string& name) {
    return std::any_of(parameters.begin(), parameters.end(), [&](const Parameter& each) { return each.name == name; });
  };
  for (const Family* family : families()) {
    const std::string &head = family->names.head, &table = family->names.token_table;
    const std::string module = head.substr(0, head.rfind('.'));
    if ((matches(pattern, head) || matches(pattern, module)) && has(table) && !has(head))
      return format("{} is the same tensor as {} (tie_word_embeddings)", head, table);
  }
  return std::nullopt;
}

std::vector<bool> named_by(const std::vector<std::string>& patterns, const char* what,
                           const std::vector<Parameter>& parameters) {
  std::vector<bool> named(parameters.size());
  for (const std::string& pattern : patterns) {
    bool found = false;
    for (std::size_t p = 0; p < parameters.size(); ++p)
      if (matches(pattern, parameters[p].name)) named[p] = found = true;
    if (found) continue;
    if (const auto tied = tied_head(pattern, parameters))
      throw UserError(format("`{}` '{}' matches no parameter: {}; name that tensor", what, pattern, *tied));
    throw UserError(
        format("`{}` '{}' matches no parameter (the first parameters are {}, {}; '*' also matches dots); correct the pattern",
               what, pattern, parameters.front().name, parameters[std::min<std::size_t>(2, parameters.size() - 1)].name));
  }
  return named;
}

}  // namespace fsdp
