// Decides the scalars of the next update (learning rate, loss scale, clipping) and whether an update counts (overflows and
// spikes do not).
#pragma once

#include <optional>

#include "fsdp/executor.hpp"
#include "fsdp/sharded_model.hpp"
#include "optim/loss_scaler.hpp"
#include "optim/spike_filter.hpp"
#include "train/run_context.hpp"
#include "train/saver.hpp"
#include "train/train_data.hpp"

namespace fsdp {

enum class Verdict {
  done,
  left_out,  // it overflowed in fp16 or was a spike; the data are consumed, but only loss scale and spike statistics change
  refused    // loss or gradient is not finite, and no lower loss scale can help
};

class UpdatePolicy {
 public:
  UpdatePolicy(const LoopContext& loop, const TrainBatches& batches);

  UpdateScalars next_update() const;
  /// Returns the verdict on an update that has run. `done` and `left_out` advance the position in the data; `done` also
  /// advances the update number and the token count.
  Verdict judge(const UpdateScalars& scalars, const UpdateResult& result);

 private:
  void note_end_of_schedule();

  const LoopContext& loop_;
  const TrainBatches& batches_;
  std::optional<LossScaler> scaler_;  // fp16
  std::optional<SpikeFilter> spikes_;
};

/// Ends the run after an update with a loss or gradient that is not finite. The message names the first operation in the plan
/// that produced a non-finite value, and the first rank where it did. Collective; all ranks throw CollectiveError.
[[noreturn]] void refuse_update(const LoopContext& loop, Saver& saver, const UpdateScalars& scalars,
                                const UpdateResult& result);

}  // namespace fsdp
