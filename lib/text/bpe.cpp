#include "text/bpe.hpp"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "text/utf8.hpp"

namespace fsdp {

namespace {

std::size_t hash_of(TokenId left, TokenId right) {
  const std::uint64_t key = std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15) >> 20);
}

}  // namespace

Bpe::Bpe(std::vector<std::string> tokens, const std::vector<std::pair<std::string, std::string>>& merges, const BpeRules& rules)
    : tokens_(std::move(tokens)), rules_(rules), is_whole_(std::make_unique<std::atomic<Whole>[]>(tokens_.size())) {
  vocabulary_.reserve(tokens_.size());
  for (std::size_t id = 0; id < tokens_.size(); ++id)
    if (!tokens_[id].empty()) vocabulary_.emplace(tokens_[id], narrow<TokenId>(id));
  for (const std::string& token : tokens_)
    for (std::size_t left = 0, at = 0; at < token.size();) {
      const std::size_t right = at;
      next_unit(token, at);
      if (right > 0) neighbours_.insert(std::string_view(token).substr(left, at - left));
      left = right;
    }
  has_all_bytes_ = std::all_of(rules_.of_byte.begin(), rules_.of_byte.end(), [](TokenId id) { return id >= 0; });
  has_all_units_ = has_all_bytes_;
  if (rules_.units == BpeRules::Units::bytes && !has_all_units_) {
    has_all_units_ = true;
    for (int byte = 0; byte < 256; ++byte) has_all_units_ = has_all_units_ && find(std::string(1, static_cast<char>(byte)));
  }
  mask_ = std::bit_ceil(2 * merges.size() + 1) - 1;
  merges_.resize(mask_ + 1);
  std::uint32_t rank = 0;
  for (const auto& [left, right] : merges) {
    const auto a = find(left), b = find(right), both = find(left + right);
    if (!a || !b || !both)
      throw UserError(
          format("merge {} joins \"{}\" and \"{}\", but {} is no token (the file is damaged, or its merges belong to "
                 "another vocabulary); fetch it again",
                 rank, excerpt(left), excerpt(right),
                 !a   ? "the first"
                 : !b ? "the second"
                      : "the joined text"));
    std::size_t at = hash_of(*a, *b) & mask_;
    while (merges_[at].left >= 0 && (merges_[at].left != *a || merges_[at].right != *b)) at = (at + 1) & mask_;
    merges_[at] = {*a, *b, *both, rank++};  // if a pair has two merges, the later one counts
  }
}

std::optional<TokenId> Bpe::find(std::string_view text) const {
  const auto found = vocabulary_.find(text);
  return found == vocabulary_.end() ? std::nullopt : std::optional(found->second);
}

const Bpe::Merge* Bpe::find_merge(TokenId left, TokenId right) const {
  for (std::size_t at = hash_of(left, right) & mask_;; at = (at + 1) & mask_) {
    const Merge& merge = merges_[at];
    if (merge.left == left && merge.right == right) return &merge;
    if (merge.left < 0) return nullptr;
  }
}

void Bpe::encode(std::string_view piece, std::vector<TokenId>& ids) const {
  if (rules_.ignores_merges)
    if (const auto whole = find(piece)) return ids.push_back(*whole);
  for (std::size_t begin = 0; begin < piece.size();) {
    const std::size_t end = end_of_part(piece, begin);
    encode_part(piece.substr(begin, end - begin), ids);
    begin = end;
  }
}

std::size_t Bpe::end_of_part(std::string_view piece, std::size_t begin) const {
  constexpr std::size_t short_piece = 24;  // looking for a cut in a shorter piece takes longer than the cut saves
  if (piece.size() - begin <= short_piece) return piece.size();
  // No cut is safe if adjacent unknown units become one token, or if unknown units are dropped (their neighbours may merge).
  if (!has_all_units_ && (!rules_.unknown || rules_.fuses_unknown)) return piece.size();
  std::size_t at = begin, left = begin;
  next_unit(piece, at);
  while (at < piece.size()) {
    const std::size_t right = at;
    next_unit(piece, at);
    if (!neighbours_.contains(piece.substr(left, at - left))) return right;
    left = right;
  }
  return piece.size();
}

