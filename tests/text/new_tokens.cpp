// New tokens are read from lists and files, and get the ids after all others. Comparisons with transformers: jobs.python_words.
#include <boost/test/unit_test.hpp>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "files/json.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"
#include "text/new_tokens.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// "word" or "word*" if it is special, for each token.
std::string read(const std::string& given, bool special = false) {
  std::string all;
  for (const NewToken& token : read_new_tokens(given, special))
    all += (all.empty() ? "" : "|") + token.content + (token.special ? "*" : "");
  return all;
}

}  // namespace

BOOST_AUTO_TEST_CASE(lists_and_files_are_read) {
  const TemporaryFolder folder;
  const auto file = [&](const std::string& text) {
    write_file(folder / "words", text);
    return (folder / "words").string();
  };
  BOOST_TEST(read("one,two words,<|x|>") == "one|two words|<|x|>");
  BOOST_TEST(read("one,two", true) == "one*|two*");
  BOOST_TEST(read(file("one\n\ntwo, three\r\n four")) == "one|two, three| four");
  BOOST_TEST(read(file(R"(["one", {"content": "two", "special": true}, {"content": "three"}])")) == "one|two*|three");
  BOOST_TEST(read(file(R"(["one", {"content": "two", "special": false, "normalized": true}])"), true) == "one*|two");
  CHECK_CONTAINS(message_of([&] { read(file("")); }), "has no tokens (one per line, or a JSON list)");
  BOOST_TEST(read(file("[TOOL]\n[/TOOL]\n"), true) == "[TOOL]*|[/TOOL]*");
  CHECK_CONTAINS(message_of([&] { read(file("[\"a\", 1]")); }), "has the entry 1 (a new token is a text");
  CHECK_CONTAINS(message_of([&] { read(file("[\"one\"")); }), "is no list of new tokens");
  CHECK_CONTAINS(message_of([&] { read(file(R"([{"content": "two", "lstrip": true}])")); }),
                 "sets lstrip of the token \"two\" to true");
  CHECK_CONTAINS(message_of([&] { read(file("one\ntwo\none\n")); }), "has 'one' twice");
  CHECK_CONTAINS(message_of([&] { read("one,,two"); }), "has an empty one, or one that is not UTF-8");
  CHECK_CONTAINS(message_of([&] { read("absent.txt"); }), "there is no file absent.txt with new tokens");
}

BOOST_AUTO_TEST_CASE(tokenizers_grow) {
  const TemporaryFolder folder;
  std::filesystem::copy_file(FSDP_TEST_DATA "/tokenizers/gpt2.json", folder / "tokenizer.json");
  write_file(folder / "tokenizer_config.json", R"({"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": {}})");
  const auto before = open_tokenizer(folder.path().string());
  const std::size_t first = before->vocab_size();
  const std::string text = "a frobnicate, unfrobnicated <x>";
  BOOST_TEST(!before->find("frobnicate").has_value());
  for (const TokenizerFile& file :
       with_new_tokens(read_files_of_tokenizer(folder.path().string()), {{"frobnicate"}, {"<x>", true}}, first))
    write_file(folder / file.name, file.text);
  const auto after = open_tokenizer(folder.path().string());
  BOOST_TEST(after->vocab_size() == first + 2);
  BOOST_TEST(after->find("frobnicate").value() == static_cast<TokenId>(first));
  const std::vector<TokenId> ids = after->encode(text);
  BOOST_TEST(std::count(ids.begin(), ids.end(), static_cast<TokenId>(first)) == 2);
  BOOST_TEST(ids.back() == static_cast<TokenId>(first + 1));
  BOOST_TEST(after->decode(ids) == "a frobnicate, unfrobnicated ");  // the special token is left out
  const nlohmann::json config = read_json_file(folder / "tokenizer_config.json");
  BOOST_TEST(config["added_tokens_decoder"][std::to_string(first + 1)]["special"] == true);
  CHECK_CONTAINS(message_of([&] {
                   with_new_tokens({{"tokenizer.model", ""}}, {{"x"}}, 3);
                 }),
                 "the tokenizer has no tokenizer.json");
}
