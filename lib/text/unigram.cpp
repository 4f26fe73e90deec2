#include "text/unigram.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "text/utf8.hpp"

namespace fsdp {

namespace {

std::size_t hash_of(std::uint64_t key) { return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15) >> 20); }
std::uint64_t key_of(std::uint32_t node, char byte) {
  return (std::uint64_t{node} << 8 | static_cast<unsigned char>(byte)) + 1;
}

}  // namespace

Unigram::Unigram(std::vector<std::string> tokens, std::vector<double> scores, std::optional<TokenId> unknown,
                 bool byte_fallback)
    : tokens_(std::move(tokens)), scores_(std::move(scores)), unknown_(unknown), byte_fallback_(byte_fallback) {
  std::size_t bytes = 0;
  for (const std::string& token : tokens_) bytes += token.size();
  mask_ = std::bit_ceil(2 * bytes + 1) - 1;
  edges_.resize(mask_ + 1);
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (!std::isfinite(scores_[id]))
      throw UserError(format("the score of token \"{}\" is not a number; fetch the file again", excerpt(tokens_[id])));
    add_to_trie(tokens_[id], narrow<TokenId>(id));  // of two tokens with the same text the later one counts
  }
  constexpr double penalty = 10;
  unknown_score_ = scores_.empty() ? 0 : *std::min_element(scores_.begin(), scores_.end()) - penalty;
}

const Unigram::Edge* Unigram::follow(std::uint32_t node, char byte) const {
  const std::uint64_t key = key_of(node, byte);
  for (std::size_t at = hash_of(key) & mask_;; at = (at + 1) & mask_) {
    if (edges_[at].key == key) return &edges_[at];
    if (edges_[at].key == 0) return nullptr;
  }
}

void Unigram::add_to_trie(std::string_view token, TokenId id) {
  Edge* edge = nullptr;
  for (std::uint32_t node = 0; const char byte : token) {
    const std::uint64_t key = key_of(node, byte);
    std::size_t at = hash_of(key) & mask_;
    while (edges_[at].key != 0 && edges_[at].key != key) at = (at + 1) & mask_;
    edge = &edges_[at];
    if (edge->key == 0) *edge = {key, nodes_++, -1};
    node = edge->node;
  }
  if (edge) edge->token = id;
}

std::optional<TokenId> Unigram::find(std::string_view text) const {
  const Edge* edge = nullptr;
  for (std::uint32_t node = 0; const char byte : text) {
    edge = follow(node, byte);
    if (!edge) return std::nullopt;
    node = edge->node;
  }
  return edge && edge->token >= 0 ? std::optional(edge->token) : std::nullopt;
}

void Unigram::encode(std::string_view piece, std::vector<TokenId>& ids) const {
  constexpr TokenId no_token = -1;
  struct Best {
    double score = 0;
    std::size_t begin = 0;  // where the last token begins
    TokenId token = no_token;
    bool is_there = false;
  };
  std::vector<Best> best(piece.size() + 1);
  const auto offer = [&](std::size_t begin, std::size_t end, TokenId token, double score) {
    Best& there = best[end];
    score += best[begin].score;
    if (!there.is_there || score > there.score) there = {score, begin, token, true};
  };
  for (std::size_t begin = 0, next = 0; begin < piece.size(); begin = next) {
    next_character(piece, next);
    bool has_character = false;
    std::uint32_t node = 0;
    for (std::size_t end = begin; end < piece.size();) {
      const Edge* const edge = follow(node, piece[end]);
      if (!edge) break;
      node = edge->node;
      ++end;
      if (edge->token < 0) continue;
      offer(begin, end, edge->token, scores_[static_cast<std::size_t>(edge->token)]);
      has_character = has_character || end == next;
    }
    if (!has_character) offer(begin, next, no_token, unknown_score_);
  }
  std::vector<std::size_t> ends;
  for (std::size_t end = piece.size(); end > 0; end = best[end].begin) ends.push_back(end);
  std::reverse(ends.begin(), ends.end());
  // If the piece contains the text of the unknown token, this text counts as unknown and is joined with adjacent unknown
  // characters.
  const auto is_unknown = [&](std::size_t end) { return best[end].token == no_token || best[end].token == unknown_; };
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (!is_unknown(ends[i])) {
      ids.push_back(best[ends[i]].token);
      continue;
    }
    const std::size_t begin = best[ends[i]].begin;
    while (i + 1 < ends.size() && is_unknown(ends[i + 1])) ++i;
    append_unknown(piece.substr(begin, ends[i] - begin), ids);
  }
}

void Unigram::append_unknown(std::string_view text, std::vector<TokenId>& ids) const {
  if (const auto known = find(text)) return ids.push_back(*known);
  if (byte_fallback_) {
    const std::size_t before = ids.size();
    for (const char byte : text)
      if (const auto id = find(format("<0x{:02X}>", static_cast<unsigned char>(byte)))) ids.push_back(*id);
    if (ids.size() == before + text.size()) return;
    ids.resize(before);
  }
  if (!unknown_)
    throw RunError(
        format("the tokenizer has no token for \"{}\" and no unknown token; remove this from the text", excerpt(text)));
  ids.push_back(*unknown_);
}

}  // namespace fsdp
