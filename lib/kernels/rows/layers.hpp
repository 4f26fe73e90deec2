// Row bodies of users' layers and losses (kernels/layers.hpp).
#pragma once

#include "base/element.hpp"
#include "kernels/layers.hpp"
#include "kernels/rows/lanes.hpp"
#include "kernels/rows/pointwise.hpp"

namespace fsdp::kernels {

/// Partition p: stores the sum over its rows of (x - mean)^2 in scratch[p][C]. The mean of a column is total / R.
template <class E>
struct CenteredSquares {
  float* scratch;
  const E* x;
  const float* total;
  std::size_t R, C, partitions;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t p) const {
    const float* t = total;
    const float inverse = 1.0f / static_cast<float>(R);
    auto squares = lanes.template column_sums<E, 1>(C, scratch + p * C);
    for (std::size_t r = p * R / partitions; r < (p + 1) * R / partitions; ++r) {
      squares.each(
          [=](float& sum, float x_c, float total_c) FSDP_LANE {
            const float d = x_c - total_c * inverse;
            sum += d * d;
          },
          x + r * C, t);
      lanes.sync();
    }
    squares.store();
  }
};

/// A "row" is a block of columns. moments[ranks,2,C] are the total and the centered squares of R rows each. They are joined in
/// the order of the ranks (Chan et al. 1979, "Updating formulae and a pairwise algorithm for computing sample variances").
struct JoinMoments {
  float *stats, *mean, *variance;  // stats[2,C]; mean[C] and variance[C] may be null
  const float* moments;
  std::size_t ranks, R, C, block;
  float eps;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    const JoinMoments m = *this;
    const std::size_t begin = b * block, n = C - begin < block ? C - begin : block;
    const float per_rank = 1.0f / static_cast<float>(R), all = static_cast<float>(ranks * R);
    lanes.each(n, [=](std::size_t i) FSDP_LANE {
      const std::size_t c = begin + i, step = 2 * m.C;
      float total = 0;
      for (std::size_t k = 0; k < m.ranks; ++k) total += m.moments[k * step + c];
      const float joined = total / all;
      float squares = 0;
      for (std::size_t k = 0; k < m.ranks; ++k) {
        const float away = m.moments[k * step + c] * per_rank - joined;
        squares += m.moments[k * step + m.C + c] + static_cast<float>(m.R) * away * away;
      }
      m.stats[c] = joined;
      m.stats[m.C + c] = 1.0f / square_root(squares / all + m.eps);
      if (m.mean) m.mean[c] = joined;
      if (m.variance) m.variance[c] = squares / (all - 1.0f);
    });
  }
};

template <class E>
struct BatchNormForward {
  E* y;
  const E* x;
  const float* stats;
  const E *gain, *bias;
  std::size_t C;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    lanes.each(
        C,
        [](E& y_c, float x_c, float mean_c, float rstd_c, float g_c, float b_c)
            FSDP_LANE { y_c = E((x_c - mean_c) * rstd_c * g_c + b_c); },
        writes(y + r * C), x + r * C, stats, stats + C, gain, bias);
  }
};

/// Partition p: stores the sums over its rows of dy and of dy * xhat in scratch[p][2][C]. xhat is the normalized x.
template <class E>
struct BatchNormSums {
  float* scratch;
  const E *dy, *x;
  const float* stats;
  std::size_t R, C, partitions;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t p) const {
    const float *mean = stats, *rstd = stats + C;
    auto sums = lanes.template column_sums<E, 2>(C, scratch + 2 * p * C);
    for (std::size_t r = p * R / partitions; r < (p + 1) * R / partitions; ++r) {
      sums.each(
          [](float& sum, float& hat_sum, float d_c, float x_c, float mean_c, float rstd_c) FSDP_LANE {
            sum += d_c;
            hat_sum += d_c * ((x_c - mean_c) * rstd_c);
          },
          dy + r * C, x + r * C, mean, rstd);
      lanes.sync();
    }
    sums.store();
  }
};

