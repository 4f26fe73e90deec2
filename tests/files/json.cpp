// JSON in files: limits of parsing, and seals.
#include <boost/test/unit_test.hpp>

#include "files/json.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(what_is_nested_too_deeply_is_not_parsed) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  BOOST_TEST(!parse_json(nested(64)).is_discarded());
  BOOST_TEST(parse_json(nested(65)).is_discarded());
  BOOST_TEST(parse_json(nested(100000)).is_discarded());
  BOOST_TEST(parse_json(std::string(100000, '[')).is_discarded());
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  BOOST_TEST(parse_json(objects).is_discarded());
  BOOST_TEST((parse_json("{\"a\": \"[[[[\\\"]]\"}") == nlohmann::json{{"a", "[[[[\"]]"}}));  // brackets in strings do not count
  std::string wide = "[[]";
  for (int i = 0; i < 1000; ++i) wide += ",[[]]";
  BOOST_TEST(parse_json(wide + "]").size() == 1001u);
}

BOOST_AUTO_TEST_CASE(names_that_are_not_utf8_are_written_all_the_same) {
  BOOST_TEST(json_text(nlohmann::json{{"save-dir", "a\xff"}}) == "{\"save-dir\":\"a\xef\xbf\xbd\"}");
}

BOOST_AUTO_TEST_CASE(values_in_messages_are_short) {
  BOOST_TEST(json_excerpt(nlohmann::json(std::string(60000, 'x'))).size() < 300u);
  BOOST_TEST(json_excerpt(nlohmann::json("gelu")) == "\"gelu\"");
}

BOOST_AUTO_TEST_CASE(no_byte_of_a_sealed_object_changes_unnoticed) {
  nlohmann::ordered_json object;
  object["format"] = "x";
  object["files"] = {{{"name", "a"}, {"xxh3_64", "0123456789abcdef"}}};
  object["norms"] = {{"b", 1.5}};
  const std::string text = seal_json(object);
  const nlohmann::json parsed = nlohmann::json::parse(text);
  BOOST_TEST(parsed["files"] == nlohmann::json(object["files"]));
  BOOST_TEST(parsed["xxh3_64"].is_string());
  std::size_t end = 0;
  BOOST_CHECK(check_seal(text + "lines after it\n", &end) == Seal::right);
  BOOST_TEST(end == text.size());
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::string bad = text;
    bad[at] ^= 1;
    BOOST_CHECK(check_seal(bad) != Seal::right);
    BOOST_CHECK(check_seal(text.substr(0, at)) != Seal::right);
  }
  BOOST_CHECK(check_seal(nlohmann::json(object).dump(1)) == Seal::none);
  BOOST_CHECK(check_seal("") == Seal::none);
}
