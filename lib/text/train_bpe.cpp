#include "text/train_bpe.hpp"

#include <algorithm>
#include <optional>
#include <queue>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "text/bpe.hpp"
#include "text/byte_alphabet.hpp"
#include "text/pre_tokenizer.hpp"
#include "text/utf8.hpp"

namespace fsdp {

namespace {

const nlohmann::json& words_of_gpt2() {
  static const nlohmann::json description = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  return description;
}

/// The words, each as a list of tokens, and how often each pair of tokens is adjacent in words.
class Neighbours {
 public:
  using Pair = std::pair<TokenId, TokenId>;

  explicit Neighbours(const std::vector<std::pair<std::string, std::uint64_t>>& words) {
    for (const auto& [word, count] : words) {
      std::vector<TokenId> tokens;
      for (const char byte : word) tokens.push_back(static_cast<unsigned char>(byte));
      words_.push_back({std::move(tokens), count});
      add(words_.size() - 1, 1);
    }
    for (const auto& [pair, of_it] : pairs_) heap_.push({of_it.count, pair});
  }

  /// Returns the most frequent pair, or the one with the lowest ids if several are equally frequent. Returns nullopt if no pair
  /// occurs twice.
  std::optional<Pair> most_frequent() {
    while (!heap_.empty()) {
      const auto [count, pair] = heap_.top();
      heap_.pop();
      const std::uint64_t now = pairs_.at(pair).count;
      if (now == count && now > 1) return pair;
      if (now != count && now > 1) heap_.push({now, pair});
    }
    return std::nullopt;
  }

  void join(Pair pair, TokenId joined) {
    const std::vector<std::size_t> where = std::move(pairs_.at(pair).words);
    std::vector<Pair> changed;
    for (const std::size_t w : where) {
      std::vector<TokenId>& tokens = words_[w].tokens;
      std::size_t kept = 0;
      bool is_there = false;
      for (std::size_t i = 0; i + 1 < tokens.size() && !is_there; ++i) is_there = Pair(tokens[i], tokens[i + 1]) == pair;
      if (!is_there) continue;  // an earlier merge has removed the pair from this word
      add(w, -1);
      for (std::size_t i = 0; i < tokens.size(); ++kept) {
        const bool joins = i + 1 < tokens.size() && Pair(tokens[i], tokens[i + 1]) == pair;
        tokens[kept] = joins ? joined : tokens[i];
        i += joins ? 2 : 1;
      }
      tokens.resize(kept);
      add(w, 1);
      for (std::size_t i = 0; i + 1 < tokens.size(); ++i)
        if (tokens[i] == joined || tokens[i + 1] == joined) changed.emplace_back(tokens[i], tokens[i + 1]);
    }
    std::sort(changed.begin(), changed.end());
    changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
    for (const Pair& one : changed) heap_.push({pairs_.at(one).count, one});
  }

 private:
  struct Word {
    std::vector<TokenId> tokens;
    std::uint64_t count;
  };
  struct Occurrences {
    std::uint64_t count = 0;
    std::vector<std::size_t> words;  // words that have or had the pair; may contain a word twice
  };
  struct PairHash {
    std::size_t operator()(const Pair& pair) const {
      return static_cast<std::size_t>(
          (std::uint64_t{static_cast<std::uint32_t>(pair.first)} << 32 | static_cast<std::uint32_t>(pair.second)) *
              0x9e3779b97f4a7c15 >>
          16);
    }
  };
  struct Candidate {
    std::uint64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const { return count != other.count ? count < other.count : pair > other.pair; }
  };

  /// Adds (sign 1) or subtracts (-1) the pairs of a word.
  void add(std::size_t w, int sign) {
    const Word& word = words_[w];
    for (std::size_t i = 0; i + 1 < word.tokens.size(); ++i) {
      Occurrences& of_it = pairs_[{word.tokens[i], word.tokens[i + 1]}];
      of_it.count += sign > 0 ? word.count : -word.count;
      if (sign > 0 && (of_it.words.empty() || of_it.words.back() != w)) of_it.words.push_back(w);
    }
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, Occurrences, PairHash> pairs_;
  std::priority_queue<Candidate> heap_;
};

}  // namespace

BpeTrainer::BpeTrainer(std::size_t vocab_size, std::vector<std::string> special_tokens)
    : vocab_size_(vocab_size), special_tokens_(std::move(special_tokens)) {
  if (vocab_size_ < 256 + special_tokens_.size())
    throw UserError(format("a tokenizer of {} tokens has no room for the 256 bytes and {} special tokens; ask for more",
                           vocab_size_, special_tokens_.size()));
  for (const std::string& token : special_tokens_) special_.add({.id = 0, .content = token});
}

void BpeTrainer::add(std::string_view text) {
  if (valid_until(text) < text.size()) return add(with_replacements(text));
  const PreTokenizer words(words_of_gpt2());
  for (const TextSection& section : special_.find_all(text)) {
    if (section.id >= 0) continue;
    const Pieces pieces = words(std::string(text.substr(section.range.begin, section.range.end - section.range.begin)), true);
    for (const TextRange& range : pieces.ranges) ++words_[pieces.text.substr(range.begin, range.end - range.begin)];
  }
}

nlohmann::ordered_json BpeTrainer::train(const std::function<void(std::size_t tokens)>& progress) const {
  std::vector<std::pair<std::string, std::uint64_t>> words(words_.begin(), words_.end());
  std::sort(words.begin(), words.end());
  Neighbours neighbours(words);
  std::vector<std::string> texts;  // the tokens' texts; 0 to 255 are the bytes
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  const ByteAlphabet alphabet;
  nlohmann::ordered_json merges = nlohmann::ordered_json::array();
  std::unordered_map<std::string, TokenId> known;
  for (std::size_t i = 0; i < texts.size(); ++i) known.emplace(texts[i], narrow<TokenId>(i));
  while (special_tokens_.size() + texts.size() < vocab_size_) {
    if (progress) progress(special_tokens_.size() + texts.size());
    const auto pair = neighbours.most_frequent();
    if (!pair) break;
    const std::string &left = texts[static_cast<std::size_t>(pair->first)],
                      &right = texts[static_cast<std::size_t>(pair->second)];
    merges.push_back({alphabet.written(left), alphabet.written(right)});
    // Two pairs can join to the same text. Both merges then give the same token.
    const auto [at, is_new] = known.emplace(left + right, narrow<TokenId>(texts.size()));
    if (is_new) texts.push_back(at->first);
    neighbours.join(*pair, at->second);
  }

  nlohmann::ordered_json vocabulary, added = nlohmann::ordered_json::array();
  std::size_t id = 0;
  for (const std::string& token : special_tokens_) {
    vocabulary[token] = id;
    added.push_back({{"id", id},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    ++id;
  }
  for (const std::string& text : texts) vocabulary[alphabet.written(text)] = id++;
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", words_of_gpt2()},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocabulary},
            {"merges", merges}}}};
}

}  // namespace fsdp
