// Row bodies of the norms and of sums over rows. A sum over rows has two steps: partition p of P adds its share of the rows to
// a row of scratch, then ColumnFinish adds the P rows. P depends only on R and the kind of device, so the result does not
// depend on the number of threads.
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

  std::size_t width() const { return C; }
  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    const E* in = x + r * C;
    E* out = y + r * C;
    float* stat = stats + 2 * r;
    const E *g = gain, *b = bias;
    const float count = static_cast<float>(C);
    const float mean = lanes.sum(
                           C, [](float x_c) FSDP_LANE { return x_c; }, in) /
                       count;
    const float variance = lanes.sum(
                               C, [=](float x_c) FSDP_LANE { return (x_c - mean) * (x_c - mean); }, in) /
                           count;
    const float rstd = 1.0f / square_root(variance + eps);
    lanes.each(
        C, [=](E& y_c, float x_c, float g_c, float b_c) FSDP_LANE { y_c = E((x_c - mean) * rstd * g_c + b_c); }, writes(out),
        in, g, b);
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
  float eps, offset = 0;

  std::size_t width() const { return C; }
  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    const E* in = x + r * C;
    E* out = y + r * C;
    float* stat = stats + r;
    const E* g = gain;
    const float more = offset;
    const float mean_square = lanes.sum(
                                  C, [](float x_c) FSDP_LANE { return x_c * x_c; }, in) /
                              static_cast<float>(C);
    const float rstd = 1.0f / square_root(mean_square + eps);
    lanes.each(
        C, [=](E& y_c, float x_c, float g_c) FSDP_LANE { y_c = E(x_c * rstd * (g_c + more)); }, writes(out), in, g);
    lanes.once([=]() FSDP_LANE { *stat = rstd; });
  }
};

/// Partition p: computes dx for the rows of the partition. Stores the sums over these rows of dy * xhat (for d_gain) and of dy
/// (for d_bias) in scratch[p][2][C]. xhat is the normalized x.
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
    const E* g = gain;
    const float inverse = 1.0f / static_cast<float>(C);
    const bool keep = add;
    auto sums_of_rows = lanes.template column_sums<E, 2>(C, scratch + 2 * p * C);
    for (std::size_t r = p * R / partitions; r < (p + 1) * R / partitions; ++r) {
      const E *in = x + r * C, *d = dy + r * C;
      E* out = dx + r * C;
      const float mean = stats[2 * r], rstd = stats[2 * r + 1];
      const Several<float, 2> sums = lanes.sums(
          C, [](float d_c, float g_c, float) FSDP_LANE { return d_c * g_c; },
          [=](float d_c, float g_c, float x_c) FSDP_LANE { return d_c * g_c * ((x_c - mean) * rstd); }, d, g, in);
      const float a = sums.value[0] * inverse, b = sums.value[1] * inverse;
      sums_of_rows.each(
          [=](float& gain_c, float& bias_c, E& dx_c, float d_c, float g_c, float x_c) FSDP_LANE {
            const float hat = (x_c - mean) * rstd;
            gain_c += d_c * hat;
            bias_c += d_c;
            const float value = rstd * (d_c * g_c - a - hat * b);
            dx_c = E(keep ? dx_c + value : value);
          },
          out, d, g, in);
    }
    sums_of_rows.store();
  }
};

/// As LayerNormBackward, with only the sums for d_gain, in scratch[p][C].
template <class E>
struct RmsNormBackward {
  E* dx;
  float* scratch;
  const E *dy, *x;
  const float* stats;
  const E* gain;
  std::size_t R, C, partitions;
  bool add;
  float offset = 0;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t p) const {
    const E* g = gain;
    const float more = offset;
    const float inverse = 1.0f / static_cast<float>(C);
    const bool keep = add;
    auto sums_of_rows = lanes.template column_sums<E, 1>(C, scratch + p * C);
    for (std::size_t r = p * R / partitions; r < (p + 1) * R / partitions; ++r) {
      const E *in = x + r * C, *d = dy + r * C;
      E* out = dx + r * C;
      const float rstd = stats[r];
      const float b =
          lanes.sum(
              C, [=](float d_c, float g_c, float x_c) FSDP_LANE { return d_c * (g_c + more) * (x_c * rstd); }, d, g, in) *
          inverse;
      sums_of_rows.each(
          [=](float& gain_c, E& dx_c, float d_c, float g_c, float x_c) FSDP_LANE {
            const float hat = x_c * rstd;
            gain_c += d_c * hat;
            const float value = rstd * (d_c * (g_c + more) - hat * b);
            dx_c = E(keep ? dx_c + value : value);
          },
          out, d, g, in);
    }
    sums_of_rows.store();
  }
};

