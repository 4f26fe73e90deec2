// The options of an Engine. TrainOptions extends them.
#pragma once

#include <cstddef>

#include "comm/communicator.hpp"
#include "optim/loss_scaler.hpp"
#include "run/executor.hpp"
#include "run/sharded_model.hpp"

namespace fsdp {

struct UpdateOptions {
  double dropout = 0, attention_dropout = 0, neftune_alpha = 0;  // the dropout of adapters is part of the model
  double label_smoothing = 0, z_loss = 0;
  double clip_norm = 0, clip_value = 0;  // 0: no clipping
  double ema_decay = 0;                  // of the average of the weights; 0: none is kept
  std::size_t ema_start_update = 0;      // until this update, the average is a copy of the weights
  double skip_spikes = 0;                // threshold in standard deviations; 0: no update is left out as a spike
  LossScalerOptions loss_scaler;         // fp16 only
};

struct EngineOptions : UpdateOptions {
  ShardingOptions sharding = {.batch = {.B = 1, .T = 1024}};
  ExecutorOptions execution;
  CommOptions comm = {.kind = "auto"};
  // Bytes of a rank; 0: none. With a memory limit, pieces of logits get smaller until a rank needs no more, unless the same
  // bits are wanted at any number of ranks: the size of pieces changes bits. With recompute_to_fit, the plan recomputes the
  // fewest blocks with which a rank needs no more.
  std::size_t memory_limit = 0, recompute_to_fit = 0;
  std::size_t seed = 1;
};

}  // namespace fsdp