/// sums[2,C] are those of BatchNormSums over all rows; share: the inverse of their number, or 0 if the statistics do not depend
/// on x.
template <class E>
struct BatchNormBackward {
  E* dx;
  const E *dy, *x;
  const float *stats, *sums;
  const E* gain;
  std::size_t C;
  float share;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    const float *mean = stats, *rstd = stats + C, *sum = sums, *hat_sum = sums + C;
    const float by = share;
    lanes.each(
        C,
        [=](E& dx_c, float d_c, float x_c, float g_c, float mean_c, float rstd_c, float sum_c, float hat_sum_c) FSDP_LANE {
          const float hat = (x_c - mean_c) * rstd_c;
          dx_c = E(g_c * rstd_c * (d_c - (sum_c + hat * hat_sum_c) * by));
        },
        writes(dx + r * C), dy + r * C, x + r * C, gain, mean, rstd, sum, hat_sum);
  }
};

struct SiluActivation {
  FSDP_INLINE static float value(float x) { return x * sigmoid(x); }
  FSDP_INLINE static float backward(float d, float x) {
    const float s = sigmoid(x);
    return d * (s + x * s * (1.0f - s));
  }
};
struct TanhActivation {
  FSDP_INLINE static float value(float x) { return tanh(x); }
  FSDP_INLINE static float backward(float d, float x) {
    const float t = tanh(x);
    return d * (1.0f - t * t);
  }
};

/// log(x) for x >= 1; NaN for NaN, which log() does not support.
FSDP_INLINE float log_of_sum(float x) { return x == x ? log(x) : x; }

template <class E>
struct SoftmaxForward {
  E* y;
  const E* x;
  std::size_t C;
  SoftmaxForm form;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E* out = y + r * C;
    const E* in = x + r * C;
    const float top = lanes.max(
        C, -__builtin_huge_valf(), [](float x_c) FSDP_LANE { return x_c; }, in);
    const float total = lanes.sum(
        C, [=](float x_c) FSDP_LANE { return exp(x_c - top); }, in);
    if (form == SoftmaxForm::logarithms) {
      const float log_total = log_of_sum(total);
      lanes.each(
          C, [=](E& y_c, float x_c) FSDP_LANE { y_c = E(x_c - top - log_total); }, writes(out), in);
    } else {
      const float inverse = 1.0f / total;
      lanes.each(
          C, [=](E& y_c, float x_c) FSDP_LANE { y_c = E(exp(x_c - top) * inverse); }, writes(out), in);
    }
  }
};

template <class E>
struct SoftmaxBackward {
  E* dx;
  const E *dy, *x;
  std::size_t C;
  SoftmaxForm form;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E* out = dx + r * C;
    const E *d = dy + r * C, *in = x + r * C;
    const bool logarithms = form == SoftmaxForm::logarithms;
    const float top = lanes.max(
        C, -__builtin_huge_valf(), [](float x_c) FSDP_LANE { return x_c; }, in);
    const Several<float, 2> sums = lanes.sums(
        C, [=](float x_c, float) FSDP_LANE { return exp(x_c - top); },
        [=](float x_c, float d_c) FSDP_LANE { return logarithms ? d_c : d_c * exp(x_c - top); }, in, d);
    const float inverse = 1.0f / sums.value[0], all = logarithms ? sums.value[1] : sums.value[1] * inverse;
    if (logarithms)
      lanes.each(
          C, [=](E& dx_c, float x_c, float d_c) FSDP_LANE { dx_c = E(d_c - exp(x_c - top) * inverse * all); }, writes(out), in,
          d);
    else
      lanes.each(
          C, [=](E& dx_c, float x_c, float d_c) FSDP_LANE { dx_c = E(exp(x_c - top) * inverse * (d_c - all)); }, writes(out),
          in, d);
  }
};

