// What fsdp-tokenize writes, token by token.
#define BOOST_TEST_MODULE cli.tokenize_content
#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <string>
#include <vector>

#include "data/token_file.hpp"
#include "support/files.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

void tokenize(const std::string& arguments) {
  BOOST_TEST_REQUIRE(std::system((FSDP_TOKENIZE " " + arguments + " > /dev/null").c_str()) == 0);
}

std::string text_of(const std::filesystem::path& path) {
  const TokenFile file(path);
  const std::size_t T = file.tokens() - 1;
  std::vector<std::int32_t> inputs(T), targets(T);
  file.read(0, T, 256, inputs.data(), targets.data());
  std::string text(1, static_cast<char>(inputs[0]));
  for (const auto target : targets) text += static_cast<char>(target);
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
