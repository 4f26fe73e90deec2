#include "fsdp-data/sequences.hpp"

#include <algorithm>
#include <utility>

namespace fsdp {

void SequenceCutter::add(std::span<const TokenId> ids, std::span<const TokenId> mask) {
  has_mask_ |= !mask.empty();
  for (std::size_t i = 0; i < ids.size(); ++i) add_token(ids[i], mask.empty() || mask[i] == 1 ? 1 : 0);
}

void SequenceCutter::add_token(TokenId id, TokenId counts) {
  const std::size_t T = cut_.T;
  if (row_ == 0) documents_.push_back(ids_.size());
  if (row_ == 0 && cut_.positions) counts = 0;
  ++row_;
  if (row_ == 1 || counts == 0) answer_is_cut_ = false;
  if (leaves_out(counts)) return;
  ids_.push_back(id), counts_.push_back(counts);
  if (ids_.size() <= T + 1) return;
  if (by_documents() && !documents_.empty() && documents_.back() > 0)  // the current row does not fit to those before it
    return take(documents_.back(), documents_.back());
  cut_answer(counts);
  take(T + 1, T);
}

/// A sequence ends before the current token, which has these `counts`. Counts an answer that both belong to, once.
void SequenceCutter::cut_answer(TokenId counts) {
  if (has_mask_ && row_ > 1 && counts_[cut_.T] == 1 && counts == 1) done_.cut_answers += !std::exchange(answer_is_cut_, true);
}

/// Returns true for a token after the first T + 1 of a row that is not split. These are then the only tokens in ids_.
bool SequenceCutter::leaves_out(TokenId counts) {
  const std::size_t most = cut_.T + 1;
  if (cut_.long_rows == LongRows::split || row_ <= most) return false;
  if (row_ == most + 1 && cut_.long_rows == LongRows::truncate) {
    ++done_.truncated_rows;
    cut_answer(counts);
    take(most, most);
  } else if (row_ == most + 1) {
    ++done_.dropped_rows;
    done_.lost_targets += static_cast<std::uint64_t>(std::count(counts_.begin() + 1, counts_.end(), 1));
    ids_.clear(), counts_.clear(), documents_.clear();
  }
  done_.lost_targets += counts == 1;
  return true;
}

void SequenceCutter::end_row() {
  const std::uint64_t T = cut_.T, first_end = by_documents() ? row_begin_ + T : (row_begin_ / T + 1) * T;
  const bool is_cut = first_end + 1 < row_begin_ + row_;
  done_.cut_rows += is_cut && cut_.long_rows == LongRows::split;
  const bool joins =
      cut_.mode == BreakMode::none || (cut_.mode == BreakMode::complete && cut_.packing == Packing::first_come && !is_cut);
  if (!joins) take(ids_.size(), ids_.size());
  row_begin_ += row_;
  row_ = 0;
}

/// Makes a sequence of the first tokens, and keeps those from `kept_from` on.
void SequenceCutter::take(std::size_t tokens, std::size_t kept_from) {
  const auto last = std::lower_bound(documents_.begin(), documents_.end(), tokens);
  CutSequence sequence{std::span(ids_).first(tokens), std::span(counts_).first(tokens),
                       std::span(documents_).first(static_cast<std::size_t>(last - documents_.begin()))};
  for (std::uint32_t i = 1; i < tokens; ++i)
    if (counts_[i] == 1) ++sequence.counted, sequence.columns = i;
  if (tokens > 1) take_(sequence);
  done_.idle_sequences += tokens > 1 && sequence.counted == 0;
  if (sequence.counted > 0) {
    done_.targets += sequence.counted;
    const std::size_t row_end = sequence.documents.empty() ? tokens : sequence.documents.front();  // of one that began before
    for (std::size_t i = 1; i < row_end; ++i) done_.late_targets += counts_[i] == 1;
    if (cut_.packing == Packing::first_come)
      count_sequence(tokens - 1);
    else
      window_.push_back({window_.size(), sequence.columns, 0});
    if (window_.size() == packing_window) pack();
  }
  const auto from = static_cast<std::ptrdiff_t>(kept_from);
  ids_.erase(ids_.begin(), ids_.begin() + from);
  counts_.erase(counts_.begin(), counts_.begin() + from);
  std::erase_if(documents_, [&](std::size_t begin) { return begin < kept_from; });
  for (std::size_t& begin : documents_) begin -= kept_from;
}

void SequenceCutter::count_sequence(std::size_t targets) {
  ++done_.sequences;
  done_.padding += cut_.T - targets;
}

void SequenceCutter::pack() {
  for (const std::vector<Piece>& sequence : best_fit(window_, cut_.T))
    count_sequence(sequence.back().at + sequence.back().targets);
  window_.clear();
}

void SequenceCutter::finish(DataCounts& counts) {
  if (row_ > 0) end_row();
  take(ids_.size(), ids_.size());
  pack();
  const bool depend_on_rows = by_documents() || cut_.positions || has_mask_;
  counts.targets = done_.targets;
  counts.sequences = done_.sequences, counts.positions = done_.sequences * cut_.T, counts.padding = done_.padding;
  counts.truncated_rows = done_.truncated_rows, counts.dropped_rows = done_.dropped_rows;
  counts.lost_targets = done_.lost_targets;
  counts.cut_rows = depend_on_rows ? done_.cut_rows : 0, counts.late_targets = depend_on_rows ? done_.late_targets : 0;
  counts.idle_sequences = done_.idle_sequences, counts.cut_answers = done_.cut_answers;
}

}  // namespace fsdp
