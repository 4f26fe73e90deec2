// Row bodies of kernels/plain_attention.hpp.
#pragma once

#include <cmath>

#include "base/element.hpp"
#include "kernels/plain_attention.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// Row r: the probabilities of a query.
template <class E>
struct ScoreSoftmax {
  E* probabilities;
  const float* scores;
  ScoreShape<E> shape;
  float scale;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    const std::size_t keys = shape.keys, own = shape.first_end + r, end = own < keys ? own : keys, stride = shape.mask_stride;
    const float* const score = scores + r * keys;
    E* const p = probabilities + r * keys;
    const E* const seen = shape.mask;
    const float by = scale;
    const auto sees = [=](std::size_t key)
                          FSDP_LANE { return key < end && (!seen || static_cast<float>(seen[key * stride]) != 0.0f); };
    const float top = lanes.max(keys, -__builtin_huge_valf(), [=](std::size_t key) FSDP_LANE {
      return sees(key) ? by * score[key] : -__builtin_huge_valf();
    });
    const float total =
        lanes.sum(keys, [=](std::size_t key) FSDP_LANE { return sees(key) ? exp(by * score[key] - top) : 0.0f; });
    const float part = total > 0 ? 1.0f / total : total;  // NaN remains NaN
    lanes.each(keys, [=](std::size_t key) FSDP_LANE { p[key] = E(sees(key) ? part * exp(by * score[key] - top) : 0.0f); });
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
