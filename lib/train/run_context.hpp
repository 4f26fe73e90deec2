// What the parts of a training run are given. All that is named outlives them.
#pragma once

#include <optional>
#include <type_traits>
#include <utility>

#include "checkpoint/checkpoint.hpp"
#include "comm/agree.hpp"
#include "comm/communicator.hpp"
#include "fsdp/sharded_model.hpp"
#include "train/flight.hpp"
#include "train/metrics.hpp"
#include "train/options.hpp"

namespace fsdp {

/// What is asked for, who takes part, and where the run reports on itself.
struct RunContext {
  const TrainOptions& options;
  Communicator& world;
  Metrics& log;
};

/// Agrees, over run.world, on something that is made, as agree() does, and returns it.
template <class Make>
std::invoke_result_t<Make&> agree(const RunContext& run, Make make) {
  std::optional<std::invoke_result_t<Make&>> made;
  agree(run.world, [&] { made.emplace(make()); });
  return *std::move(made);
}

/// RunContext for the parts of the loop: where the run stands, what it trains, and where what it does is noted.
struct LoopContext : RunContext {
  Progress& progress;
  ShardedModel& model;
  FlightLanes& flight;
};

}  // namespace fsdp
