// What fsdp-tokenize writes, token by token.
#define BOOST_TEST_MODULE cli.tokenize_content
#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <string>
#include <vector>

#include "files/json.hpp"
#include "support/files.hpp"
#include "support/tokens.hpp"
#include "text/tokenizer.hpp"
#include "text/utf8.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

void tokenize(const std::string& arguments) {
  BOOST_TEST_REQUIRE(std::system((FSDP_TOKENIZE " " + arguments + " > /dev/null").c_str()) == 0);
}

std::string text_of(const std::filesystem::path& path) {
  std::string text;
  for (const std::uint32_t token : tokens_of(path)) text += static_cast<char>(token);
  return text;
}

}  // namespace

BOOST_AUTO_TEST_CASE(tokens_are_the_bytes_of_the_texts_in_order) {
  const TemporaryFolder folder;
  std::string all_bytes;
  for (int byte = 0; byte < 256; ++byte) all_bytes += static_cast<char>(byte);
  write_file(folder / "a", "first\n");
  write_file(folder / "b", all_bytes);
  const std::string at = folder.path().string();
  tokenize(at + "/b " + at + "/a --out " + at + "/t.bin");
  BOOST_TEST(text_of(folder / "t.bin") == all_bytes + "first\n");
}

BOOST_AUTO_TEST_CASE(tokens_of_a_tokenizer) {
  const TemporaryFolder folder;
  const std::string data = FSDP_TEST_DATA "/tokenizers/", at = folder.path().string();
  const auto ids = read_json_file(data + "expected.json")["tokenizers"]["smollm2"]["ids"].get<std::vector<std::uint32_t>>();
  tokenize(data + "sample.txt --tokenizer " + data + "smollm2.json --out " + at + "/t.bin");
  BOOST_TEST(tokens_of(folder / "t.bin") == ids, boost::test_tools::per_element());

  // An id that does not fit into 16 bits.
  std::string json = read_file(data + "smollm2.json");
  const std::string added = "\"added_tokens\":[";
  json.insert(json.find(added) + added.size(), R"({"id":100000,"content":"QQ","special":true},)");
  write_file(folder / "tokenizer.json", json);
  write_file(folder / "text", "aQQa");
  tokenize(at + "/text --tokenizer " + at + " --out " + at + "/wide.bin");
  const auto wide = tokens_of(folder / "wide.bin");
  BOOST_TEST_REQUIRE(wide.size() == 3u);
  BOOST_TEST(wide[1] == 100000u);
}

BOOST_AUTO_TEST_CASE(a_tokenizer_of_ones_own) {
  const TemporaryFolder folder;
  const std::string at = folder.path().string(), sample = FSDP_TEST_DATA "/tokenizers/sample.txt";
  tokenize(sample + " --train-bpe 400 --tokenizer " + at + "/own --out " + at + "/t.bin");
  const auto tokenizer = open_tokenizer(at + "/own");
  BOOST_TEST(tokenizer->vocab_size() == 400u);
  BOOST_TEST(tokenizer->find("<|endoftext|>").value() == 0);
  std::string text = with_replacements(read_file(sample));
  const auto ids = tokenizer->encode(text);
  BOOST_TEST(tokens_of(folder / "t.bin").size() == ids.size());
  BOOST_TEST(ids.size() < text.size() * 3 / 4);
  const std::string special = "<|endoftext|>";  // is not shown
  for (std::size_t where; (where = text.find(special)) != std::string::npos;) text.erase(where, special.size());
  BOOST_TEST(tokenizer->decode(ids) == text);
  // It is not written over, and another time gives the same.
  BOOST_TEST(std::system((FSDP_TOKENIZE " " + sample + " --train-bpe 400 --tokenizer " + at + "/own --out " + at +
                          "/t.bin 2> /dev/null")
                             .c_str()) != 0);
  tokenize(sample + " --train-bpe 400 --tokenizer " + at + "/again.json --out " + at + "/u.bin");
  BOOST_TEST(read_file(folder / "again.json") == read_file(folder / "own/tokenizer.json"));
}

BOOST_AUTO_TEST_CASE(the_held_out_part_is_the_tail_and_no_character_is_cut) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 41; ++i) text += "\u20ac";  // three bytes each
  write_file(folder / "a", text);
  const std::string at = folder.path().string();
  for (const char* fraction : {"0.1", "0.105", "0.11"}) {
    tokenize(at + "/a --out " + at + "/t.bin --valid-out " + at + "/v.bin --valid-fraction " + fraction);
    const std::string train = text_of(folder / "t.bin"), valid = text_of(folder / "v.bin");
    BOOST_TEST(train + valid == text);
    BOOST_TEST(train.size() % 3 == 0u);
    BOOST_TEST(valid.size() >= 12u);
    BOOST_TEST(valid.size() <= 15u);
  }
}
