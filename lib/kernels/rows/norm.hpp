// Row bodies of the norms and of sums over rows. Sums over rows are made in two steps: partition p of P adds its share of the
// rows to a row of scratch, then ColumnFinish adds the P rows in order. P depends on R alone, so the result does not depend on
// threads.
#pragma once

#include "base/element.hpp"
#include "kernels/kernels.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

template <class E>
struct LayerNormForward {
  E* y;
  float* stats;
  const E *x, *gain, *bias;
  std::size_t C;
  float eps;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    const E* in = x + r * C;
    E* out = y + r * C;
    float* stat = stats + 2 * r;
    const E *g = gain, *b = bias;
    const float count = static_cast<float>(C);
    const float mean = lanes.sum(C, [=](std::size_t c) FSDP_LANE { return static_cast<float>(in[c]); }) / count;
    const float variance = lanes.sum(C, [=](std::size_t c) FSDP_LANE { return (in[c] - mean) * (in[c] - mean); }) / count;
    const float rstd = 1.0f / square_root(variance + eps);
    lanes.each(C, [=](std::size_t c) FSDP_LANE { out[c] = E((in[c] - mean) * rstd * g[c] + b[c]); });
    lanes.once([=]() FSDP_LANE {
      stat[0] = mean;
      stat[1] = rstd;
    });
  }
};

template <class E>
struct RmsNormForward {
  E* y;
  float* stats;
  const E *x, *gain;
  std::size_t C;
  float eps;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    const E* in = x + r * C;
    E* out = y + r * C;
    float* stat = stats + r;
    const E* g = gain;
    const float mean_square = lanes.sum(C, [=](std::size_t c) FSDP_LANE { return in[c] * in[c]; }) / static_cast<float>(C);
    const float rstd = 1.0f / square_root(mean_square + eps);
    lanes.each(C, [=](std::size_t c) FSDP_LANE { out[c] = E(in[c] * rstd * g[c]); });
    lanes.once([=]() FSDP_LANE { *stat = rstd; });
  }
};

/// Partition p: its rows' dx, and their sums of dy * xhat (d_gain) and dy (d_bias) in scratch[p][2][C].
template <class E>
struct LayerNormBackward {
  E* dx;
  float* scratch;
  const E *dy, *x;
  const float* stats;
  const E* gain;
  std::size_t R, C, partitions;
  bool add;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t p) const {
    float* sum_gain = scratch + 2 * p * C;
    float* sum_bias = sum_gain + C;
    const E* g = gain;
    const float inverse = 1.0f / static_cast<float>(C);
    const bool keep = add;
    lanes.each(C, [=](std::size_t c) FSDP_LANE { sum_gain[c] = sum_bias[c] = 0; });
    for (std::size_t r = p * R / partitions; r < (p + 1) * R / partitions; ++r) {
      const E *in = x + r * C, *d = dy + r * C;
      E* out = dx + r * C;
      const float mean = stats[2 * r], rstd = stats[2 * r + 1];
      const Several<float, 2> sums = lanes.sums(
          C, [=](std::size_t c) FSDP_LANE { return d[c] * g[c]; },
          [=](std::size_t c) FSDP_LANE { return d[c] * g[c] * ((in[c] - mean) * rstd); });
      const float a = sums.value[0] * inverse, b = sums.value[1] * inverse;
      lanes.each(C, [=](std::size_t c) FSDP_LANE {
        const float hat = (in[c] - mean) * rstd, dyc = d[c];
        sum_gain[c] += dyc * hat;
        sum_bias[c] += dyc;
        const float value = rstd * (dyc * g[c] - a - hat * b);
        out[c] = E(keep ? out[c] + value : value);
      });
    }
  }
};

/// As LayerNormBackward, with scratch[p][C].
template <class E>
struct RmsNormBackward {
  E* dx;
  float* scratch;
  const E *dy, *x;
  const float* stats;
  const E* gain;
  std::size_t R, C, partitions;
  bool add;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t p) const {
    float* sum_gain = scratch + p * C;
    const E* g = gain;
    const float inverse = 1.0f / static_cast<float>(C);
    const bool keep = add;
    lanes.each(C, [=](std::size_t c) FSDP_LANE { sum_gain[c] = 0; });
    for (std::size_t r = p * R / partitions; r < (p + 1) * R / partitions; ++r) {
      const E *in = x + r * C, *d = dy + r * C;
      E* out = dx + r * C;
      const float rstd = stats[r];
      const float b = lanes.sum(C, [=](std::size_t c) FSDP_LANE { return d[c] * g[c] * (in[c] * rstd); }) * inverse;
      lanes.each(C, [=](std::size_t c) FSDP_LANE {
        const float hat = in[c] * rstd, dyc = d[c];
        sum_gain[c] += dyc * hat;
        const float value = rstd * (dyc * g[c] - hat * b);
        out[c] = E(keep ? out[c] + value : value);
      });
    }
  }
};

