// Row body of softmax and cross-entropy, forward and backward in one visit of the row.
#pragma once

#include <cstdint>

#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

struct CrossEntropy {
  float *loss, *logits;
  const std::int32_t* targets;
  std::size_t V;
  float gradient_scale;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    float *row = logits + r * V, *out = loss + r;
    const std::int32_t target = targets[r];
    if (target < 0) {
      if (gradient_scale != 0) lanes.each(V, [=](std::size_t v) FSDP_LANE { row[v] = 0; });
      lanes.once([=]() FSDP_LANE { *out = 0; });
      return;
    }
    const float at_target = row[target];
    const float top = lanes.max(V, -__builtin_huge_valf(), [=](std::size_t v) FSDP_LANE { return row[v]; });
    float total;
    if (gradient_scale != 0) {
      total = lanes.sum(V, [=](std::size_t v) FSDP_LANE {
        const float e = exp(row[v] - top);
        row[v] = e;
        return e;
      });
      const float factor = gradient_scale / total, scale = gradient_scale;
      lanes.each(V, [=](std::size_t v) FSDP_LANE { row[v] *= factor; });
      lanes.sync();
      lanes.once([=]() FSDP_LANE { row[target] -= scale; });
    } else {
      total = lanes.sum(V, [=](std::size_t v) FSDP_LANE { return exp(row[v] - top); });
    }
    lanes.once([=]() FSDP_LANE { *out = log(total) + (top - at_target); });
  }
};

}  // namespace fsdp::kernels
