// Texts of a model with random weights: the same as without a cache, for any number of prompts and ranks.
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "generate/model.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

struct Case {
  const char* name;
  TransformerConfig config;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
const Case kCases[] = {{"gpt2", small_gpt2()}, {"llama", small_llama()}};

struct RandomModel : ModelRun {
  RandomModel(const TransformerConfig& config, std::uint32_t seed) : ModelRun(config, 96) { randomize(seed, 0.3f); }
};

/// `count` prompts of different lengths, one token and more.
std::vector<std::vector<TokenId>> some_prompts(std::size_t count) {
  std::vector<std::vector<TokenId>> prompts(count);
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t t = 0; t < 1 + i * 7 % 30; ++t) prompts[i].push_back(static_cast<TokenId>((i * 31 + t * 17) % 256));
  return prompts;
}

}  // namespace

BOOST_DATA_TEST_CASE(greedy_texts_are_those_without_a_cache, boost::unit_test::data::make(kCases), test_case) {
  RandomModel run(test_case.config, 3);
  Asked asked = {.prompts = some_prompts(5)};
  std::vector<std::vector<TokenId>> expected;
  for (const auto& prompt : asked.prompts) expected.push_back(greedy(run, prompt, asked.options.max_new_tokens));
  for (const char* strategy : {"full", "none"})
    for (const int ranks : {1, 2, 3})
      for (const std::size_t sequences : {1, 2, 5}) {
        asked.strategy = strategy, asked.ranks = ranks, asked.sequences = sequences;
        const std::vector<GeneratedText> texts = generate(run, asked);
        BOOST_TEST_REQUIRE(texts.size() == expected.size());
        for (std::size_t i = 0; i < texts.size(); ++i) {
          BOOST_TEST(texts[i].prompt == i);
          BOOST_TEST(texts[i].tokens == expected[i], boost::test_tools::per_element());
          BOOST_TEST((texts[i].finish == Finish::length));
        }
      }
}

// A text that reaches the longest sequence continues from its newest half.
BOOST_DATA_TEST_CASE(full_sequences_go_on_from_their_newest_half, boost::unit_test::data::make(kCases), test_case) {
  TransformerConfig config = test_case.config;
  config.max_positions = 24;
  RandomModel run(config, 4);
  for (const std::size_t length : {std::size_t{5}, std::size_t{24}, std::size_t{40}}) {
    std::vector<TokenId> prompt;
    for (std::size_t t = 0; t < length; ++t) prompt.push_back(static_cast<TokenId>(t * 19 % 256));
    std::vector<TokenId> known = prompt, expected;
    if (known.size() > 24) known.erase(known.begin(), known.end() - 24);
    while (expected.size() < 60) {
      expected.push_back(greedy(run, known, 1).front());
      known.push_back(expected.back());
      if (known.size() > 24) known.erase(known.begin(), known.end() - 12);
    }
    const auto texts = generate(
        run, {.prompts = {prompt, some_prompts(2)[1]}, .options = {.sampling = {.temperature = 0}, .max_new_tokens = 60}});
    BOOST_TEST(texts[0].tokens == expected, boost::test_tools::per_element());
    BOOST_TEST(texts[1].tokens.size() == 60u);
  }
}

// Random tokens depend on the seed, the prompt's index and the token's index, not on other prompts.
BOOST_AUTO_TEST_CASE(random_texts_do_not_depend_on_the_batch) {
  const RandomModel run(small_llama(), 5);
  Asked asked = {.prompts = some_prompts(4), .options = {.sampling = {.temperature = 0.8, .top_k = 40}, .max_new_tokens = 20}};
  const auto one = generate(run, asked);
  asked.sequences = 4, asked.ranks = 2;
  const auto other = generate(run, asked);
  asked.options.seed = 2;
  const auto another_seed = generate(run, asked);
  for (std::size_t i = 0; i < one.size(); ++i) {
    BOOST_TEST(one[i].tokens == other[i].tokens, boost::test_tools::per_element());
    BOOST_TEST((one[i].tokens != another_seed[i].tokens));
  }
}

BOOST_AUTO_TEST_CASE(texts_end_at_end_tokens_and_before_stop_strings) {
  RandomModel run(small_gpt2(), 6);
  const std::vector<TokenId> prompt = {65, 66};
  std::vector<TokenId> all = greedy(run, prompt, 30);
  const auto first = [&](TokenId token) {
    return static_cast<std::size_t>(std::find(all.begin(), all.end(), token) - all.begin());
  };
  Asked asked = {.prompts = {prompt}, .options = {.sampling = {.temperature = 0}, .max_new_tokens = 30}};
  asked.options.end_tokens = {all[10]};
  auto text = generate(run, asked).front();
  BOOST_TEST((text.finish == Finish::end_token));
  BOOST_TEST(text.tokens.size() == first(all[10]) + 1);

  asked.options.end_tokens = {};
  const std::string whole = generate(run, asked).front().text;
  // A stop string that follows a copy of its own beginning, and one that never occurs.
  for (const std::size_t begin : {std::size_t{0}, whole.size() / 3}) {
    const std::string stop = whole.substr(begin, 5);
    asked.options.stop = {"no such text", stop};
    text = generate(run, asked).front();
    BOOST_TEST((text.finish == Finish::stop_string));
    BOOST_TEST(text.text == whole.substr(0, whole.find(stop)));
  }
  asked.options.stop = {whole.substr(whole.size() - 3) + "and more"};
  text = generate(run, asked).front();
  BOOST_TEST((text.finish == Finish::length));
  BOOST_TEST(text.text == whole);
}

// In bf16 the texts differ from fp32, but are also the same in all cases.
BOOST_AUTO_TEST_CASE(low_precision_generates_as_well) {
  const RandomModel run(small_llama(), 7);
  for (const DType type : {DType::bf16, DType::f16}) {
    Asked asked = {.prompts = some_prompts(3), .type = type};
    const auto one = generate(run, asked);
    asked.ranks = 3;
    const auto other = generate(run, asked);
    for (std::size_t i = 0; i < one.size(); ++i) BOOST_TEST(one[i].text == other[i].text);
  }
}
