// Tokens as text for people: runs by target and document, special tokens, characters of several tokens, and cuts.
#include "text/shown_tokens.hpp"

#include <boost/test/unit_test.hpp>

#include <memory>
#include <string>
#include <vector>

#include "files/json.hpp"

using namespace fsdp;

namespace {

/// "text", "*text" of targets, "^" before what begins a document.
std::vector<std::string> runs_of(const std::vector<ShownText>& shown) {
  std::vector<std::string> runs;
  for (const ShownText& run : shown)
    runs.push_back(std::string(run.begins_document ? "^" : "") + (run.is_target ? "*" : "") + run.text);
  return runs;
}
using Runs = std::vector<std::string>;

}  // namespace

BOOST_AUTO_TEST_CASE(runs_end_where_targets_or_documents_change) {
  const auto bytes = make_byte_tokenizer();
  const std::vector<TokenId> ids = bytes->encode("abcdefgh"), mask = {0, 0, 1, 1, 1, 1, 0, 0};
  const std::vector<std::size_t> documents = {0, 4, 7};
  BOOST_TEST(runs_of(shown_tokens(*bytes, ids, mask, documents)) == (Runs{"^ab", "*cd", "^*ef", "g", "^h"}));
  BOOST_TEST(marked(shown_tokens(*bytes, ids, mask, documents)) == "ab[[cdef]]gh");
  BOOST_TEST(runs_of(shown_tokens(*bytes, ids, {}, {})) == (Runs{"abcdefgh"}));
  BOOST_TEST(marked(shown_tokens(*bytes, ids, std::vector<TokenId>(8, 1), {})) == "[[abcdefgh]]");
  BOOST_TEST(shown_tokens(*bytes, {}, {}, {}).empty());
  BOOST_TEST(marked({}).empty());
}

BOOST_AUTO_TEST_CASE(special_tokens_and_split_characters_are_shown) {
  const auto tokenizer = open_tokenizer(FSDP_TEST_DATA "/tokenizers/gpt2.json");
  const std::optional<TokenId> end = tokenizer->find("<|endoftext|>");
  BOOST_TEST_REQUIRE(end.has_value());
  std::vector<TokenId> ids = tokenizer->encode("a b");
  ids.push_back(*end);
  BOOST_TEST(marked(shown_tokens(*tokenizer, ids, {}, {})) == "a b<|endoftext|>");

  // A character belongs to the run of its last token; a document that ends within a character has U+FFFD at its end.
  const auto bytes = make_byte_tokenizer();
  const std::vector<TokenId> euro = bytes->encode("\u20ac1");
  BOOST_TEST(runs_of(shown_tokens(*bytes, euro, std::vector<TokenId>{0, 1, 1, 0}, {})) == (Runs{"", "*\u20ac", "1"}));
  BOOST_TEST(runs_of(shown_tokens(*bytes, euro, {}, std::vector<std::size_t>{0, 3})) == (Runs{"^\u20ac", "^1"}));
  BOOST_TEST(runs_of(shown_tokens(*bytes, std::span(euro).subspan(0, 2), {}, {})) == (Runs{"\ufffd"}));
}

BOOST_AUTO_TEST_CASE(long_texts_are_cut_and_messages_are_one_line) {
  const auto bytes = make_byte_tokenizer();
  const std::vector<TokenId> ids = bytes->encode(std::string(500, 'x'));
  BOOST_TEST(runs_of(shown_tokens(*bytes, ids, {}, {}, 10)) == (Runs{"xxxxxxxxxx", "..."}));
  BOOST_TEST(marked(shown_tokens(*bytes, ids, std::vector<TokenId>(500, 1), {}, 3)) == "[[xxx]]...");
  BOOST_TEST(runs_of(shown_tokens(*bytes, ids, {}, {}, 500)) == (Runs{std::string(500, 'x')}));
  BOOST_TEST(marked({{"a\n\tb\r\x1b[31m"}}) == "a\\n\\tb\\r[31m");
}

BOOST_AUTO_TEST_CASE(json_is_read_back) {
  const std::vector<ShownText> shown = {{"a", false, true}, {"b\n", true, false}, {"..."}};
  BOOST_TEST(to_json(shown).dump() ==
             R"([{"text":"a","begins_document":true},{"text":"b\n","is_target":true},{"text":"..."}])");
  BOOST_TEST(runs_of(shown_of_json(to_json(shown))) == runs_of(shown));
  BOOST_TEST(shown_of_json(nlohmann::json::parse(R"({"text":"a"})")).empty());
  const auto damaged = nlohmann::json::parse(R"([1, {"text": 2}, null, {"text": "a", "is_target": "yes"}])");
  BOOST_TEST(runs_of(shown_of_json(damaged)) == (Runs{"a"}));
}
