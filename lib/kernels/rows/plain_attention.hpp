// Row bodies of kernels/plain_attention.hpp.
#pragma once

#include <cmath>

#include "base/element.hpp"
#include "kernels/plain_attention.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// Row r: the probabilities of a query. The scores are replaced by their exponentials.
template <class E>
struct ScoreSoftmax {
  E* probabilities;
  float* scores;
  ScoreShape<E> shape;
  float scale;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    const std::size_t keys = shape.keys, own = shape.first_end + r, end = own < keys ? own : keys, stride = shape.mask_stride;
    float* const score = scores + r * keys;
    E* const p = probabilities + r * keys;
    const E* const mask = shape.mask;
    const float by = scale, lowest = -__builtin_huge_valf();
    if (mask) {
      lanes.each(end, [=](std::size_t key) FSDP_LANE {
        if (static_cast<float>(mask[key * stride]) == 0.0f) score[key] = lowest;
      });
      lanes.sync();
    }
    const float top = lanes.max(
        end, lowest, [](float s) FSDP_LANE { return s; }, static_cast<const float*>(score));
    const float total = lanes.sum(
        end,
        [=](float& s) FSDP_LANE {
          s = s == lowest ? 0.0f : exp(by * (s - top));
          return s;
        },
        score);
    const float part = total == 0 ? 0.0f : 1.0f / total;
    lanes.each(
        end, [=](E& to, float s) FSDP_LANE { to = E(part * s); }, writes(p), static_cast<const float*>(score));
    lanes.each(
        keys - end, [](E& to) FSDP_LANE { to = E(0.0f); }, writes(p + end));
  }
};

/// Row r: the gradient of a query's scores.
template <class E>
struct ScoreSoftmaxBackward {
  E* d_scores;
  const float* d;
  const E* probabilities;
  std::size_t keys;
  float scale;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    const float* const of_row = d + r * keys;
    const E* const p = probabilities + r * keys;
    const float by = scale;
    const float mean = lanes.sum(
        keys, [](float p_i, float d_i) FSDP_LANE { return p_i * d_i; }, p, of_row);
    lanes.each(
        keys, [=](E& out, float p_i, float d_i) FSDP_LANE { out = E(by * p_i * (d_i - mean)); }, writes(d_scores + r * keys), p,
        of_row);
  }
};

/// Row t: cosines and sines of position t. E is the type to which they are rounded.
template <class E>
struct RotaryTable {
  static constexpr unsigned cuda_threads = 32;
  float* table;
  RotaryFrequencies frequencies;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t t) const {
    const std::size_t pairs = frequencies.pairs;
    float* const row = table + t * 2 * pairs;
    const float position = static_cast<float>(t);
    lanes.each(pairs, [=, this](std::size_t i) FSDP_LANE {
      const double angle = position * frequencies.value[i];  // the product is rounded to fp32, as in transformers
      row[i] = E(static_cast<float>(cosine(angle)));
      row[pairs + i] = E(static_cast<float>(sine(angle)));
    });
  }

 private:
#if defined(FSDP_GPU)
  FSDP_INLINE static double cosine(double x) { return ::cos(x); }
  FSDP_INLINE static double sine(double x) { return ::sin(x); }
#else
  FSDP_INLINE static double cosine(double x) { return __builtin_cos(x); }
  FSDP_INLINE static double sine(double x) { return __builtin_sin(x); }
#endif
};

}  // namespace fsdp::kernels