template <class E>
struct SwigluRowsForward {
  StridedRows<E> out;
  StridedRows<const E> gate, up;
  std::size_t C;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E* to = out.data + r * out.stride;
    const E *g = gate.data + r * gate.stride, *u = up.data + r * up.stride;
    lanes.each(
        C, [](E& out_c, float gate_c, float up_c) FSDP_LANE { out_c = E(gate_c * sigmoid(gate_c) * up_c); }, writes(to), g, u);
  }
};

template <class E>
struct SwigluRowsBackward {
  StridedRows<E> d_gate, d_up;
  StridedRows<const E> d_out, gate, up;
  std::size_t C;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E *dg = d_gate.data + r * d_gate.stride, *du = d_up.data + r * d_up.stride;
    const E *d = d_out.data + r * d_out.stride, *g = gate.data + r * gate.stride, *u = up.data + r * up.stride;
    lanes.each(
        C,
        [](E& d_gate_c, E& d_up_c, float d_c, float gate_c, float up_c) FSDP_LANE {
          const float s = sigmoid(gate_c), silu = gate_c * s, slope = s + silu * (1.0f - s);
          d_gate_c = E(d_c * up_c * slope);
          d_up_c = E(d_c * silu);
        },
        writes(dg), writes(du), d, g, u);
  }
};

template <class E>
struct AddPositions {
  E* y;
  const E *x, *table;
  std::size_t T, C;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E* out = y + r * C;
    const E *in = x + r * C, *position = table + r % T * C;
    lanes.each(
        C, [](E& y_c, float x_c, float p_c) FSDP_LANE { y_c = E(x_c + p_c); }, writes(out), in, position);
  }
};

template <class E>
struct TransposeRows {
  E* y;
  const E* x;
  std::uint32_t M, N;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    const std::uint32_t m = M, n = N;
    const std::size_t numel = std::size_t{m} * n;
    E* out = y + r * numel;
    const E* in = x + r * numel;
    lanes.each(numel, [=](std::size_t i) FSDP_LANE {
      const auto k = static_cast<std::uint32_t>(i), c = k / m;
      out[k] = in[(k - c * m) * n + c];
    });
  }
};

/// The loss of an element and its derivative, as functions of d = x - target.
struct SquaredError {
  FSDP_INLINE float value(float d) const { return d * d; }
  FSDP_INLINE float slope(float d) const { return 2.0f * d; }
};
struct AbsoluteError {
  FSDP_INLINE float value(float d) const { return d < 0.0f ? -d : d; }
  FSDP_INLINE float slope(float d) const { return d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d; }
};
struct HuberError {
  float delta, factor;
  FSDP_INLINE float value(float d) const {
    const float a = d < 0.0f ? -d : d;
    return factor * (a > delta ? delta * (a - 0.5f * delta) : 0.5f * d * d);
  }
  FSDP_INLINE float slope(float d) const { return factor * (d > delta ? delta : d < -delta ? -delta : d); }
};

template <class Error, class E>
struct ErrorLoss {
  LossRows<E> rows;
  Error error;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    const std::size_t C = rows.C;
    const Error e = error;
    const E* in = rows.x + r * C;
    const float* t = rows.targets + r * C;
    const float count = static_cast<float>(C), factor = rows.gradient_scale / count;
    const float sum = lanes.sum(
        C, [=](float x_c, float t_c) FSDP_LANE { return e.value(x_c - t_c); }, in, t);
    float* const out = rows.loss + r;
    lanes.once([=]() FSDP_LANE { *out = sum / count; });
    if (!rows.dx) return;
    E* d = rows.dx + r * C;
    lanes.each(
        C, [=](E& d_c, float x_c, float t_c) FSDP_LANE { d_c = E(factor * e.slope(x_c - t_c)); }, writes(d), in, t);
  }
};

/// log(1 + e) for e in [0, 1]. The quotient corrects for the rounding of 1 + e (Goldberg 1991, theorem 4).
FSDP_INLINE float log_of_one_plus(float e) {
  const float u = 1.0f + e;
  return u == 1.0f ? e : log(u) * (e / (u - 1.0f));
}

