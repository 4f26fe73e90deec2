// The tokens of a text's parts are those of the whole: for every tokenizer, with random cuts at allowed places.
#include <boost/test/unit_test.hpp>

#include <random>
#include <string>
#include <vector>

#include "files/json.hpp"
#include "support/files.hpp"
#include "text/text_cuts.hpp"
#include "text/tokenizer.hpp"
#include "text/utf8.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

const std::filesystem::path data = FSDP_TEST_DATA "/tokenizers";

/// Returns words, spaces and punctuation of all kinds in random order, and pieces of the sample.
std::string random_text(std::mt19937& random, const std::string& sample) {
  constexpr std::string_view parts[] = {" ",          " ",
                                        " ",          "  ",
                                        "   ",        "\n",
                                        "\n",         "\n\n",
                                        "\r\n",       "\t",
                                        " \n",        "\n ",
                                        "a",          "he",
                                        "hello",      "heaven",
                                        "The",        "word",
                                        "DON'T",      "don't",
                                        "'s",         "'ll",
                                        "'",          "x",
                                        "Z",          "7",
                                        "42",         "2026",
                                        "1234567",    ".",
                                        ",",          "!?",
                                        "...",        "/",
                                        "\u00e9",     "e\u0301",
                                        "\u00c5",     "\u4e2d\u6587",
                                        "\u3002",     "\u2581",
                                        "\u0436",     "\ufb01",
                                        "\u0663",     "\u2003",
                                        "\u00a0",     "\u200b",
                                        "\U0001f600", "<|endoftext|>",
                                        "<mask>",     "<pad>",
                                        "<s>",        "</s>",
                                        "<unk>",      "<|im_start|>",
                                        "\xff",       "\xe2\x82",
                                        "_",          "\u0301",
                                        "-"};
  std::string text;
  while (text.size() < 1500) {
    if (random() % 12 == 0) {
      const std::size_t at = random() % sample.size();
      text += sample.substr(at, random() % 60);
    } else {
      text += parts[random() % std::size(parts)];
    }
  }
  return text;
}

struct Parts {
  std::size_t count = 0, texts_with_other_tokens = 0;
};

/// Compares the tokens of the parts of `text` with those of the whole, and counts the parts.
void check_parts(const Tokenizer& tokenizer, const std::string& text, std::size_t most, std::mt19937& random, Parts& all) {
  const std::vector<TokenId> whole = tokenizer.encode(text);
  std::vector<TokenId> ids;
  for (std::size_t begin = 0, before = 0; begin < text.size(); ++all.count) {
    const std::size_t from = begin - before;
    std::size_t cut = 0;
    for (std::size_t size = 1 + random() % most; cut == 0; size *= 2) {
      const std::string_view window = std::string_view(text).substr(from, before + size);
      if (from + window.size() == text.size()) {
        cut = window.size();
      } else {
        cut = last_cut(window, before, tokenizer.cuts());
      }
    }
    tokenizer.encode_rest(std::string_view(text).substr(from, cut), before, ids);
    begin = from + cut;
    before = tokenizer.cuts().anywhere ? 0 : character_before(text, begin);
  }
  if (ids == whole) return;
  ++all.texts_with_other_tokens;
  BOOST_TEST(tokenizer.decode(ids) == tokenizer.decode(whole));
  BOOST_TEST(ids.size() == whole.size());
}

/// DeepSeek's pre-tokenizer: digits and letters of scripts without spaces first.
nlohmann::json deepseek(const char* letters) {
  nlohmann::json steps = nlohmann::json::array();
  for (const char* expression :
       {R"(\p{N}{1,3})", letters,
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
        "?[\\p{P}\\p{S}]+[\r\n]*|"
        "\\s*[\r\n]+|\\s+(?!\\S)|\\s+"})
    steps.push_back({{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}, {"invert", false}});
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

constexpr const char* chinese_and_kana = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";

}  // namespace

