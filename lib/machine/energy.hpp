// Measures the energy that a job's processors and GPUs consume, if the machine reports it. Processors are read through Linux's
// powercap (Intel's RAPL, also on AMD; on most machines only root may read it), GPUs through NVML. The counters cover whole
// processors and GPUs, so other programs on them are included.
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

/// Energy in joules. `processors` is empty if a node does not report the energy of its processors; `gpus` is empty if a GPU
/// does not report its energy or if the job has no GPUs.
struct Energy {
  std::optional<double> processors, gpus;
};

class EnergyMeter {
 public:
  /// The first rank on each node reads the node's processors, and the first rank on each GPU reads that GPU. Collective over
  /// node.
  EnergyMeter(const Device& device, Group& node, const std::filesystem::path& powercap = "/sys/class/powercap");
  ~EnergyMeter();
  EnergyMeter(const EnergyMeter&) = delete;
  /// Reads the processors' counters, at most every 10 s. Call it after each update: counters wrap around, some after half a
  /// minute at full load.
  void look();
  /// The energy since construction, summed over all nodes. Collective over world.
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
  std::unique_ptr<Nvml> nvml_;  // null: this rank reads no GPU, or NVML does not report the GPU's energy
  Timer since_look_;
};

}  // namespace fsdp
