// LAMB and Adafactor: optimizers that need sums over whole tensors. Private to lib/optim.
#pragma once

#include "kernels/exact_sum.hpp"
#include "optim/optimizer.hpp"

namespace fsdp {

/// The i-th exact sum of a tensor in a round's words; exact sums come first in them.
inline kernels::ExactSum& sum_of(const UnitMemory& memory, const OptimizerSlice& slice, int round, std::size_t i) {
  const auto r = static_cast<std::size_t>(round);
  return reinterpret_cast<kernels::ExactSum*>(memory.statistics[r] + memory.tensors[slice.tensor].words[r])[i];
}

std::size_t lamb_words(const Shape& shape, int round);
void lamb_statistics(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step,
                     int round);
void update_lamb(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step);

std::size_t adafactor_words(const Shape& shape, int round);
void adafactor_statistics(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step,
                          int round);
void update_adafactor(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step);

}  // namespace fsdp
