// How much energy a job's processors and GPUs have taken, where the machine tells: processors through Linux's powercap (Intel's
// RAPL, also on AMD; on most machines only root may read it), GPUs through NVML. Counters are those of whole processors and
// GPUs: what else runs there counts, too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/timer.hpp"
#include "comm/communicator.hpp"
#include "device/device.hpp"

namespace fsdp {

/// Joules; nothing where some node or GPU does not tell.
struct Energy {
  std::optional<double> processors, gpus;
};

class EnergyMeter {
 public:
  /// The first rank of each node reads its processors, the first of each GPU that GPU. Collective over node.
  EnergyMeter(const Device& device, Group& node, const std::filesystem::path& powercap = "/sys/class/powercap");
  ~EnergyMeter();
  EnergyMeter(const EnergyMeter&) = delete;
  /// Call it after each update: counters wrap, some after half a minute at full load. Looks every 10 s at most.
  void look();
  /// Since construction, of all nodes. Collective over world.
  Energy total(Group& world);

 private:
  struct Counter {
    std::filesystem::path file;
    std::uint64_t last_uj = 0, range_uj = 0;
  };
  class Nvml;
  void add_up();

  bool reads_processors_, reads_gpu_ = false, has_gpu_;
  std::vector<Counter> processors_;
  double processors_j_ = 0;
  std::unique_ptr<Nvml> nvml_;  // null: not told
  Timer since_look_;
};

}  // namespace fsdp
