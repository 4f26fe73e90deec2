// Predicts the time of an update on a GPU from the plan's operations and the GPU's datasheet, without measurements. The time of
// an operation follows from its FLOPs and bytes. An operation starts when its stream is free and the operations that it waits
// for have ended.
#pragma once

#include <array>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "device/gpu_figures.hpp"
#include "plan/sharding.hpp"
#include "plan/traffic.hpp"

namespace fsdp {

/// The fraction of a figure of the datasheet that some work is assumed to reach. The sources that name an H200 are this
/// program's measurements (docs/performance.md, 2026-11-26).
struct AssumedEfficiency {
  std::string_view name, work;  // in JSON and in text
  double fraction;
  std::string_view of, source;
};
inline constexpr std::array assumed_efficiencies = {
    AssumedEfficiency{"products", "matrix products", 0.68, "the peak rate", "60 to 73 % on an H200 at its power limit"},
    AssumedEfficiency{"attention_forward", "attention, forward", 0.25, "the peak rate", "21 to 25 % on an H200"},
    AssumedEfficiency{"attention_backward", "attention, backward", 0.16, "the peak rate", "14 to 18 % on an H200"},
    AssumedEfficiency{"memory", "other kernels, the optimizer", 0.65, "the memory bandwidth",
                      "18 to 84 % on an H200, the optimizer 67 %"},
    AssumedEfficiency{"transfers", "collectives, offloading", 0.80, "the link bandwidth",
                      "not measured; usual for good libraries at large sizes"}};

consteval double assumed_efficiency(std::string_view name) {
  for (const AssumedEfficiency& assumed : assumed_efficiencies)
    if (assumed.name == name) return assumed.fraction;
  throw "the name is not in the table";
}
struct Efficiency {
  double products = assumed_efficiency("products"), attention_forward = assumed_efficiency("attention_forward"),
         attention_backward = assumed_efficiency("attention_backward"), memory = assumed_efficiency("memory"),
         transfers = assumed_efficiency("transfers");
};

/// The rates of a node's disk, in bytes per second. The node's ranks share them. Reads and writes run at the same time.
struct DiskRates {
  double read = 0, write = 0;  // 0: unknown
  bool known() const { return read > 0 && write > 0; }
};

/// Seconds of one update on one rank.
struct StepPrediction {
  double total = 0;
  // On the compute stream; with `exposed` they add up to `total`. The first three are of forward and backward.
  double products = 0, attention = 0, memory_bound = 0, optimizer = 0;
  double communication = 0;  // of all collectives
  double offload = 0;        // of copies from and to host memory, added up although the two directions overlap
  double disk = 0;           // of reads and writes of files, added up in the same way
  double exposed = 0;        // all time in which the compute stream does not compute
};

/// `gpu.network_bandwidth` must not be 0 if the cluster has several nodes. `disk` must be known if state is in a file.
StepPrediction predict_update(const Transformer& model, const ShardingOptions& options, MeshShape mesh, const Cluster& cluster,
                              const GpuFigures& gpu, const DiskRates& disk = {}, const Efficiency& efficiency = {});

/// Returns the tokens per second of all ranks.
double tokens_per_second(const StepPrediction& step, const ShardingOptions& options, const Cluster& cluster);
/// Returns the model FLOPs per second as a share of the GPU's peak (docs/glossary.md: MFU).
double predicted_mfu(const StepPrediction& step, const Transformer& model, const ShardingOptions& options,
                     const GpuFigures& gpu);

/// Returns the GPU's figures and the assumed efficiencies.
nlohmann::json to_json(const GpuFigures& gpu);

}  // namespace fsdp
