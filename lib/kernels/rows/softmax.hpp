// Row bodies of attention's softmax over a block of query rows. Row i of the block is query `first + i` and sees keys [0, first + i];
// `keys` keys are held per row (rows `stride` apart), those after the query's own become 0.
#pragma once

#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// scores -> probabilities; lse[i] = log sum exp(scale * score).
struct SoftmaxForward {
  float *scores, *lse;
  std::size_t first, keys, stride;
  float scale;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t i) const {
    float* row = scores + i * stride;
    const std::size_t n = first + i + 1;
    const float s = scale;
    const float top = lanes.max(n, -__builtin_huge_valf(), [=](std::size_t j) FSDP_LANE { return row[j]; }) * s;
    const float total = lanes.sum(n, [=](std::size_t j) FSDP_LANE {
      const float e = exp(row[j] * s - top);
      row[j] = e;
      return e;
    });
    const float inverse = 1.0f / total;
    lanes.each(n, [=](std::size_t j) FSDP_LANE { row[j] *= inverse; });
    lanes.each(keys - n, [=](std::size_t j) FSDP_LANE { row[n + j] = 0; });
    float* out = lse + i;
    lanes.once([=]() FSDP_LANE { *out = top + log(total); });
  }
};

/// scores -> probabilities from a known lse.
struct SoftmaxRecompute {
  float* scores;
  const float* lse;
  std::size_t first, keys, stride;
  float scale;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t i) const {
    float* row = scores + i * stride;
    const std::size_t n = first + i + 1;
    const float s = scale, shift = lse[i];
    lanes.each(n, [=](std::size_t j) FSDP_LANE { row[j] = exp(row[j] * s - shift); });
    lanes.each(keys - n, [=](std::size_t j) FSDP_LANE { row[n + j] = 0; });
  }
};

/// d_scores = probabilities * (d_probabilities - delta) * scale, in place of d_probabilities.
struct SoftmaxBackward {
  float* d_probabilities;
  const float *probabilities, *delta;
  std::size_t first, keys, stride;
  float scale;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t i) const {
    float* d = d_probabilities + i * stride;
    const float* p = probabilities + i * stride;
    const std::size_t n = first + i + 1;
    const float shift = delta[i], s = scale;
    lanes.each(n, [=](std::size_t j) FSDP_LANE { d[j] = p[j] * (d[j] - shift) * s; });
    lanes.each(keys - n, [=](std::size_t j) FSDP_LANE { d[n + j] = 0; });
  }
};

/// out[i] = sum over D of a[i,:] b[i,:], rows `stride` apart.
struct RowDot {
  float* out;
  const float *a, *b;
  std::size_t D, stride;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t i) const {
    const float *x = a + i * stride, *y = b + i * stride;
    const float total = lanes.sum(D, [=](std::size_t d) FSDP_LANE { return x[d] * y[d]; });
    float* to = out + i;
    lanes.once([=]() FSDP_LANE { *to = total; });
  }
};

}  // namespace fsdp::kernels
