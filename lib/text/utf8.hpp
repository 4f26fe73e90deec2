// UTF-8, and text that should be UTF-8 and is not.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fsdp {

inline constexpr char32_t replacement_character = 0xfffd;

/// The character that begins at text[at]; `at` moves behind it. Where no character begins there: U+FFFD, and `at` moves behind
/// the longest beginning of one, or one byte (The Unicode Standard 15, section 3.9, "U+FFFD Substitution of Maximal Subparts",
/// which is what Python's decode(errors="replace") does). Requires at < text.size().
char32_t next_character(std::string_view text, std::size_t& at);
void append_utf8(std::string& text, char32_t character);

/// Where the first byte stands that belongs to no character; text.size() if all do.
std::size_t valid_until(std::string_view text);
/// The text with U+FFFD for what belongs to no character. `replaced`, if not null, is how many were put in.
std::string with_replacements(std::string_view text, std::size_t* replaced = nullptr);
/// The length of the text without a beginning of a character at its end that more bytes could complete.
std::size_t without_open_end(std::string_view text);

/// The property White_Space.
bool is_space(char32_t character);
/// The text without what `is_space` says at its beginning (`left`) and its end (`right`).
std::string strip(const std::string& text, bool left = true, bool right = true, bool (*is_space)(char32_t) = fsdp::is_space);
/// What \w matches in Rust's regular expressions: Alphabetic, marks, decimal digits, connectors and joiners.
bool is_word(char32_t character);

}  // namespace fsdp
