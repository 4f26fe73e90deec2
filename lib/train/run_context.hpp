// The objects that the parts of a training run share. The referenced objects outlive those parts.
#pragma once

#include "comm/agree.hpp"
#include "comm/communicator.hpp"
#include "engine/engine.hpp"
#include "train/flight.hpp"
#include "train/metrics.hpp"
#include "train/options.hpp"

namespace fsdp {

/// The options, the ranks and the log of a run.
struct RunContext {
  const TrainOptions& options;
  Communicator& world;
  Metrics& log;
};

/// A RunContext with the objects of the training loop.
struct LoopContext : RunContext {
  Engine& engine;
  FlightLanes& flight;      // the flight record of this rank
  CheckpointHeader header;  // of each checkpoint, but for the progress
};

/// Saves the current update as Saver::save() does. Collective over world; throws CollectiveError.
void save(const LoopContext& loop, bool wait);

}  // namespace fsdp
