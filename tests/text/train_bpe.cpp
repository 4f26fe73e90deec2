// Training a BPE tokenizer gives the merges of the definition.
#include <boost/test/unit_test.hpp>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "support/files.hpp"
#include "text/tokenizer.hpp"
#include "text/train_bpe.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

using Words = std::map<std::vector<std::string>, int>;

/// Returns the merges by the definition: repeatedly merges the most frequent adjacent pair, and counts again each time. `order`
/// numbers tokens in the order in which they were made.
std::vector<std::pair<std::string, std::string>> by_definition(Words words, std::size_t merges) {
  std::map<std::string, int> order;
  for (int c = 0; c < 256; ++c) order[std::string(1, static_cast<char>(c))] = c;
  std::vector<std::pair<std::string, std::string>> made;
  while (made.size() < merges) {
    std::map<std::pair<int, int>, std::pair<int, std::pair<std::string, std::string>>> pairs;
    for (const auto& [word, count] : words)
      for (std::size_t i = 0; i + 1 < word.size(); ++i) {
        auto& pair = pairs[{order[word[i]], order[word[i + 1]]}];
        pair.first += count;
        pair.second = {word[i], word[i + 1]};
      }
    const std::pair<int, std::pair<std::string, std::string>>* best = nullptr;
    for (const auto& [key, pair] : pairs)
      if (!best || pair.first > best->first) best = &pair;
    if (!best || best->first < 2) break;
    const auto [left, right] = best->second;
    made.emplace_back(left, right);
    order.emplace(left + right, static_cast<int>(order.size()));
    Words joined;
    for (const auto& [word, count] : words) {
      std::vector<std::string> parts;
      for (std::size_t i = 0; i < word.size(); ++i) {
        const bool joins = i + 1 < word.size() && word[i] == left && word[i + 1] == right;
        parts.push_back(joins ? left + right : word[i]);
        i += joins;
      }
      joined[parts] += count;
    }
    words = std::move(joined);
  }
  return made;
}

}  // namespace

BOOST_AUTO_TEST_CASE(merges_are_those_of_the_definition) {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    Words words;
    std::string text;
    for (int w = 0; w < 300; ++w) {
      std::string word;
      std::vector<std::string> letters;
      for (std::size_t i = 1 + random() % 9; i > 0; --i) {
        word += static_cast<char>('a' + random() % 3);
        letters.emplace_back(1, word.back());
      }
      words[letters] += 1;
      text += word + "\n";
    }
    words[{"\n"}] += 300;
    BpeTrainer whole(256 + 60, {});
    whole.add(text);
    const auto learned = whole.train();
    std::vector<std::pair<std::string, std::string>> merges;
    for (const auto& merge : learned["model"]["merges"])
      merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    BOOST_TEST((merges == by_definition(words, merges.size())));
    BOOST_TEST(merges.size() >= 40u);
  }
}

BOOST_AUTO_TEST_CASE(texts_may_come_in_any_order_and_special_tokens_come_first) {
  const std::string one = "the cat the hat\n", other = "\xff the end\n";
  BpeTrainer a(300, {"<s>", "</s>"}), b(300, {"<s>", "</s>"});
  a.add(one), a.add(other);
  b.add(other), b.add(one);
  const auto learned = a.train();
  BOOST_TEST(learned.dump() == b.train().dump());
  BOOST_TEST(learned["model"]["vocab"]["</s>"] == 1);
  BOOST_TEST(learned["added_tokens"].size() == 2u);

  const TemporaryFolder folder;
  write_file(folder / "tokenizer.json", learned.dump());
  const auto tokenizer = open_tokenizer(folder.path().string());
  BOOST_TEST(tokenizer->vocab_size() == learned["model"]["vocab"].size());
  const auto ids = tokenizer->encode("<s>the bat</s>");
  BOOST_TEST(ids.front() == 0);
  BOOST_TEST(ids.back() == 1);
  BOOST_TEST(tokenizer->decode(ids) == "the bat");
  BOOST_CHECK_THROW(BpeTrainer(257, {"<s>", "</s>"}), UserError);
}
