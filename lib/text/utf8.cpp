#include "text/utf8.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <unicode/uchar.h>
#include <unicode/utf8.h>

namespace fsdp {

namespace {

/// The same as next_character(), but negative if there is no valid character.
std::int32_t next(std::string_view text, std::size_t& at) {
  std::int32_t character = static_cast<unsigned char>(text[at]);
  if (character < 0x80) return ++at, character;
  // ICU's indices have 32 bits, so it gets only the bytes of one character.
  const std::string_view here = text.substr(at, 4);
  std::int32_t i = 0;
  const auto size = static_cast<std::int32_t>(here.size());
  U8_NEXT(here.data(), i, size, character);
  at += static_cast<std::size_t>(i);
  return character;
}

}  // namespace

char32_t next_character(std::string_view text, std::size_t& at) {
  const std::int32_t character = next(text, at);
  return character < 0 ? replacement_character : static_cast<char32_t>(character);
}

void append_utf8(std::string& text, char32_t character) {
  char bytes[4];
  std::int32_t size = 0;
  U8_APPEND_UNSAFE(bytes, size, static_cast<std::int32_t>(character));
  text.append(bytes, static_cast<std::size_t>(size));
}

std::size_t character_before(std::string_view text, std::size_t at) {
  std::size_t bytes = 1;
  while (bytes < std::min<std::size_t>(at, 4) && U8_IS_TRAIL(text[at - bytes])) ++bytes;
  return bytes;
}

std::size_t characters_in(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return !U8_IS_TRAIL(c); }));
}

std::size_t valid_until(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    for (std::uint64_t eight; at + sizeof eight <= text.size(); at += sizeof eight) {  // skips ASCII, eight bytes at once
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080) != 0) break;
    }
    const std::size_t begin = at;
    if (at < text.size() && next(text, at) < 0) return begin;
  }
  return text.size();
}

std::string with_replacements(std::string_view text, std::size_t* replaced) {
  std::string out;
  out.reserve(text.size());
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    if (next(text, at) >= 0) {
      out.append(text, begin, at - begin);
    } else {
      append_utf8(out, replacement_character);
      ++count;
    }
  }
  if (replaced) *replaced = count;
  return out;
}

std::size_t without_open_end(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto lead = static_cast<unsigned char>(text[text.size() - back]);
    if ((lead & 0xc0) == 0x80) continue;
    if (lead < 0xc2 || lead > 0xf4) return text.size();
    const std::size_t needed = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (back >= needed) return text.size();
    // The character is incomplete only if its bytes here are a valid beginning.
    std::size_t at = text.size() - back;
    next(text, at);
    return at == text.size() ? text.size() - back : text.size();
  }
  return text.size();
}

bool is_space(char32_t character) { return u_isUWhiteSpace(static_cast<UChar32>(character)); }

std::string_view strip(std::string_view text, bool left, bool right, bool (*is_space)(char32_t)) {
  for (std::size_t at = 0; left && !text.empty() && is_space(next_character(text, at)); at = 0) text.remove_prefix(at);
  while (right && !text.empty()) {
    const std::size_t last = text.size() - character_before(text, text.size());
    std::size_t end = last;
    if (!is_space(next_character(text, end)) || end < text.size()) break;
    text = text.substr(0, last);
  }
  return text;
}

bool is_word(char32_t character) {
  const auto c = static_cast<UChar32>(character);
  return u_isUAlphabetic(c) || u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL) ||
         (U_GET_GC_MASK(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

}  // namespace fsdp
