// Cuts rows into sequences while they are read, as Samples cuts tokens that are stored. The memory that this takes does not
// grow with the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/packing.hpp"
#include "data/samples.hpp"
#include "text/tokenizer.hpp"

namespace fsdp {

/// A sequence. Its inputs are all tokens but the last, and its targets all but the first.
struct CutSequence {
  std::span<const TokenId> ids;
  std::span<const TokenId> counts;         // 1 for each token that counts in the loss if it is a target, 0 for each other token
  std::span<const std::size_t> documents;  // the tokens with which documents begin
  std::uint32_t counted = 0;               // targets that count
  std::uint32_t columns = 0;               // up to the last of them
};

class SequenceCutter {
 public:
  using Take = std::function<void(const CutSequence&)>;
  /// `take` gets each sequence, also those without a target that counts. With Packing::best_fit it gets each part of a document
  /// instead, which are packed in windows.
  SequenceCutter(const Cut& cut, Take take) : cut_(cut), take_(std::move(take)) {}

  /// Adds tokens to the current row. `mask` has 1 for each token that counts in the loss, and 0 for the others; if it is empty,
  /// all count.
  void add(std::span<const TokenId> ids, std::span<const TokenId> mask);
  void end_row();
  /// The number of answers that sequences have cut so far.
  std::uint64_t cut_answers() const { return done_.cut_answers; }
  /// Ends the last sequence. Sets the counts of Samples for sequences and long rows, and the number of answers that are cut.
  void finish(DataCounts& counts);

 private:
  bool by_documents() const { return cut_.mode != BreakMode::none; }
  void add_token(TokenId id, TokenId counts);
  bool leaves_out(TokenId counts);
  void cut_answer(TokenId counts);
  void take(std::size_t tokens, std::size_t kept_from);
  void count_sequence(std::size_t targets);
  void pack();

  Cut cut_;
  Take take_;
  // The tokens after the last sequence; before them, the last token of that sequence if it is the first of the next one, too.
  std::vector<TokenId> ids_, counts_;
  std::vector<std::size_t> documents_;     // those of ids_ with which documents begin
  std::uint64_t row_ = 0, row_begin_ = 0;  // tokens of the current row so far, and of all rows before it
  bool has_mask_ = false, answer_is_cut_ = false;
  std::vector<Piece> window_;  // parts of documents that are not packed yet
  DataCounts done_;
};

}  // namespace fsdp
