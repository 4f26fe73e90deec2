// How long an update would take on a GPU: worked out from the plan's operations and the figures of the GPU's datasheet, and
// measured nowhere. Each operation gets a time from what it computes or moves, and starts on its stream once those that it
// waits for are done.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "device/gpu_figures.hpp"
#include "fsdp/sharded_model.hpp"
#include "fsdp/traffic.hpp"

namespace fsdp {

/// The parts of a datasheet's figures that work is taken to reach. They are what good kernels and libraries were seen to reach
/// on large sizes, not what this program was seen to.
struct Efficiency {
  double products = 0.70;   // of the peak of products
  double attention = 0.30;  // of the same: about 300 TFLOP/s on an H100
  double memory = 0.85;     // of the memory's bandwidth, for all that computes little
  double transfers = 0.80;  // of the bandwidth of links, network and PCIe
};

/// Seconds of one update on one rank.
struct StepPrediction {
  double total = 0;
  double products = 0, attention = 0, memory_bound = 0;  // of forward and backward, on the compute stream
  double optimizer = 0;
  double communication = 0;  // of all collectives
  double offload = 0;        // of copies from the host's memory and back, which go both ways at once
  double exposed = 0;        // that the compute stream waits, for transfers and for sums over them
};

/// `gpu.network_bandwidth` must not be 0 if the cluster has several nodes.
StepPrediction predict_update(const Transformer& model, const ShardingOptions& options, MeshShape mesh, const Cluster& cluster,
                              const GpuFigures& gpu, const Efficiency& efficiency = {});

/// Updates of one second, in tokens of all ranks, and the share of all GPUs' peak for the model's FLOPs (docs/glossary.md:
/// MFU).
double tokens_per_second(const StepPrediction& step, const ShardingOptions& options, const Cluster& cluster);
double predicted_mfu(const StepPrediction& step, const Transformer& model, const ShardingOptions& options,
                     const GpuFigures& gpu);

nlohmann::json to_json(const GpuFigures& gpu, const Efficiency& efficiency = {});

}  // namespace fsdp
