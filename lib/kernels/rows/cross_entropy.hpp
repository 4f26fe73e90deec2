// Row bodies of softmax and cross-entropy. The logits of a row lie in pieces of the vocabulary, each a dense matrix of its own.
#pragma once

#include <cstdint>

#include "kernels/element.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// Row r of R: loss[r]; where a gradient is wanted, logits become exp(logit - largest), and factors[r] what makes them the
/// gradient.
struct CrossEntropy {
  float *loss, *factors, *logits;
  const std::int32_t* targets;
  std::size_t R, V, piece;
  float gradient_scale;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    float *out = loss + r, *factor = factors + r;
    const std::int32_t target = targets[r];
    if (target < 0) {
      lanes.once([=]() FSDP_LANE { *out = *factor = 0; });
      return;
    }
    const std::size_t begin_of_target = static_cast<std::size_t>(target) / piece * piece;
    const float at_target = row_of(begin_of_target, r)[static_cast<std::size_t>(target) - begin_of_target];
    float top = -__builtin_huge_valf(), total = 0;
    for (std::size_t begin = 0; begin < V; begin += piece) {
      const float* row = row_of(begin, r);
      top = lanes.max(columns(begin), top, [=](std::size_t v) FSDP_LANE { return row[v]; });
    }
    const bool keep = gradient_scale != 0;
    for (std::size_t begin = 0; begin < V; begin += piece) {
      float* row = row_of(begin, r);
      total += keep ? lanes.sum(columns(begin),
                                [=](std::size_t v) FSDP_LANE {
                                  const float e = exp(row[v] - top);
                                  row[v] = e;
                                  return e;
                                })
                    : lanes.sum(columns(begin), [=](std::size_t v) FSDP_LANE { return exp(row[v] - top); });
    }
    const float scale = gradient_scale;
    lanes.once([=]() FSDP_LANE {
      *out = log(total) + (top - at_target);
      *factor = scale / total;
    });
  }

  FSDP_INLINE std::size_t columns(std::size_t begin) const { return V - begin < piece ? V - begin : piece; }
  FSDP_INLINE float* row_of(std::size_t begin, std::size_t r) const { return logits + R * begin + r * columns(begin); }
};

/// Row r of a piece of `columns` columns, the first of which is column `begin`: the gradient of its logits. d may be `exps`.
template <class E>
struct LogitGradient {
  E* d;
  const float *exps, *factors;
  const std::int32_t* targets;
  std::size_t begin, columns;
  float gradient_scale;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E* out = d + r * columns;
    const float* e = exps + r * columns;
    if (targets[r] < 0) {
      lanes.each(columns, [=](std::size_t v) FSDP_LANE { out[v] = E(0.0f); });
      return;
    }
    const float factor = factors[r], scale = gradient_scale;
    const std::size_t hit = static_cast<std::size_t>(targets[r]) - begin;  // wraps where the target is in another piece
    const float at_target = hit < columns ? e[hit] : 0.0f;
    lanes.sync();
    lanes.each(columns, [=](std::size_t v) FSDP_LANE { out[v] = E(e[v] * factor); });
    lanes.sync();
    if (hit < columns) lanes.once([=]() FSDP_LANE { out[hit] = E(at_target * factor - scale); });
  }
};

}  // namespace fsdp::kernels