void Bpe::next_unit(std::string_view piece, std::size_t& at) const {
  if (rules_.units == BpeRules::Units::bytes) {
    ++at;
  } else {
    next_character(piece, at);
  }
}

void Bpe::encode_part(std::string_view part, std::vector<TokenId>& ids) const {
  const auto whole = find(part);
  if (whole && is_whole_[static_cast<std::size_t>(*whole)].load(std::memory_order_relaxed) == Whole::yes)
    return ids.push_back(*whole);
  std::vector<Symbol> symbols;
  first_symbols(part, symbols);
  const std::size_t before = ids.size();
  if (!symbols.empty()) {
    merge(symbols);
    for (std::int32_t i = 0; i >= 0; i = symbols[static_cast<std::size_t>(i)].after)
      ids.push_back(symbols[static_cast<std::size_t>(i)].id);
  }
  if (whole)
    is_whole_[static_cast<std::size_t>(*whole)].store(ids.size() == before + 1 && ids.back() == *whole ? Whole::yes : Whole::no,
                                                      std::memory_order_relaxed);
}

void Bpe::first_symbols(std::string_view piece, std::vector<Symbol>& symbols) const {
  symbols.reserve(piece.size());
  bool after_unknown = false;
  const auto add = [&](TokenId id) {
    const auto i = narrow<std::int32_t>(symbols.size());
    symbols.push_back({id, i - 1, i + 1});
    after_unknown = false;
  };
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t begin = at;
    next_unit(piece, at);
    const std::string_view unit = piece.substr(begin, at - begin);
    if (const auto id = find(unit)) {
      add(*id);
      continue;
    }
    const auto of_byte = [&](char c) { return rules_.of_byte[static_cast<unsigned char>(c)]; };
    if (std::all_of(unit.begin(), unit.end(), [&](char c) { return of_byte(c) >= 0; })) {
      for (const char c : unit) add(of_byte(c));
    } else if (rules_.unknown && !(after_unknown && rules_.fuses_unknown)) {
      add(*rules_.unknown);
      after_unknown = true;
    }
  }
  if (!symbols.empty()) symbols.back().after = -1;
}

void Bpe::merge(std::vector<Symbol>& symbols) const {
  struct Candidate {
    std::uint32_t rank;
    std::int32_t at;  // index of the left symbol
    TokenId result;
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };
  std::vector<Candidate> heap;
  heap.reserve(symbols.size());
  const auto symbol = [&](std::int32_t i) -> Symbol& { return symbols[static_cast<std::size_t>(i)]; };
  const auto merge_at = [&](std::int32_t i) -> const Merge* {
    return symbol(i).after < 0 ? nullptr : find_merge(symbol(i).id, symbol(symbol(i).after).id);
  };
  for (std::int32_t i = 0; i < narrow<std::int32_t>(symbols.size()); ++i)
    if (const Merge* merge = merge_at(i)) heap.push_back({merge->rank, i, merge->result});
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto consider = [&](std::int32_t i) {
    if (i < 0) return;
    if (const Merge* merge = merge_at(i)) {
      heap.push_back({merge->rank, i, merge->result});
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  };
  constexpr TokenId gone = -1;
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const Candidate best = heap.back();
    heap.pop_back();
    Symbol& left = symbol(best.at);
    if (left.id == gone) continue;
    const Merge* const merge = merge_at(best.at);  // the symbols may have changed since this candidate was added
    if (merge == nullptr || merge->result != best.result) continue;
    Symbol& right = symbol(left.after);
    left.id = best.result;
    left.after = right.after;
    right.id = gone;
    if (left.after >= 0) symbol(left.after).before = best.at;
    consider(left.before);
    consider(best.at);
  }
}

}  // namespace fsdp
