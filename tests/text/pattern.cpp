// Regular expressions find what Oniguruma finds, or are refused.
#include <boost/test/unit_test.hpp>

#include <string>
#include <vector>

#include "base/error.hpp"
#include "support/messages.hpp"
#include "text/pattern.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

std::vector<std::string> found(const std::string& expression, const std::string& text) {
  std::vector<TextRange> ranges;
  Pattern(expression).find_all(text, ranges);
  std::vector<std::string> parts;
  for (const TextRange& range : ranges) parts.push_back(text.substr(range.begin, range.end - range.begin));
  return parts;
}
using Parts = std::vector<std::string>;

}  // namespace

BOOST_AUTO_TEST_CASE(gpt2_words_are_found) {
  const std::string words = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  BOOST_TEST(found(words, "It's  10 caf\u00e9s!\n\n") == (Parts{"It", "'s", " ", " 10", " caf\u00e9s", "!", "\n\n"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(classes_mean_what_they_mean_to_oniguruma) {
  // U+180E is not a space; U+0085 and U+2028 are. \w includes marks, connectors and circled letters. It does not include
  // numbers that are not digits, except those of Latin-1, and these only outside of brackets.
  BOOST_TEST(found(R"(\s+)", "a\u180e\u0085\u2028b c") == (Parts{"\u0085\u2028", " "}), boost::test_tools::per_element());
  BOOST_TEST(found(R"([\s,]+)", "a, \u3000b") == (Parts{", \u3000"}), boost::test_tools::per_element());
  BOOST_TEST(found(R"(\w+)", "e\u0301_\u203f1\u00bd-x") == (Parts{"e\u0301_\u203f1\u00bd", "x"}),
             boost::test_tools::per_element());
  BOOST_TEST(found(R"(\w+)", "a\u24b6\u2160\u00bda\u2460b\u09f4") == (Parts{"a\u24b6\u2160\u00bda", "b"}),
             boost::test_tools::per_element());
  BOOST_TEST(found(R"([\w]+)", "a\u24b6\u2160\u00bda\u2460b") == (Parts{"a\u24b6\u2160", "a", "b"}),
             boost::test_tools::per_element());
  BOOST_TEST(found(R"(\W+)", "a-b") == (Parts{"-"}), boost::test_tools::per_element());
  BOOST_TEST(found(R"(\d+)", "1\u0663\u00bd") == (Parts{"1\u0663"}), boost::test_tools::per_element());
  BOOST_TEST(found(R"((?i:'s))", "'S'\u017f'x") == (Parts{"'S", "'\u017f"}), boost::test_tools::per_element());
  // Only the script's own characters, not shared characters that are used with it.
  BOOST_TEST(found(R"(\p{Han}+)", "\u4e00\u3001\u4e8c") == (Parts{"\u4e00", "\u4e8c"}), boost::test_tools::per_element());
  BOOST_TEST(found(R"([\u4e00-\u9fa5]+|\x41)", "A\u4e00B") == (Parts{"A", "\u4e00"}), boost::test_tools::per_element());
  std::vector<TextRange> ranges;
  Pattern::literal("a.b(").find_all("a.b( axb( a.b(", ranges);
  BOOST_TEST(ranges.size() == 2u);
}

// Characters of Unicode 15 and later, also if PCRE2 is older: a Chinese character (15), a letter of Todhri (16), a digit of
// Kawi (15).
BOOST_AUTO_TEST_CASE(newer_characters_are_known) {
  const std::string chinese = "\U00031467", letter = "\U000105c0", digit = "\U00011f50",
                    text = "a" + chinese + letter + digit + "!";
  BOOST_TEST(found(R"(\p{L}+)", text) == (Parts{"a" + chinese + letter}), boost::test_tools::per_element());
  BOOST_TEST(found(R"([\p{L}\p{N}]+)", text) == (Parts{"a" + chinese + letter + digit}), boost::test_tools::per_element());
  BOOST_TEST(found(R"([^\s\p{L}\p{N}]+)", text) == (Parts{"!"}), boost::test_tools::per_element());
  BOOST_TEST(found(R"(\P{L}+)", text) == (Parts{digit + "!"}), boost::test_tools::per_element());
  BOOST_TEST(found(R"(\p{^Lo}+)", text) == (Parts{"a", digit + "!"}), boost::test_tools::per_element());
  BOOST_TEST(found(R"(\p{Hani}+|\x{61}?\x{21})", text) == (Parts{chinese, "!"}), boost::test_tools::per_element());
  BOOST_TEST(found(R"(\p{LC}+)", "a\ua7cb") == (Parts{"a\ua7cb"}), boost::test_tools::per_element());
  BOOST_TEST(found(R"(\p{Han}+|\d)", text) == (Parts{chinese, digit}), boost::test_tools::per_element());
  BOOST_TEST(found(R"(\w+)", text) == (Parts{"a" + chinese + letter + digit}), boost::test_tools::per_element());
  BOOST_TEST(found(R"(\W+)", text) == (Parts{"!"}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_could_mean_something_else_is_refused) {
  for (const char* const expression : {"(",       "[a",      "a\\",     "a*",          "",
                                       "^a",      "a$",      "(?<=a)b", "(?<name>a)",  "(a)\\1",
                                       "\\bword", "\\h",     "\\R",     "[[:alpha:]]", "[a[bc]]",
                                       "[a&&b]",  "[\\S]",   "a{2}+",   "\\pL",        "\\p{NoSuchScript}",
                                       "\\u12",   "(?x: a)", "\\K",     "a{,3}",       "a{2}?",
                                       "\\p{C}",  "\\p{Cn}", "[\\P{L}]"})
    BOOST_CHECK_EXCEPTION(Pattern{expression}, UserError, [](const UserError& error) {
      return std::string(error.what()).find("regular expression") != std::string::npos;
    });
}

BOOST_AUTO_TEST_CASE(long_texts_are_followed) {
  const std::string text(std::size_t{8} << 20, 'a');
  BOOST_TEST(found(R"(\p{L}+|\s+(?!\S))", text).size() == 1u);
  BOOST_TEST(found(R"([^\s]+|\s+)", text + " " + text).size() == 3u);
}
