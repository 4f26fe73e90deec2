// How large the next update is, and whether it counts: learning rate, loss scale and spikes.
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
  left_out,  // it overflowed in fp16 or was a spike: its batch is used up, and nothing else is new but loss scale and
             // statistics
  refused    // it is not finite otherwise
};

class UpdatePolicy {
 public:
  UpdatePolicy(const LoopContext& loop, const TrainBatches& batches);

  UpdateScalars next_update() const;
  /// The run stands behind the update then, unless that is refused.
  Verdict judge(const UpdateScalars& scalars, const UpdateResult& result);

 private:
  const LoopContext& loop_;
  const TrainBatches& batches_;
  std::optional<LossScaler> scaler_;  // fp16
  std::optional<SpikeFilter> spikes_;
};

/// Ends the run after an update that is not finite, and says where that began: on the rank that is the first in the order of
/// the plan to have something that is not finite, of its own. Collective; all throw CollectiveError.
[[noreturn]] void refuse_update(const LoopContext& loop, Saver& saver, const UpdateScalars& scalars,
                                const UpdateResult& result);

}  // namespace fsdp