/// "Row" r: head r mod heads of row r / heads of x.
template <class E>
struct HeadNormForward {
  E *x, *before;
  float* stats;
  const E* gain;
  std::size_t heads, D, stride;
  float eps;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E *row = x + r / heads * stride + r % heads * D, *kept = before + r * D;
    float* stat = stats + r;
    const E* g = gain;
    const float mean_square = lanes.sum(D, [=](std::size_t c) FSDP_LANE { return row[c] * row[c]; }) / static_cast<float>(D);
    const float rstd = 1.0f / square_root(mean_square + eps);
    lanes.each(D, [=](std::size_t c) FSDP_LANE {
      kept[c] = row[c];
      row[c] = E(row[c] * rstd * g[c]);
    });
    lanes.once([=]() FSDP_LANE { *stat = rstd; });
  }
};

/// As RmsNormBackward over the R * heads rows of HeadNormForward, in place.
template <class E>
struct HeadNormBackward {
  E* dx;
  float* scratch;
  const E* before;
  const float* stats;
  const E* gain;
  std::size_t R, heads, D, stride, partitions;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t p) const {
    float* sum_gain = scratch + p * D;
    const E* g = gain;
    const float inverse = 1.0f / static_cast<float>(D);
    const std::size_t rows = R * heads;
    lanes.each(D, [=](std::size_t c) FSDP_LANE { sum_gain[c] = 0; });
    for (std::size_t r = p * rows / partitions; r < (p + 1) * rows / partitions; ++r) {
      const E* in = before + r * D;
      E* d = dx + r / heads * stride + r % heads * D;
      const float rstd = stats[r];
      const float b = lanes.sum(D, [=](std::size_t c) FSDP_LANE { return d[c] * g[c] * (in[c] * rstd); }) * inverse;
      lanes.each(D, [=](std::size_t c) FSDP_LANE {
        const float hat = in[c] * rstd, dyc = d[c];
        sum_gain[c] += dyc * hat;
        d[c] = E(rstd * (dyc * g[c] - hat * b));
      });
    }
  }
};

/// Partition p: the sum of its rows of dy[R,C] in scratch[p][C]. Walks by rows, four at a time.
template <class E>
struct ColumnSum {
  float* scratch;
  const E* dy;
  std::size_t R, C, stride, partitions;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t p) const {
    float* total = scratch + p * C;
    lanes.each(C, [=](std::size_t c) FSDP_LANE { total[c] = 0; });
    std::size_t r = p * R / partitions;
    const std::size_t end = (p + 1) * R / partitions;
    for (; r + 4 <= end; r += 4) {
      const E *d0 = dy + r * stride, *d1 = d0 + stride, *d2 = d1 + stride, *d3 = d2 + stride;
      lanes.each(C, [=](std::size_t c) FSDP_LANE { total[c] += (d0[c] + d1[c]) + (d2[c] + d3[c]); });
    }
    for (; r < end; ++r) {
      const E* d = dy + r * stride;
      lanes.each(C, [=](std::size_t c) FSDP_LANE { total[c] += d[c]; });
    }
  }
};

/// "Row" = one block of columns: out[c] (=, +=) sum over p of scratch[p * stride + c].
struct ColumnFinish {
  static constexpr std::size_t block = 512;
  float* out;
  const float* scratch;
  std::size_t C, stride, partitions;
  bool add;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    const std::size_t begin = b * block, n = C - begin < block ? C - begin : block;
    float* to = out + begin;
    const float* from = scratch + begin;
    const std::size_t rows = partitions, step = stride;
    const bool keep = add;
    lanes.each(n, [=](std::size_t c) FSDP_LANE {
      float total = from[c];
      for (std::size_t p = 1; p < rows; ++p) total += from[p * step + c];
      to[c] = keep ? to[c] + total : total;
    });
  }
};

}  // namespace fsdp::kernels