template <class E>
struct BinaryCrossEntropy {
  LossRows<E> rows;
  const float* pos_weight;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    const std::size_t C = rows.C;
    const E* in = rows.x + r * C;
    const float *t = rows.targets + r * C, *w = pos_weight;
    const float count = static_cast<float>(C), factor = rows.gradient_scale / count;
    const float sum = w ? lanes.sum(
                              C, [](float x_c, float t_c, float w_c) FSDP_LANE { return value(x_c, t_c, w_c); }, in, t, w)
                        : lanes.sum(
                              C, [](float x_c, float t_c) FSDP_LANE { return value(x_c, t_c, 1.0f); }, in, t);
    float* const out = rows.loss + r;
    lanes.once([=]() FSDP_LANE { *out = sum / count; });
    if (!rows.dx) return;
    E* d = rows.dx + r * C;
    if (w)
      lanes.each(
          C, [=](E& d_c, float x_c, float t_c, float w_c) FSDP_LANE { d_c = E(factor * slope(x_c, t_c, w_c)); }, writes(d), in,
          t, w);
    else
      lanes.each(
          C, [=](E& d_c, float x_c, float t_c) FSDP_LANE { d_c = E(factor * slope(x_c, t_c, 1.0f)); }, writes(d), in, t);
  }

 private:
  /// (1 - t) x + (1 + (w - 1) t) log(1 + e^-x), where e^-x cannot overflow.
  FSDP_INLINE static float value(float x, float t, float w) {
    const float a = x < 0.0f ? -x : x, softplus = log_of_one_plus(exp(-a)) + (x < 0.0f ? a : 0.0f);
    return (1.0f - t) * x + (1.0f + (w - 1.0f) * t) * softplus;
  }
  FSDP_INLINE static float slope(float x, float t, float w) { return (1.0f + (w - 1.0f) * t) * sigmoid(x) - w * t; }
};

template <class E>
struct WeighClasses {
  float* loss;
  E* logits;
  const SoftmaxStats* stats;
  const std::int32_t* targets;
  const float* weights;
  std::size_t C;
  float gradient_scale, smoothing, of_class, z_loss;
  bool backward;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E* row = logits + r * C;
    if (targets[r] < 0) {
      if (backward)
        lanes.each(
            C, [](E& x) FSDP_LANE { x = E(0.0f); }, writes(row));
      return;
    }
    const std::size_t target = static_cast<std::size_t>(targets[r]);
    const float* w = weights;
    const float own = w[target];
    float* const out = loss + r;
    if (!backward) {
      lanes.once([=]() FSDP_LANE { *out *= own; });
      return;
    }
    const SoftmaxStats s = stats[r];
    const float top = s.top, at_target = s.at_target, log_z = log_of_sum(s.total) + top;
    const Several<float, 2> sums = lanes.sums(
        C, [](float w_c, float) FSDP_LANE { return w_c; }, [=](float w_c, float x_c) FSDP_LANE { return w_c * (log_z - x_c); },
        w, static_cast<const E*>(row));
    const float of_target = (1.0f - smoothing) * own, scale = gradient_scale, share = scale * of_class;
    const float factor = scale * (of_target + of_class * sums.value[0] + 2.0f * z_loss * own * log_z) / s.total;
    lanes.each(
        C, [=](E& x_c, float w_c) FSDP_LANE { x_c = E(exp(x_c - top) * factor - share * w_c); }, row, w);
    lanes.sync();
    const float here = exp(at_target - top) * factor - share * own - scale * of_target;
    const float total = of_target * (log_z - at_target) + of_class * sums.value[1] + z_loss * own * log_z * log_z;
    lanes.once([=]() FSDP_LANE {
      row[target] = E(here);
      *out = total;
    });
  }
};

}  // namespace fsdp::kernels
