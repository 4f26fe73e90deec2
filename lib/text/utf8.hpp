// Reading and writing UTF-8, and repairing text that is not valid UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fsdp {

inline constexpr char32_t replacement_character = 0xfffd;

/// Returns the character at text[at] and moves `at` past this character. If there is no valid character, returns U+FFFD and
/// moves `at` past the longest valid beginning of a character, or by one byte if there is none (The Unicode Standard 15,
/// section 3.9, "U+FFFD Substitution of Maximal Subparts", like Python's decode(errors="replace")). Requires at < text.size().
char32_t next_character(std::string_view text, std::size_t& at);
void append_utf8(std::string& text, char32_t character);
/// The number of bytes of the character before text[at].
std::size_t character_before(std::string_view text, std::size_t at);
/// The number of characters of a valid text.
std::size_t characters_in(std::string_view text);

/// The position of the first byte that is not valid UTF-8; text.size() if there is none.
std::size_t valid_until(std::string_view text);
/// The text with U+FFFD in place of invalid bytes. *replaced, if not null, is set to the number of replacements.
std::string with_replacements(std::string_view text, std::size_t* replaced = nullptr);
/// The length of the text without an incomplete character at its end, that is, bytes that more bytes could complete.
std::size_t without_open_end(std::string_view text);

/// Returns true if the character has Unicode's property White_Space.
bool is_space(char32_t character);
/// The text without the characters at its beginning (`left`) and end (`right`) for which `is_space` is true.
std::string_view strip(std::string_view text, bool left, bool right, bool (*is_space)(char32_t) = fsdp::is_space);
/// Returns true if \w matches the character in Rust's regular expressions: Alphabetic, marks, decimal digits, connectors and
/// joiners.
bool is_word(char32_t character);

}  // namespace fsdp
