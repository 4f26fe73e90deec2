// A copy, in host memory, of the parameters, optimizer states and average of a rank's shards. With it, the state of a run moves
// to another plan of the same model: see FullyShardedDataParallel::freeze().
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "device/device.hpp"
#include "run/sharded_model.hpp"

namespace fsdp {

class HostStates {
 public:
  /// Copies the states of `model`, as fp32 numbers. Not collective.
  explicit HostStates(ShardedModel& model);

  /// Writes the states to `model`, which must have the same layout as the model that they were copied from. Not collective.
  void copy_to(ShardedModel& model) const;
  /// Writes the states to `model`, whose layout may differ. States of parameters that had none, because they were frozen, are
  /// not written; the average of such a parameter becomes the parameter. Uses 16 MiB of memory. Collective over world.
  void move_to(ShardedModel& model, Communicator& world) const;

 private:
  struct State {
    std::string name;
    Extent extent;
    std::vector<std::span<float>> units;  // as ShardState::units; empty if the unit does not have this state
  };
  const State* find(const std::string& name) const;
  bool has(const State& state, std::size_t parameter) const { return !state.units[unit_of_[parameter]].empty(); }
  void move_elements(const State& from, std::size_t parameter, const ShardState& to, std::size_t unit, const Layout& layout,
                     int shard, Communicator& world) const;
  void move_factors(const State& from, std::size_t parameter, const ShardState& to, std::size_t unit,
                    const Layout& layout) const;

  Layout layout_;
  int shard_;
  bool is_first_copy_;  // of the replicas of the model
  std::vector<std::size_t> unit_of_;
  Buffer memory_;  // one allocation, so that the system gets it back at once
  std::vector<State> states_;
};

}  // namespace fsdp
