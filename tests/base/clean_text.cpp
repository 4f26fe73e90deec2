// Text from outside, such as names of files, as it is printed.
#include "base/clean_text.hpp"

#include <boost/test/unit_test.hpp>

#include <cstdio>
#include <string>

#include "base/format.hpp"
#include "base/program.hpp"

using namespace fsdp;

BOOST_AUTO_TEST_CASE(control_characters_are_removed) {
  const std::string kept = "a\u00E4\u4F60\U0001F600\u00A0-\u05D0";  // letters of all lengths, also from right to left
  BOOST_TEST(one_line(kept) == kept);
  for (const char* control : {"\x01", "\x1b", "\r", "\x7f", "\u0080", "\u009B", "\u061C", "\u200E", "\u200F", "\u2028",
                              "\u202A", "\u202E", "\u2066", "\u2069"})
    BOOST_TEST(one_line(std::string("a") + control + "b") == "ab");
  BOOST_TEST(one_line(std::string("a\0b", 3)) == "ab");
  BOOST_TEST(one_line("a\nb\tc") == "a b c");
  BOOST_TEST(clean_lines("a\nb\x1b[2J\n") == "a\nb[2J\n");
  // Bytes that are no UTF-8: alone, cut off, too long, surrogates, beyond the last character.
  BOOST_TEST(one_line("\x9B") == "\uFFFD");
  BOOST_TEST(one_line("\xE4\xBD") == "\uFFFD\uFFFD");
  BOOST_TEST(one_line("\xC0\x9B!") == "\uFFFD\uFFFD!");
  BOOST_TEST(one_line("\xED\xA0\x80") == "\uFFFD\uFFFD\uFFFD");
  BOOST_TEST(one_line("\xF4\x90\x80\x80") == "\uFFFD\uFFFD\uFFFD\uFFFD");
}

BOOST_AUTO_TEST_CASE(messages_and_tables_have_no_other_lines) {
  BOOST_TEST(printable("no a\nfsdp-train: done") == "no a fsdp-train: done");
  BOOST_TEST(excerpt("a\u4F60\u4F60", 5) == "a\u4F60...");
  BOOST_TEST(lay_out({{"a\nb", "c\x1b"}}, 1) == "a b c\n");
  std::FILE* const file = std::tmpfile();
  BOOST_TEST_REQUIRE(file != nullptr);
  const std::string name = "n\x1b\n";
  print_to(file, "{}: \033[K{:>3} {}\n", name, 7, name.c_str());  // the pattern is the program's own
  print_text(file, "a\x1b\nb\n");
  std::rewind(file);
  char text[99] = {};
  BOOST_TEST(std::fread(text, 1, sizeof text, file) > 0u);
  BOOST_TEST(text == std::string("n : \033[K  7 n \na\nb\n"));
  std::fclose(file);
}
