// The objects that the parts of a training run share. The referenced objects outlive those parts.
#pragma once

#include "checkpoint/checkpoint.hpp"
#include "comm/agree.hpp"
#include "comm/communicator.hpp"
#include "fsdp/sharded_model.hpp"
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

/// A RunContext with the objects of the training loop: the progress of the run, the model, and the flight record of this rank.
struct LoopContext : RunContext {
  Progress& progress;
  ShardedModel& model;
  FlightLanes& flight;
};

}  // namespace fsdp
