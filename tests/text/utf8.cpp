// Decoding UTF-8 and invalid bytes like Python's decode(errors="replace").
#include <boost/test/unit_test.hpp>

#include <string>
#include <vector>

#include "text/utf8.hpp"

using namespace fsdp;

BOOST_AUTO_TEST_CASE(every_character_is_read_as_it_is_written) {
  std::string text;
  std::size_t count = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    append_utf8(text, c);
    ++count;
  }
  BOOST_TEST(valid_until(text) == text.size());
  BOOST_TEST(with_replacements(text) == text);
  char32_t expected = 0;
  std::size_t seen = 0, wrong = 0;
  for (std::size_t at = 0; at < text.size(); ++seen, ++expected) {
    if (expected == 0xd800) expected = 0xe000;
    if (next_character(text, at) != expected) ++wrong;
  }
  BOOST_TEST(seen == count);
  BOOST_TEST(wrong == 0u);
}

BOOST_AUTO_TEST_CASE(what_is_no_character_is_replaced_as_python_does) {
  const std::string r = "\xef\xbf\xbd";
  // Each with the result of Python 3 for bytes.decode("utf-8", "replace").
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\xff"
       "b",
       "a" + r + "b"},
      {"\xc3", r},
      {"\xc3(", r + "("},
      {"\xe2\x82", r},
      {"\xe2\x82x", r + "x"},
      {"\xf0\x9f\x98", r},
      {"\xf0\x9f\x98\xf0\x9f\x98\x80", r + "\xf0\x9f\x98\x80"},
      {"\xc0\x80", r + r},                  // too long a form
      {"\xe0\x80\x80", r + r + r},          // too long a form
      {"\xed\xa0\x80", r + r + r},          // a surrogate
      {"\xf4\x90\x80\x80", r + r + r + r},  // beyond the last character
      {"\xf8\x88\x80\x80\x80", r + r + r + r + r},
      {"\x80\x80", r + r},
  };
  for (const auto& [bytes, text] : cases) {
    std::size_t replaced = 0;
    BOOST_TEST(with_replacements(bytes, &replaced) == text);
    std::size_t expected = 0;
    for (std::size_t at = text.find(r); at != std::string::npos; at = text.find(r, at + r.size())) ++expected;
    BOOST_TEST(replaced == expected);
    BOOST_TEST(valid_until("ok" + bytes) == (bytes[0] == 'a' ? 3u : 2u));
  }
}

BOOST_AUTO_TEST_CASE(only_what_more_bytes_could_complete_is_held_back) {
  const std::string smile = "\xf0\x9f\x98\x80", euro = "\xe2\x82\xac", e = "\xc3\xa9";
  for (const std::string& character : {smile, euro, e})
    for (std::size_t part = 1; part <= character.size(); ++part) {
      const std::string text = "ab" + character.substr(0, part);
      BOOST_TEST(without_open_end(text) == (part < character.size() ? 2 : text.size()));
    }
  for (const char* const closed :
       {"", "abc", "\xff", "\x80\x80\x80\x80", "\xc0", "\xe0\x80", "\xed\xa0", "\xf4\x90", "\xf5\x80"})
    BOOST_TEST(without_open_end(closed) == std::string_view(closed).size());
}

BOOST_AUTO_TEST_CASE(spaces_and_words_are_those_of_unicode) {
  for (const char32_t space : {U' ', U'\t', U'\n', U'\u0085', U'\u00a0', U'\u2028', U'\u3000'}) BOOST_TEST(is_space(space));
  for (const char32_t none : {U'a', U'\u200b', U'\u180e'}) BOOST_TEST(!is_space(none));
  for (const char32_t word : {U'a', U'_', U'9', U'\u00e9', U'\u4e00', U'\u0301'}) BOOST_TEST(is_word(word));
  for (const char32_t none : {U' ', U'-', U'.', U'\u00bd'}) BOOST_TEST(!is_word(none));
}
