// Row bodies of softmax and cross-entropy over one piece of the vocabulary. The piece is a matrix whose rows are `stride`
// apart, and whose first column is column `begin` of the logits.
#pragma once

#include <cstdint>

#include "base/element.hpp"
#include "kernels/kernels.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// Row r: updates the statistics of row r with the logits of the piece (Milakov and Gimelshein 2018, "Online normalizer
/// calculation for softmax"). The last piece writes loss[r].
template <class E>
struct CrossEntropy {
  float* loss;
  SoftmaxStats* stats;
  const E* logits;
  const std::int32_t* targets;
  std::size_t begin, columns, stride;
  bool last;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    float* out = loss + r;
    const std::int32_t target = targets[r];
    if (target < 0) {
      lanes.once([=]() FSDP_LANE { *out = 0; });
      return;
    }
    SoftmaxStats* const own = stats + r;
    const E* row = logits + r * stride;
    SoftmaxStats s = begin > 0 ? *own : SoftmaxStats{-__builtin_huge_valf(), 0, 0};
    const float before = s.top, top = lanes.max(
                                    columns, before, [](float x) FSDP_LANE { return x; }, row);
    s.total = s.total * exp(before - top) + lanes.sum(
                                                columns, [=](float x) FSDP_LANE { return exp(x - top); }, row);
    s.top = top;
    const std::size_t hit = static_cast<std::size_t>(target) - begin;  // wraps if the target is in an earlier piece
    if (hit < columns) s.at_target = row[hit];
    const bool done = last;
    lanes.once([=]() FSDP_LANE {
      *own = s;
      if (done) *out = s.total == s.total ? log(s.total) + (s.top - s.at_target) : s.total;  // log() does not support NaN
    });
  }
};

/// Row r: replaces the logits of row r by their gradients.
template <class E>
struct LogitGradient {
  E* logits;
  const SoftmaxStats* stats;
  const std::int32_t* targets;
  std::size_t begin, columns, stride;
  float gradient_scale;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E* row = logits + r * stride;
    if (targets[r] < 0) {
      lanes.each(
          columns, [](E& x) FSDP_LANE { x = E(0.0f); }, writes(row));
      return;
    }
    const float scale = gradient_scale, top = stats[r].top, factor = scale / stats[r].total;
    const std::size_t hit = static_cast<std::size_t>(targets[r]) - begin;
    const float at_target = hit < columns ? float(row[hit]) : 0.0f;
    lanes.sync();
    lanes.each(
        columns, [=](E& x) FSDP_LANE { x = E(exp(x - top) * factor); }, row);
    lanes.sync();
    if (hit < columns) lanes.once([=]() FSDP_LANE { row[hit] = E(exp(at_target - top) * factor - scale); });
  }
};

/// LogitGradient for a loss with LossTerms, which also adds these terms to loss[r]. `smoothing` is divided by the number of
/// classes in `of_class`.
template <class E>
struct LossTermsGradient {
  float* loss;
  E* logits;
  const SoftmaxStats* stats;
  const std::int32_t* targets;
  std::size_t begin, columns, stride;
  float gradient_scale, smoothing, of_class, z_loss;
  bool last;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E* row = logits + r * stride;
    if (targets[r] < 0) {
      lanes.each(
          columns, [](E& x) FSDP_LANE { x = E(0.0f); }, writes(row));
      return;
    }
    const SoftmaxStats s = stats[r];
    const float top = s.top, at_target = s.at_target, log_z = s.total == s.total ? log(s.total) + top : s.total;
    const float below = lanes.sum(
        columns, [=](float x) FSDP_LANE { return at_target - x; }, row);
    const float scale = gradient_scale, factor = scale * (1.0f + 2.0f * z_loss * log_z) / s.total, share = scale * of_class;
    lanes.each(
        columns, [=](E& x) FSDP_LANE { x = E(exp(x - top) * factor - share); }, row);
    lanes.sync();
    const std::size_t hit = static_cast<std::size_t>(targets[r]) - begin;
    const bool hits = hit < columns;
    const float here = exp(at_target - top) * factor - share - scale * (1.0f - smoothing);
    float* const out = loss + r;
    const float more = of_class * below + (last ? z_loss * log_z * log_z : 0.0f);
    lanes.once([=]() FSDP_LANE {
      if (hits) row[hit] = E(here);
      *out += more;
    });
  }
};

}  // namespace fsdp::kernels
