// The sequences that a rank reads in each micro-batch. They depend only on the global position in the data, so that a run
// that is resumed at another world size continues exactly where the earlier run stopped. Letters: B sequences per micro-batch
// and rank, T tokens, K micro-batches, G = B K ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "data/length_order.hpp"
#include "data/mixture.hpp"

namespace fsdp {

/// Divides an update's sequences into K x ranks micro-batches of B sequences. The ranks get them in turn: micro-batch
/// k of rank r is micro-batch k * ranks + r of the update. If B stays the same, so do the sequences of each micro-batch, at any
/// number of ranks.
struct BatchCut {
  std::size_t B = 1, T = 1, K = 1;
  int rank = 0, ranks = 1;
  /// The index, within the update, of the first sequence in this rank's micro-batch `micro`.
  std::size_t first_sequence(std::size_t micro) const {
    return (micro * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(rank)) * B;
  }
  std::size_t sequences_per_update() const { return B * K * static_cast<std::size_t>(ranks); }
};

/// The order in which a run reads its data, and the number of passes.
struct DataOrder {
  std::optional<std::uint64_t> shuffle_seed = {};  // if not set, the data are read in the order of the files
  std::uint64_t passes = 0;                        // passes over the data; 0: no end
  std::optional<std::uint64_t> length_seed = {};   // if set, sequences of similar lengths are read together (LengthOrder)
};

/// The training data. Sequence s of the run is sequence s of the mixture, which is the n-th sequence that the mixture takes
/// from one of its data sets, and so this data set's sequence n mod count. After its last sequence a data set starts again, if
/// necessary within an update. If the data are shuffled, the order of a pass over a data set depends only on the seed, the data
/// set and the number of the pass (permutation.hpp). Padding of short sequences and of the last update has target -1, which
/// does not count in the loss.
class TrainBatches {
 public:
  /// The mixture must outlive this object.
  TrainBatches(const Mixture& data, BatchCut cut, std::size_t vocab_size, DataOrder order = {});
  /// Reads this rank's micro-batch `micro` (0 .. K-1) of the update that starts after `position` consumed sequences: inputs[B
  /// T], targets[B T], and positions[B T] after the targets if the data are cut with positions. Throws UserError for a token
  /// outside the vocabulary. Does not allocate.
  void read(std::uint64_t position, std::size_t micro, std::int32_t* inputs, std::int32_t* targets) const;
  /// The number of targets that count in the update after `position` consumed sequences, over all ranks.
  std::uint64_t targets(std::uint64_t position) const;
  /// The position at which the next update starts.
  std::uint64_t after(std::uint64_t position) const { return std::min(position + cut_.sequences_per_update(), end_); }
  /// Returns true if all passes are done.
  bool at_end(std::uint64_t position) const { return position >= end_; }
  /// The number of updates from `position` to the end of all passes; nullopt if there is no end.
  std::optional<std::uint64_t> updates_left(std::uint64_t position) const;
  /// The columns of the sequence at position s, up to its last target that counts.
  std::uint32_t columns(std::uint64_t s) const;
  struct Place {
    const Samples* samples;  // the data set that has the sequence; null after the end of all passes
    std::uint64_t sequence;
  };
  /// The place of the sequence at position s.
  Place place_of(std::uint64_t s) const;

 private:
  Place ungrouped(std::uint64_t s) const;

  const Mixture& data_;
  BatchCut cut_;
  std::size_t vocab_size_;
  DataOrder order_;
  std::uint64_t end_;  // the position after all passes
  std::optional<LengthOrder> by_length_;
};

/// The validation data. Every target is read once, also in the last, shorter sequence, and every rank has the same number of
/// batches. Padding of the last batches has target -1, which does not count in the loss. cut.K is not used.
class ValidBatches {
 public:
  /// Throws UserError if the data have no target. The data must outlive this object. If `most` is not 0, a rank has at most so
  /// many batches, and the sequences after them are not read.
  ValidBatches(const Samples& data, BatchCut cut, std::size_t vocab_size, std::size_t most = 0);
  std::size_t batches() const { return batches_; }
  /// The number of targets that count, over all ranks.
  std::size_t targets() const { return targets_; }
  /// Reads batch b of this rank: inputs[B T], targets[B T], and positions[B T] after the targets as in TrainBatches::read().
  void read(std::size_t b, std::int32_t* inputs, std::int32_t* targets) const;
  /// Makes a batch in which no target counts.
  void clear(std::int32_t* inputs, std::int32_t* targets) const;

 private:
  const Samples& data_;
  BatchCut cut_;
  std::size_t vocab_size_, batches_, targets_;
};

}  // namespace fsdp
