// AdamW over a rank's shard. Decay is a property of a parameter, so a shard is updated slice by slice.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/device.hpp"

namespace fsdp {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
};

/// A run of elements of a shard that are treated alike.
struct OptimizerSegment {
  std::size_t begin = 0, count = 0;  // elements of the rank's shard
  bool decayed = false;
};

/// State buffers beside the parameters, each as long as the shard; names as in PyTorch's state dict.
inline const std::vector<std::string> adamw_states = {"exp_avg", "exp_avg_sq"};

/// One update of all segments; `update` counts from 1, gradients are multiplied by gradient_scale first. Pointers are to the
/// start of the rank's shard of each kind, fp32.
void adamw_update(Stream& stream, std::span<const OptimizerSegment> segments, float* parameters, float* exp_avg,
                  float* exp_avg_sq, const float* gradients, const AdamWOptions& options, std::uint64_t update,
                  double learning_rate, double gradient_scale);

}  // namespace fsdp
