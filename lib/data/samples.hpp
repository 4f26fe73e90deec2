// How a row of tokens is cut into sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "data/tokens.hpp"

namespace fsdp {

/// Where sequences may be cut, in fairseq's words (sample_break_mode): after so many tokens, wherever that is; only between
/// documents, of which a sequence holds as many as fit; or at each document's end, one to a sequence. A document that is longer
/// than a sequence takes several.
enum class BreakMode { none, complete, eos };

struct Cut {
  std::size_t T = 1;  // tokens of a sequence
  BreakMode mode = BreakMode::none;
  /// The token with which a document ends, for data whose format does not say where documents begin.
  std::optional<std::size_t> end_of_document = {};
  /// Documents do not attend to each other: sequences have the position of each token in its document, and the first token of
  /// a document is no target.
  bool positions = false;
};
/// Returns true if the data must say where documents begin.
inline bool needs_documents(const Cut& cut) { return (cut.mode != BreakMode::none || cut.positions) && !cut.end_of_document; }

/// Sequences of T inputs and T targets, each the token after its input. docs/targets.md says which targets count.
/// Immutable.
class Samples {
 public:
  /// `mask`: a number for each token, 1 where it counts as a target and 0 where not; null: that of the tokens, if they have
  /// one, or all count. A sequence of which nothing counts is left out. Throws UserError if documents are asked for and cannot
  /// be told apart, or if the mask does not belong to the tokens.
  ///
  /// With BreakMode::none, no mask and no positions, sequence k is tokens [kT, kT + T]; else the constructor stores the places
  /// of all sequences (16 bytes each), and reads all of the mask, and all tokens if one of them ends documents.
  /// Documents take 8 bytes each, where an index says where they begin.
  Samples(std::unique_ptr<const Tokens> tokens, const Cut& cut, std::unique_ptr<const Tokens> mask = nullptr);

  std::size_t T() const { return cut_.T; }
  const Cut& cut() const { return cut_; }
  /// Sequences that have all targets; those at an end may be shorter than T.
  std::uint64_t count() const;
  /// Targets that count: of all sequences, and of one.
  std::uint64_t targets() const { return targets_; }
  std::uint64_t targets_of(std::uint64_t k) const { return place_of(k).counted; }
  struct Place {
    std::uint64_t begin;
    std::uint32_t targets, counted;  // tokens [begin, begin + targets]; so many of the targets count
  };
  /// Of sequence k; past the last one the end of the tokens. Places are in order, and no token is a target of two.
  Place place_of(std::uint64_t k) const;
  /// Copies sequence k: inputs[T], targets[T], and, if the cut has them, positions[T] of the inputs in their documents, as far
  /// as these lie in the sequence. Targets that do not count are -1. Where the sequence has ended inputs are 0, each a document
  /// of its own; nothing is in those behind the last one. Throws UserError if a token is not below vocab_size, with its place
  /// and value, and what Tokens::read() throws. Allocates nothing of ours.
  void read(std::uint64_t k, std::size_t vocab_size, std::int32_t* inputs, std::int32_t* targets,
            std::int32_t* positions = nullptr) const;
  /// Sets out[i] to 1 if token begin + i counts when it is a target, else to 0. The tokens must exist. Throws UserError for a
  /// mask with other numbers, and what Tokens::read() throws.
  void read_counts(std::uint64_t begin, std::span<std::uint32_t> out) const;
  /// Returns true if some sequences are left out because none of their targets counts.
  bool leaves_out() const { return leaves_out_; }
  const Tokens& tokens() const { return *tokens_; }
  /// Null: all targets count.
  const Tokens* mask() const { return mask_.get(); }
  /// The number of documents; 0 if neither the mode nor positions depend on them.
  std::uint64_t documents() const { return document_count_; }
  /// Checksums of where the documents begin, and of which tokens count by the mask; 0 if there are none.
  std::uint64_t documents_sum() const { return documents_sum_; }
  std::uint64_t mask_sum() const { return mask_sum_; }

 private:
  bool has_places() const { return cut_.mode != BreakMode::none || mask_ || cut_.positions; }
  void find_places();
  void find_places_by_documents();
  void count_targets();
  void find_positions(const Place& place, const std::int32_t* inputs, std::int32_t* positions) const;

  std::unique_ptr<const Tokens> tokens_, mask_;  // no mask: all count
  Cut cut_;
  std::vector<Place> places_;             // if has_places()
  std::vector<std::uint64_t> documents_;  // where they begin, if positions are to be told and no token does
  std::uint64_t targets_ = 0, document_count_ = 0, documents_sum_ = 0, mask_sum_ = 0;
  bool leaves_out_ = false;
};

}  // namespace fsdp