BOOST_AUTO_TEST_CASE(parts_have_the_tokens_of_the_whole) {
  std::vector<std::string> names = {"bytes", (data / "bpe.model").string(), (data / "unigram.model").string()};
  const nlohmann::json expected = read_json_file(data / "expected.json");
  for (const auto& [name, of_it] : expected["tokenizers"].items()) names.push_back((data / (name + ".json")).string());
  BOOST_TEST(names.size() == 17u);
  const TemporaryFolder folder;
  nlohmann::json as_deepseek = read_json_file(data / "llama3.json");
  as_deepseek["pre_tokenizer"] = deepseek(chinese_and_kana);
  write_file(folder / "deepseek.json", as_deepseek.dump());
  names.push_back((folder / "deepseek.json").string());
  const std::string sample = read_file(data / "sample.txt");
  for (const std::string& name : names) {
    BOOST_TEST_CONTEXT(name) {
      const auto tokenizer = open_tokenizer(name);
      std::mt19937 random(1);
      Parts parts;
      for (int trial = 0; trial < 150; ++trial)
        check_parts(*tokenizer, random_text(random, sample), 1 + random() % 200, random, parts);
      check_parts(*tokenizer, sample, 30, random, parts);
      BOOST_TEST(parts.count > 1500u);  // texts are really cut
      // SentencePiece adds up scores in single precision from the beginning of the text: its choice between two equally good
      // ways to split a word depends on the word's position.
      BOOST_TEST(parts.texts_with_other_tokens <= (name.ends_with("unigram.model") ? 10u : 0u));
    }
  }
}

BOOST_AUTO_TEST_CASE(where_nothing_is_known_nothing_is_cut) {
  const TemporaryFolder folder;
  const auto with = [&](const char* key, const nlohmann::json& part) {
    nlohmann::json json = read_json_file(data / "gpt2.json");
    json[key] = part;
    write_file(folder / "tokenizer.json", json.dump());
    return open_tokenizer((folder / "tokenizer.json").string())->cuts();
  };
  const auto split = [&](const char* expression, const char* behavior) -> nlohmann::json {
    return {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", behavior}, {"invert", false}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  };
  BOOST_TEST(with("pre_tokenizer", split(R"( ?\p{L}+|\s+)", "Isolated")).at_space);
  BOOST_TEST(!with("pre_tokenizer", split(R"(\p{L}+ \p{L}+|\s+)", "Isolated")).at_space);
  BOOST_TEST(!with("pre_tokenizer", split(R"( ?\p{L}+|\s+)", "MergedWithPrevious")).at_space);
  BOOST_TEST(!with("normalizer", {{"type", "Replace"}, {"pattern", {{"String", "a "}}}, {"content", "b"}}).at_space);
  BOOST_TEST(!with("added_tokens", {{{"id", 500}, {"content", "in the"}, {"special", true}}}).at_space);
  BOOST_TEST(with("pre_tokenizer", deepseek(chinese_and_kana)).at_space);
  BOOST_TEST(with("normalizer", {{"type", "NFC"}}).after_any_letter);
  BOOST_TEST(!with("normalizer", {{"type", "NFD"}}).after_any_letter);
  BOOST_TEST(
      !with("normalizer", {{"type", "Replace"}, {"pattern", {{"String", "\u4e2d"}}}, {"content", "-"}}).after_any_letter);
  BOOST_TEST(!with("pre_tokenizer", deepseek(R"([a-z ]+)")).at_space);
  const CutRules none;
  BOOST_TEST(last_cut("a b", 0, none) == 0u);
  BOOST_TEST(last_cut("a b c", 0, with("normalizer", nullptr)) == 3u);
  BOOST_TEST(last_cut("a b c", 1, with("normalizer", nullptr)) == 3u);
  BOOST_TEST(last_cut("a b c", 3, with("normalizer", nullptr)) == 0u);
  BOOST_TEST(last_cut("\u4e2d\n", 0, with("normalizer", nullptr)) == 3u);
  BOOST_TEST(last_cut("\u3002\n", 0, with("normalizer", nullptr)) == 0u);
  BOOST_TEST(last_cut("\u4e2d\n", 0, with("normalizer", {{"type", "NFD"}})) == 0u);
}
