#include "base/clean_text.hpp"

#include <algorithm>

namespace fsdp {

std::size_t length_of_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const std::size_t length = first < 0x80                    ? 1
                             : first >= 0xC2 && first < 0xE0 ? 2
                             : first >= 0xE0 && first < 0xF0 ? 3
                             : first >= 0xF0 && first < 0xF5 ? 4
                                                             : 0;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  if (length == 3 && ((first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) >= 0xA0))) return 0;
  if (length == 4 && ((first == 0xF0 && byte(1) < 0x90) || (first == 0xF4 && byte(1) >= 0x90))) return 0;
  return length;
}

bool is_control(std::string_view c) {
  const auto is_between = [&](std::string_view from, std::string_view to) {  // the bytes of UTF-8 have the order of the codes
    return c.size() == from.size() && c >= from && c <= to;
  };
  return is_between({"\0", 1}, "\x1F") || c == "\x7F" || is_between("\u0080", "\u009F") || c == "\u061C" ||
         is_between("\u200E", "\u200F") || is_between("\u2028", "\u202E") || is_between("\u2066", "\u2069");
}

namespace {

std::string cleaned(std::string_view text, bool keeps_lines) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = length_of_character(text);
    const std::string_view character = length == 0 ? "\uFFFD" : text.substr(0, length);
    if (character == "\n" || character == "\t")
      out += keeps_lines && character == "\n" ? '\n' : ' ';
    else if (!is_control(character))
      out += character;
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

}  // namespace

std::string one_line(std::string_view text) { return cleaned(text, false); }
std::string clean_lines(std::string_view text) { return cleaned(text, true); }

}  // namespace fsdp
