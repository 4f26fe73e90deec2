// What programs print, and the one `try` of an offline program. Programs under MPI have theirs in train/program.hpp.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/format.hpp"

namespace fsdp {

/// What a program exits with.
namespace exit_code {
inline constexpr int done = 0, failed = 1, wrong_use = 2;
inline constexpr int stopped = 75;  // on request, everything saved: the same command continues
}  // namespace exit_code

/// Writes formatted text to `out` in one call. Text that cannot be written (full disk, closed descriptor, no reader) is
/// dropped, so that a program whose log is lost continues; std::ferror(out) reports it.
template <class... Values>
void print_to(std::FILE* out, fmt::format_string<Values...> pattern, Values&&... values) {
  const std::string text = fmt::format(pattern, std::forward<Values>(values)...);
  std::fwrite(text.data(), 1, text.size(), out);
}

/// "warning: ..." on stderr, a line each.
void print_warnings(const std::vector<std::string>& warnings);

/// How a program words messages of the library: OptionTable::name_options(). Null: as they are.
using Wording = std::function<std::string(const std::string&)>;

/// Runs `body` and returns its value. An exception is printed once to stderr as "fsdp-x: <message>"; UserError gives 2
/// (RunError 1), any other 1.
int run_program(int argc, char** argv, const std::function<int(int argc, char** argv)>& body, const Wording& wording = nullptr);

}  // namespace fsdp
