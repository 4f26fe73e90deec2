// Printing, exit codes, and run_program(), which reports the exceptions of a program without MPI. Programs under MPI use
// job/program.hpp.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/clean_text.hpp"
#include "base/format.hpp"

namespace fsdp {

/// The exit codes of all programs.
namespace exit_code {
inline constexpr int done = 0, failed = 1, wrong_use = 2;
inline constexpr int stopped = 75;  // stopped on request with everything saved: the same command continues the run
}  // namespace exit_code

/// Writes text to `out` as it is, in one call: for data, and for text with colours. Drops text that cannot be written (full
/// disk, closed descriptor, no reader), so that a program whose log is lost continues. After a loss, std::ferror(out) returns
/// true.
inline void print_raw(std::FILE* out, std::string_view text) { std::fwrite(text.data(), 1, text.size(), out); }
/// Writes lines, as clean_lines() makes them.
inline void print_text(std::FILE* out, std::string_view text) { print_raw(out, clean_lines(text)); }

/// Returns a value as print_to() prints it: text, such as a name, becomes one_line() of it.
template <class Value>
decltype(auto) shown(const Value& value) {
  if constexpr (std::is_convertible_v<const Value&, std::string_view>)
    return one_line(value);
  else
    return (value);
}
template <class... Shown>
void print_shown(std::FILE* out, fmt::string_view pattern, const Shown&... values) {
  print_raw(out, fmt::vformat(pattern, fmt::make_format_args(values...)));
}
/// Writes formatted text to `out`. The pattern is printed as it is, text among the values as one_line() makes it.
template <class... Values>
void print_to(std::FILE* out, fmt::format_string<Values...> pattern, Values&&... values) {
  print_shown(out, pattern, shown(values)...);
}

/// Returns the line "warning: <text>", in which the first word has a colour if `out` is shown on a terminal.
std::string warning_line(std::string_view text, std::FILE* out = stderr);

/// Prints the warning to stderr as a line "warning: ...".
void print_warning(const std::string& text);
void print_warnings(const std::vector<std::string>& warnings);
/// A function that tells the user of a warning: print_warning(), or a function that also stores the warning.
using Warn = std::function<void(const std::string&)>;

/// Rewrites a message of the library for a program, as OptionTable::name_options() does. If the Wording is null, messages stay
/// as they are.
using Wording = std::function<std::string(const std::string&)>;

/// Runs `body` and returns its value. If `body` throws, prints the exception once to stderr as "fsdp-x: <message>", and returns
/// 2 for a UserError that is not a RunError, 1 for any other exception.
int run_program(int argc, char** argv, const std::function<int(int argc, char** argv)>& body, const Wording& wording = nullptr);

}  // namespace fsdp
