// What changes from update to update: the numbers that an update gets (loss scale, clipping, dropout), and whether its result
// counts (overflows and spikes do not).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.hpp"
#include "engine/options.hpp"
#include "optim/loss_scaler.hpp"
#include "optim/spike_filter.hpp"
#include "run/sharded_model.hpp"

namespace fsdp {

enum class Verdict {
  done,
  left_out,  // it overflowed in fp16 or was a spike; only loss scale and spike statistics change
  refused    // loss or gradient is not finite, and no lower loss scale can help
};

class UpdatePolicy {
 public:
  /// `options` and `progress` must outlive this object. `rank` is that of this process in the world.
  UpdatePolicy(const EngineOptions& options, const Model& model, int rank, Progress& progress);
  /// Takes loss scale and spike statistics from the progress. Call it after a checkpoint was loaded.
  void restore();
  /// The numbers of the next update. `tokens`: the targets that count (or their weights), on all ranks.
  UpdateScalars next(double learning_rate, double tokens) const;
  /// Returns the verdict on an update that has run. `done` advances the number of updates, and that of tokens by `tokens`.
  Verdict judge(const UpdateResult& result, double tokens);

 private:
  const EngineOptions& options_;
  const Dropout dropout_;
  Progress& progress_;
  std::optional<LossScaler> scaler_;  // fp16
  std::optional<SpikeFilter> spikes_;
};

/// Describes what was not finite in an update that was refused: "update 3 is not finite (loss nan, 12 infinite or NaN elements
/// in the gradient, first in the output of block 0 in the forward pass on rank 1), so the weights were not changed". Names the
/// first operation in the plan that produced such a value, and the first rank where it did. Collective.
std::string describe_refused(ShardedModel& model, Group& world, const UpdateScalars& scalars, const UpdateResult& result);

}  // namespace fsdp
