// Predicts the time of an update on a GPU from the plan's operations and the GPU's datasheet, without measurements. The time of
// an operation follows from its FLOPs and bytes. An operation starts when its stream is free and the operations that it waits
// for have ended.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "device/gpu_figures.hpp"
#include "fsdp/sharded_model.hpp"
#include "fsdp/traffic.hpp"

namespace fsdp {

/// The fractions of a datasheet's rates and bandwidths that operations are assumed to reach. They are typical of good kernels
/// and libraries at large sizes, and were not measured with this program.
struct Efficiency {
  double products = 0.70;   // of the peak rate of matrix products
  double attention = 0.30;  // of the same peak rate: about 300 TFLOP/s on an H100
  double memory = 0.85;     // of the memory bandwidth, for kernels that compute little
  double transfers = 0.80;  // of the bandwidth of links, network and PCIe
};

/// Seconds of one update on one rank.
struct StepPrediction {
  double total = 0;
  double products = 0, attention = 0, memory_bound = 0;  // of forward and backward, on the compute stream
  double optimizer = 0;
  double communication = 0;  // of all collectives
  double offload = 0;        // of copies from and to host memory, added up although the two directions overlap
  double exposed = 0;        // all time in which the compute stream does not compute
};

/// `gpu.network_bandwidth` must not be 0 if the cluster has several nodes.
StepPrediction predict_update(const Transformer& model, const ShardingOptions& options, MeshShape mesh, const Cluster& cluster,
                              const GpuFigures& gpu, const Efficiency& efficiency = {});

/// Returns the tokens per second of all ranks.
double tokens_per_second(const StepPrediction& step, const ShardingOptions& options, const Cluster& cluster);
/// Returns the model FLOPs per second as a share of the GPU's peak (docs/glossary.md: MFU).
double predicted_mfu(const StepPrediction& step, const Transformer& model, const ShardingOptions& options,
                     const GpuFigures& gpu);

nlohmann::json to_json(const GpuFigures& gpu, const Efficiency& efficiency = {});

}  // namespace fsdp
