// Numbers with units, as users write and read them.
#include <boost/test/unit_test.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"

using namespace fsdp;

BOOST_AUTO_TEST_CASE(sizes_are_read) {
  BOOST_TEST(parse_size("1024") == 1024u);
  BOOST_TEST(parse_size("64M") == 64'000'000u);
  BOOST_TEST(parse_size("100_000_000") == 100'000'000u);
  BOOST_TEST(parse_size("2GiB") == 2u << 30);
  BOOST_TEST(parse_size("1.5kB") == 1500u);
  BOOST_TEST(parse_size("8 MiB") == 8u << 20);
  for (const char* bad : {"", "M", "-1", "1X", "1.5", "1e30", "2 GiBs", "_1", "1_", "1__0"})
    BOOST_CHECK_THROW(parse_size(bad), UserError);
}

BOOST_AUTO_TEST_CASE(durations_are_read) {
  BOOST_TEST(parse_duration("90s") == 90.0);
  BOOST_TEST(parse_duration("30min") == 1800.0);
  BOOST_TEST(parse_duration("1.5h") == 5400.0);
  for (const char* bad : {"", "soon", "3 fortnights", "-2h"}) BOOST_CHECK_THROW(parse_duration(bad), UserError);
}

BOOST_AUTO_TEST_CASE(numbers_are_written) {
  BOOST_TEST(format_bytes(0) == "0 B");
  BOOST_TEST(format_bytes(1536) == "1.50 KiB");
  BOOST_TEST(format_bytes(1024.0 * 1024 - 1) == "1.00 MiB");
  BOOST_TEST(format_count(124439808) == "124 M");
  BOOST_TEST(format_duration(0.85) == "850 ms");
  BOOST_TEST(format_duration(245) == "4:05 min");
  BOOST_TEST(format_duration(7650) == "2:07:30 h");
}

BOOST_AUTO_TEST_CASE(names_are_listed) {
  BOOST_TEST(list_of({"a"}) == "a");
  BOOST_TEST(list_of({"a", "b", "c", "d"}) == "a, b, c and d");
  BOOST_TEST(list_of({"a", "b", "c", "d", "e", "f"}) == "a, b, c and 3 more");
}

BOOST_AUTO_TEST_CASE(long_lines_are_broken) {
  std::string words = "some";
  for (int i = 0; i < 23; ++i) words += " word";
  BOOST_TEST(wrapped(words) == words);  // 119 characters
  BOOST_TEST(wrapped(words + "s") == words.substr(0, 114) + "\n  words");
  words[88] = ',', words[68] = ';';
  BOOST_TEST(wrapped(words + "s") == words.substr(0, 89) + "\n  " + words.substr(90) + "s");
  const std::string path(200, 'x');  // cannot be broken
  BOOST_TEST(wrapped(path) == path);
  BOOST_TEST(wrapped("read from " + path + " there") == "read from\n  " + path + " there");
}

BOOST_AUTO_TEST_CASE(a_misspelt_word_finds_its_neighbour) {
  const std::vector<std::string> words = {"batch-size", "update-freq", "lr"};
  BOOST_TEST(nearest("batchsize", words) == "batch-size");
  BOOST_TEST(nearest("updte-frq", words) == "update-freq");
  BOOST_TEST(nearest("completely-else", words) == "");
  BOOST_TEST(nearest("H100", {"a100", "h100"}) == "h100");
}

BOOST_AUTO_TEST_CASE(narrowing_that_loses_bits_throws) {
  BOOST_TEST(narrow<int>(std::size_t{7}) == 7);
  BOOST_CHECK_THROW(narrow<int>(std::size_t{1} << 40), InternalError);
  BOOST_CHECK_THROW(narrow<unsigned>(-1), InternalError);
}
