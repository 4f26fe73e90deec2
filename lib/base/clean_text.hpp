// Makes names and other text from outside safe to print. In a name, a control character could make a terminal or a page show
// something else than what was written.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fsdp {

/// Returns the length of the UTF-8 character at the beginning of `text`; 0 if its first bytes are not valid UTF-8.
std::size_t length_of_character(std::string_view text);
/// Returns true for control characters (C0, DEL and C1) and for characters that end lines or change the direction of text.
bool is_control(std::string_view character);

/// Removes control characters, and replaces bytes that are not valid UTF-8 by U+FFFD. Line ends and tabs become spaces.
std::string one_line(std::string_view text);
/// The same, but keeps line ends.
std::string clean_lines(std::string_view text);

}  // namespace fsdp
