// The objects that the parts of a training run share. The referenced objects outlive those parts.
#pragma once

#include <functional>

#include "comm/agree.hpp"
#include "comm/communicator.hpp"
#include "engine/engine.hpp"
#include "options/options.hpp"
#include "record/flight.hpp"
#include "record/metrics.hpp"

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

/// Runs `work` with a flight record of this rank's operations, and returns the exit code of `work`. Removes the record if all
/// ranks end together, normally or with a CollectiveError. Keeps the record if this rank dies or throws any other exception,
/// because the other ranks may not know of such an end. Collective over run.world.
int with_flight_record(const RunContext& run, DeviceKind device, const std::function<int(FlightLanes&)>& work);

/// Saves the current update as Saver::save() does. Collective over world; throws CollectiveError.
void save(const LoopContext& loop, bool wait);

}  // namespace fsdp