/// "Row" r is head r mod heads of row r / heads of x.
template <class E>
struct HeadNormForward {
  static constexpr unsigned cuda_threads = 32;  // one warp, because heads are short
  E *x, *before;
  float* stats;
  const E* gain;
  std::size_t heads, D, stride;
  float eps, offset = 0;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E *row = x + r / heads * stride + r % heads * D, *kept = before + r * D;
    float* stat = stats + r;
    const E* g = gain;
    const float more = offset;
    const E* in = row;  // a pointer to const, because sum() only reads
    const float mean_square = lanes.sum(
                                  D, [](float x_c) FSDP_LANE { return x_c * x_c; }, in) /
                              static_cast<float>(D);
    const float rstd = 1.0f / square_root(mean_square + eps);
    lanes.each(
        D,
        [=](E& kept_c, E& x_c, float g_c) FSDP_LANE {
          kept_c = x_c;
          x_c = E(x_c * rstd * (g_c + more));
        },
        writes(kept), row, g);
    lanes.once([=]() FSDP_LANE { *stat = rstd; });
  }
};

/// Like RmsNormBackward, over the R * heads rows of HeadNormForward, in place.
template <class E>
struct HeadNormBackward {
  static constexpr unsigned cuda_threads = 32;
  E* dx;
  float* scratch;
  const E* before;
  const float* stats;
  const E* gain;
  std::size_t R, heads, D, stride, partitions;
  float offset = 0;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t p) const {
    const E* g = gain;
    const float more = offset;
    const float inverse = 1.0f / static_cast<float>(D);
    const std::size_t rows = R * heads;
    auto sums_of_rows = lanes.template column_sums<E, 1>(D, scratch + p * D);
    for (std::size_t r = p * rows / partitions; r < (p + 1) * rows / partitions; ++r) {
      const E* in = before + r * D;
      E* d = dx + r / heads * stride + r % heads * D;
      const float rstd = stats[r];
      const E* d_in = d;  // a pointer to const, because sum() only reads
      const float b =
          lanes.sum(
              D, [=](float d_c, float g_c, float x_c) FSDP_LANE { return d_c * (g_c + more) * (x_c * rstd); }, d_in, g, in) *
          inverse;
      sums_of_rows.each(
          [=](float& gain_c, E& d_c, float g_c, float x_c) FSDP_LANE {
            const float hat = x_c * rstd, dy_c = d_c;
            gain_c += dy_c * hat;
            d_c = E(rstd * (dy_c * (g_c + more) - hat * b));
          },
          d, g, in);
    }
    sums_of_rows.store();
  }
};

/// Partition p: stores the sum of the partition's rows of dy[R,C] in scratch[p][C]. Adds four rows at a time.
template <class E>
struct ColumnSum {
  float* scratch;
  const E* dy;
  std::size_t R, C, stride, partitions;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t p) const {
    float* total = scratch + p * C;
    lanes.each(
        C, [](float& sum) FSDP_LANE { sum = 0; }, writes(total));
    lanes.sync();
    std::size_t r = p * R / partitions;
    const std::size_t end = (p + 1) * R / partitions;
    for (; r + 4 <= end;
         r += 4) {  // no sync(): if four adjacent rows are aligned, all rows are, so a lane always adds to the same elements
      const E *d0 = dy + r * stride, *d1 = d0 + stride, *d2 = d1 + stride, *d3 = d2 + stride;
      lanes.each(
          C, [](float& sum, float a, float b, float c, float d) FSDP_LANE { sum += (a + b) + (c + d); }, total, d0, d1, d2, d3);
    }
    for (; r < end; ++r) {
      const E* d = dy + r * stride;
      lanes.sync();
      lanes.each(
          C, [](float& sum, float d_c) FSDP_LANE { sum += d_c; }, total, d);
    }
  }
};

/// A "row" is a block of columns. out[c] (=, +=) the sum over p of scratch[p * stride + c].
struct ColumnFinish {
  float* out;
  const float* scratch;
  std::size_t C, block, stride, partitions;
  bool add;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    const std::size_t begin = b * block, n = C - begin < block ? C - begin : block;
    float* to = out + begin;
    const float* from = scratch + begin;
    const std::size_t step = stride;
    const bool keep = add;
    lanes.columns(
        n, partitions, [=](std::size_t p, std::size_t c) FSDP_LANE { return from[p * step + c]; },
        [=](std::size_t c, float total) FSDP_LANE { to[c] = keep ? to[c] + total : total; });
  }
};

}  // namespace fsdp::kernels
