// Cuts a row of tokens into sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "data/packing.hpp"
#include "data/tokens.hpp"

namespace fsdp {

/// The rule for cutting tokens into sequences, with fairseq's names (sample_break_mode). `none` cuts after every T
/// tokens. `complete` cuts only between documents, and puts as many documents into a sequence as fit. `eos` puts one document
/// into each sequence. With the last two, a document that is longer than T tokens takes several sequences.
enum class BreakMode { none, complete, eos };

/// What becomes of a document of more than T + 1 tokens, with `complete` and `eos`: it takes several sequences, only its first
/// T targets are used, or it is not used.
enum class LongRows { split, truncate, drop };
/// Which documents share a sequence, with `complete`: each joins the one before it if it fits, or best_fit().
enum class Packing { first_come, best_fit };

struct Cut {
  std::size_t T = 1;  // tokens per sequence
  BreakMode mode = BreakMode::none;
  /// The token that ends each document, for data that do not store where documents begin. It overrides what data store.
  std::optional<std::size_t> end_of_document = {};
  /// If true, attention stays within documents. Sequences then have the position of each token in its document, and the first
  /// token of a document is no target.
  bool positions = false;
  LongRows long_rows = LongRows::split;
  Packing packing = Packing::first_come;  // best_fit: only with `complete` and positions
};
/// Returns true if documents matter for this cut, and no token ends them. The data's format must then store where they begin.
inline bool needs_documents(const Cut& cut) { return (cut.mode != BreakMode::none || cut.positions) && !cut.end_of_document; }

/// Throws UserError if needs_documents(cut) is true and the data do not store where documents begin.
void require_documents(const Tokens& tokens, const Cut& cut);
/// Throws UserError if the mask has not one number for each token.
void require_same_size(const Tokens& tokens, const Tokens& mask);
/// The error for a number in a mask that is neither 0 nor 1, and the one for data without the token that ends documents.
UserError is_no_mask(const Tokens& mask, std::uint64_t at, std::uint32_t number);
UserError has_no_end(const std::string& tokens, std::size_t end_of_document);

/// Sequences of T inputs and T targets. The target of an input is the token after it. docs/targets.md defines which targets
/// count. Immutable.
class Samples {
 public:
  /// `mask` has a number for each token: 1 if it counts as a target, else 0. If `mask` is null, the tokens' own mask is used;
  /// if there is none, all targets count. A sequence without a target that counts is left out. Throws UserError if
  /// needs_documents(cut) is true and the data do not store where documents begin, or if the mask does not belong to the
  /// tokens.
  ///
  /// With BreakMode::none, no mask and no positions, sequence k is tokens [kT, kT + T]. Otherwise the constructor stores the
  /// places of all sequences (24 bytes each; with best_fit, 16 more for each piece of a document). It reads the whole mask, and
  /// all tokens if cut.end_of_document is set. If the data store where documents begin, 8 more bytes per document are needed.
  Samples(std::unique_ptr<const Tokens> tokens, const Cut& cut, std::unique_ptr<const Tokens> mask = nullptr);

  std::size_t T() const { return cut_.T; }
  const Cut& cut() const { return cut_; }
  /// The number of sequences. Together the sequences have all targets. A sequence at the end of the data or of a document may
  /// be shorter than T.
  std::uint64_t count() const;
  /// The number of targets that count in the loss: targets() in all sequences, targets_of(k) in sequence k.
  std::uint64_t targets() const { return targets_; }
  std::uint64_t targets_of(std::uint64_t k) const { return place_of(k).counted; }
  struct Place {
    std::uint64_t begin;
    std::uint32_t targets, counted;  // it has tokens [begin, begin + targets]; `counted` of its targets count
    std::uint32_t columns;           // up to the last target that counts
  };
  /// Returns the place of sequence k, or the end of the tokens if k is not below count(). Places are in order, and no token is
  /// a target of two sequences. With best_fit, a sequence has tokens of several places, and `begin` is that of the first.
  Place place_of(std::uint64_t k) const;
  /// Copies sequence k: inputs[T], targets[T], and, if cut().positions, positions[T] of the inputs in their documents.
  /// Positions count from the beginning of the document, or of the sequence if the document begins before it. Targets that do
  /// not count are -1. After the end of a short sequence inputs are 0, and each is a document of its own; sequences after the
  /// last one are empty. Throws UserError with place and value of a token that is not below vocab_size, and what Tokens::read()
  /// throws. Does not allocate.
  void read(std::uint64_t k, std::size_t vocab_size, std::int32_t* inputs, std::int32_t* targets,
            std::int32_t* positions = nullptr) const;
  /// Sets out[i] to 1 if token begin + i counts as a target, else to 0. The tokens must exist. Throws UserError for a mask with
  /// numbers other than 0 and 1, and what Tokens::read() throws.
  void read_counts(std::uint64_t begin, std::span<std::uint32_t> out) const;
  /// Returns true if some sequences are left out because none of their targets counts.
  bool leaves_out() const { return leaves_out_; }
  const Tokens& tokens() const { return *tokens_; }
  /// The mask; null if all targets count.
  const Tokens* mask() const { return mask_.get(); }
  /// A warning if cut().end_of_document ends other documents than those that the data store; else empty.
  const std::string& doubt() const { return doubt_; }
  /// The number of documents; 0 if the cut does not depend on documents.
  std::uint64_t documents() const { return document_count_; }
  /// What the data have, and how they are cut. If no sequence depends on documents or a mask, rows are not known to be cut.
  const DataCounts& counts() const { return counts_; }
  /// documents_sum() is a checksum of where documents begin, and mask_sum() one of the mask's counts; 0 if there are none.
  std::uint64_t documents_sum() const { return documents_sum_; }
  std::uint64_t mask_sum() const { return mask_sum_; }

 private:
  bool has_places() const { return cut_.mode != BreakMode::none || mask_ || cut_.positions; }
  bool is_packed() const { return cut_.packing == Packing::best_fit; }
  void find_places_by_documents();
  void pack();
  void count_targets();
  void count_rows();
  void count_sequences();
  std::uint64_t counted_between(std::uint64_t begin, std::uint64_t end) const;
  void read_piece(const Piece& piece, std::size_t vocab_size, std::int32_t* inputs, std::int32_t* targets) const;
  void find_positions(const Place& place, const std::int32_t* inputs, std::int32_t* positions) const;

  std::unique_ptr<const Tokens> tokens_, mask_;  // mask_ is null if all targets count
  Cut cut_;
  std::vector<Place> places_;  // the places of all sequences; empty unless has_places()
  std::vector<Piece> pieces_;  // of all sequences, if they are packed; those of sequence k begin at first_piece_[k]
  std::vector<std::uint64_t> first_piece_;
  std::vector<std::uint64_t> documents_;  // where documents begin; only if positions are needed and no token ends documents
  std::uint64_t targets_ = 0, document_count_ = 0, documents_sum_ = 0, mask_sum_ = 0;
  bool leaves_out_ = false;
  DataCounts counts_;
  std::string doubt_;
};

}  // namespace fsdp
