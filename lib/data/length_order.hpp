// The order of a run's sequences by length, so that the sequences of a micro-batch are about as long as each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace fsdp {

/// The words for this order in DataPosition::order.
inline const char* order_by_length(bool grouped) { return grouped ? ", by length" : ""; }

/// A permutation of the sequences of each pass, inside windows: 4,096 sequences, or a quarter of a short pass. A window is
/// sorted by columns, the longest first, and cut into parts of an eighth of the window, or of 32 sequences if that is more. The
/// parts are read in a random order. So the order depends on the data and the seed only, and not on the batch or the number of
/// ranks; and lengths change during the window. (Transformers' `group_by_length` sorts windows of 50 batches of all ranks
/// instead.)
class LengthOrder {
 public:
  /// `columns(s)` returns the columns of sequence s of the run, and depends on s only.
  LengthOrder(std::uint64_t per_pass, std::uint64_t seed, std::function<std::uint32_t(std::uint64_t)> columns);

  /// The sequence that is read at position s. The thread that reads batches and the one that counts their targets may call it
  /// at the same time: it keeps the two windows that were used last.
  std::uint64_t at(std::uint64_t s) const;

 private:
  struct Window {
    std::uint64_t number;
    std::vector<std::uint32_t> order;  // indices in the window
  };
  void fill(Window& window, std::uint64_t begin) const;

  std::uint64_t per_pass_, size_, seed_;  // size_: sequences of a window, but the last of a pass may have fewer
  std::function<std::uint32_t(std::uint64_t)> columns_;
  mutable std::mutex mutex_;
  mutable Window last_, before_;
};

}  // namespace fsdp
