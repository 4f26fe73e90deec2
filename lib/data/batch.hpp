// Which sequences a rank reads when: functions of the global position in the data, so that a run resumed at another world size
// goes on exactly where the last one stopped. Letters: B sequences per micro-batch and rank, T tokens, K micro-batches, G = B K
// ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "data/mixture.hpp"

namespace fsdp {

/// How an update's sequences are cut: into K x ranks micro-batches of B, dealt to the ranks in turn, so that micro-batch k of
/// rank r is number k ranks + r. With B fixed, a micro-batch has the same sequences at any number of ranks.
struct BatchCut {
  std::size_t B = 1, T = 1, K = 1;
  int rank = 0, ranks = 1;
  /// The first sequence of this rank's micro-batch `micro`, counted from the beginning of the update.
  std::size_t first_sequence(std::size_t micro) const {
    return (micro * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(rank)) * B;
  }
  std::size_t sequences_per_update() const { return B * K * static_cast<std::size_t>(ranks); }
};

/// The order in which a run reads its data, and for how long.
struct DataOrder {
  std::optional<std::uint64_t> shuffle_seed = {};  // else that of the files
  std::uint64_t passes = 0;                        // over the data; 0: without an end
};

/// The training data. Sequence s of the run is sequence s of the mixture, and so the n-th of some data set: sequence n mod its
/// count. After the last one the data set starts again, in the midst of an update if need be. Shuffled, each pass over a data
/// set is in an order of its own, which depends on (seed, data set, pass) alone (permutation.hpp). What fills up a short
/// sequence, and the last update, has target -1, which does not count.
class TrainBatches {
 public:
  /// The mixture must outlive this.
  TrainBatches(const Mixture& data, BatchCut cut, std::size_t vocab_size, DataOrder order = {});
  /// This rank's micro-batch `micro` (0 .. K-1) of the update that starts after `position` consumed sequences: inputs[B T],
  /// targets[B T], and behind the targets, if data are cut with them, positions[B T]. Throws UserError for a token outside the
  /// vocabulary. Does not allocate.
  void read(std::uint64_t position, std::size_t micro, std::int32_t* inputs, std::int32_t* targets) const;
  /// Targets that count in that update, over all ranks.
  std::uint64_t targets(std::uint64_t position) const;
  /// Where the next update starts.
  std::uint64_t after(std::uint64_t position) const { return std::min(position + cut_.sequences_per_update(), end_); }
  /// Whether all passes are done.
  bool at_end(std::uint64_t position) const { return position >= end_; }
  /// Updates from there to the end of all passes; none where there is no end.
  std::optional<std::uint64_t> updates_left(std::uint64_t position) const;

 private:
  struct Place {
    const Samples* samples;  // none past the end of all passes
    std::uint64_t sequence;
  };
  Place place_of(std::uint64_t s) const;

  const Mixture& data_;
  BatchCut cut_;
  std::size_t vocab_size_;
  DataOrder order_;
  std::uint64_t end_;  // of all passes
};

/// Validation data: every target once (also those of the last, shorter sequence), in the same number of batches on
/// every rank. What fills up the last ones has target -1, which does not count. K is not used.
class ValidBatches {
 public:
  /// Throws UserError if the data hold no target. They must outlive this.
  ValidBatches(const Samples& data, BatchCut cut, std::size_t vocab_size);
  std::size_t batches() const { return batches_; }
  /// Targets that count, over all ranks.
  std::size_t targets() const { return data_.targets(); }
  /// Batch b of this rank: inputs[B T], targets[B T], and positions as above.
  void read(std::size_t b, std::int32_t* inputs, std::int32_t* targets) const;
  /// A batch of which nothing counts.
  void clear(std::int32_t* inputs, std::int32_t* targets) const;

 private:
  const Samples& data_;
  BatchCut cut_;
  std::size_t vocab_size_, batches_;
};

}  // namespace fsdp
