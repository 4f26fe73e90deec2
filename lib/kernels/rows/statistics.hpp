// Row bodies of the optimizers that need sums over whole tensors: LAMB and Adafactor. All sums are exact or sums of integers,
// so that they have the same bits for every partition over threads and ranks, and every rank computes the same values from
// them.
#pragma once

#include "kernels/rows/optimizer.hpp"
#include "kernels/rows/squares.hpp"

namespace fsdp::kernels {

/// The direction of LAMB's update; see You et al. 2020, "Large batch optimization for deep learning", Algorithm 2.
struct LambDirection {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, inverse_correction1, inverse_sqrt_correction2, eps, weight_decay;
  FSDP_INLINE float operator()(float p, float m, float v) const {
    return m * inverse_correction1 / (square_root(v) * inverse_sqrt_correction2 + eps) + weight_decay * p;
  }
};

/// Block b: updates the moments of the block's elements, and adds the squares of the weights and of the directions to their
/// sums.
template <class State>
struct LambStatistics {
  static constexpr bool flush_denormals = true;
  LambDirection direction;
  ElementMemory<State, 2> memory;
  ExactSum *weights, *directions;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    if (!memory.applies()) return;
    const LambDirection d = direction;
    const ElementMemory<State, 2> m = memory;
    const float scale = m.gradient_scale();
    m.each(
        lanes, b,
        [=](float* s, float g_i) FSDP_LANE {
          const float g = g_i * scale;
          s[0] = d.beta1 * s[0] + d.one_minus_beta1 * g;
          s[1] = d.beta2 * s[1] + d.one_minus_beta2 * g * g;
        },
        m.gradient);
    const std::size_t first = m.begin(b), count = m.end(b) - first;
    const float* const p = m.parameter + first;
    const State *const momentum = m.state_of_row(0, b), *const variance = m.state_of_row(1, b);
    // Accessed by index, because packs of arrays of two types would spill registers.
    Squares::add(lanes, weights, count, [=](std::size_t i) FSDP_LANE { return p[i]; });  // includes a barrier
    Squares::add(lanes, directions, count,
                 [=](std::size_t i) FSDP_LANE { return d(p[i], m.value_of(momentum[i]), m.value_of(variance[i])); });
  }
};

/// p -= learning_rate * (|weights| / |directions|) * direction. The norms are those of the whole tensor. If one norm is 0, the
/// ratio counts as 1.
template <class State>
struct LambUpdate {
  static constexpr bool flush_denormals = true;
  LambDirection direction;
  ElementMemory<State, 2> memory;
  const ExactSum *weights, *directions;
  double learning_rate;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    if (!memory.applies()) return;
    const LambUpdate k = *this;
    const double numerator = square_root(weights->value()), denominator = square_root(directions->value());
    const double ratio = numerator > 0 && denominator > 0 ? numerator / denominator : 1;
    const auto step_size = static_cast<float>(learning_rate * ratio);
    const std::size_t first = memory.begin(b);
    lanes.each(
        memory.end(b) - first,
        [=](float& p, State m, State v)
            FSDP_LANE { p = p - step_size * k.direction(p, k.memory.value_of(m), k.memory.value_of(v)); },
        memory.parameter + first, memory.state_of_row(0, b), memory.state_of_row(1, b));
    memory.write_copy(lanes, b);
  }
};

/// Elements [begin, begin + n) of a row-major matrix with `columns` columns. The first and the last row may be incomplete.
struct MatrixPart {
  std::size_t begin, n, columns;
  std::size_t first_row() const { return begin / columns; }
  std::size_t row_count() const { return n == 0 ? 0 : (begin + n - 1) / columns + 1 - begin / columns; }
  /// The elements of row r that are in the part, as the range [first, last) of the matrix.
  FSDP_INLINE std::size_t first(std::size_t r) const { return r * columns < begin ? begin : r * columns; }
  FSDP_INLINE std::size_t last(std::size_t r) const { return (r + 1) * columns > begin + n ? begin + n : (r + 1) * columns; }
};

/// Represents the square of an element of the gradient by two integers: a high one in units of 2^-52 * whole(norm), and a low
/// one in units of 2^-84 * whole(norm). `norm` is the norm of the whole gradient, so the sum of all squares is below
/// whole(norm). The sum of the high integers is below 2^52, and the sum of up to 2^21 low integers is below 2^53, so that sums
/// in double are exact.
struct SquareDigits {
  double scale;  // 2^52 / whole

  FSDP_INLINE explicit SquareDigits(double norm) : scale(0x1p52 / whole(norm)) {}
  /// A power of two that is at least twice norm^2 (twice, because the norm is rounded), or 1 if the norm is not positive.
  FSDP_INLINE static double whole(double norm) {
    if (!(norm > 0)) return 1;
    const std::int64_t exponent = (__builtin_bit_cast(std::int64_t, norm) >> 52) - 1022;  // norm < 2^exponent, and is normal
    return power_of_two(2 * exponent + 1);
  }
  FSDP_INLINE double scaled(float x) const { return static_cast<double>(x) * static_cast<double>(x) * scale; }
  FSDP_INLINE static double low(double s) { return floor((s - floor(s)) * 0x1p32); }
};

/// Row i of the part is row r of the matrix. Stores the sums of the high and of the low integers of the row's squares in
/// words[2 * r] and words[2 * r + 1].
struct RowSquares {
  const GradientNorm* norm;
  MatrixPart part;
  std::size_t first_row;
  const float* gradient;  // the part's gradient
  std::int64_t* words;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t i) const {
    if (!norm->finite) return;
    const std::size_t r = first_row + i, begin = part.first(r), count = part.last(r) - begin;
    const float* g = gradient + (begin - part.begin);
    const SquareDigits d(norm->norm);
    const Several<double, 2> sums = lanes.sums(
        count, [=](std::size_t c) FSDP_LANE { return floor(d.scaled(g[c])); },
        [=](std::size_t c) FSDP_LANE { return SquareDigits::low(d.scaled(g[c])); });
    std::int64_t* to = words + 2 * r;
    lanes.once([=]() FSDP_LANE {
      to[0] = static_cast<std::int64_t>(sums.value[0]);
      to[1] = static_cast<std::int64_t>(sums.value[1]);
    });
  }
};

/// Strip s of the columns, over all rows: stores the sum of column c's high integers in words[c], and that of the low integers
/// in words[columns + c]. While rows are added, the words hold the bits of doubles. For CPUs, which read fastest along rows.
struct ColumnSquares {
  static constexpr std::size_t strip = 512;
  const GradientNorm* norm;
  MatrixPart part;
  std::size_t first_row, rows;
  const float* gradient;
  std::int64_t* words;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t s) const {
    if (!norm->finite) return;
    const std::size_t C = part.columns, left = s * strip, right = left + strip < C ? left + strip : C;
    std::int64_t *high = words + left, *low = words + C + left;
    lanes.each(right - left, [=](std::size_t c) FSDP_LANE { high[c] = low[c] = __builtin_bit_cast(std::int64_t, 0.0); });
    const SquareDigits d(norm->norm);
    for (std::size_t r = first_row; r < first_row + rows; ++r) {
      const std::size_t row = r * C, begin = part.first(r) > row + left ? part.first(r) - row : left,
                        end = part.last(r) < row + right ? part.last(r) - row : right;
      if (begin >= end) continue;
      const float* g = gradient + (row + begin - part.begin);
      std::int64_t *h = words + begin, *l = words + C + begin;
      lanes.each(end - begin, [=](std::size_t c) FSDP_LANE {
        const double scaled = d.scaled(g[c]);
        h[c] = __builtin_bit_cast(std::int64_t, __builtin_bit_cast(double, h[c]) + floor(scaled));
        l[c] = __builtin_bit_cast(std::int64_t, __builtin_bit_cast(double, l[c]) + SquareDigits::low(scaled));
      });
    }
    lanes.each(right - left, [=](std::size_t c) FSDP_LANE {
      high[c] = static_cast<std::int64_t>(__builtin_bit_cast(double, high[c]));
      low[c] = static_cast<std::int64_t>(__builtin_bit_cast(double, low[c]));
    });
  }
};

/// The same sums as ColumnSquares, for a device with many blocks. They are added to words that are zero at first. Block b has
/// strip b % strips of the columns and partition b / strips of the rows. A lane adds a column's sums to the words only at the
/// end; integers may be added in any order.
struct ColumnSquaresOfRows {
  static constexpr std::size_t strip = 256;
  const GradientNorm* norm;
  MatrixPart part;
  std::size_t first_row, rows, partitions;
  const float* gradient;
  std::int64_t* words;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    if (!norm->finite) return;
    const ColumnSquaresOfRows k = *this;
    const std::size_t C = part.columns, strips = (C + strip - 1) / strip, left = b % strips * strip, p = b / strips;
    const std::size_t first = first_row + p * rows / partitions, last = first_row + (p + 1) * rows / partitions;
    const SquareDigits d(norm->norm);
    lanes.each(C - left < strip ? C - left : strip, [=](std::size_t i) FSDP_LANE {
      const std::size_t c = left + i;
      double high = 0, low = 0;
      for (std::size_t r = first; r < last; ++r) {
        const std::size_t at = r * C + c;
        if (at < k.part.first(r) || at >= k.part.last(r)) continue;
        const double scaled = d.scaled(k.gradient[at - k.part.begin]);
        high += floor(scaled);
        low += SquareDigits::low(scaled);
      }
      Lanes::add(k.words + c, static_cast<std::int64_t>(high));
      Lanes::add(k.words + C + c, static_cast<std::int64_t>(low));
    });
  }
};

/// Block b of `n` factors: f += weight * (mean - f). The two words of a factor hold the sum of `count` squares, from which the
/// mean is computed. `stride` is the distance between the first words of two successive factors, and `low` the distance from a
/// factor's first word to its second.
struct FactorUpdate {
  static constexpr bool flush_denormals = true;
  float* factor;
  const std::int64_t* words;
  std::size_t n, stride, low;
  const GradientNorm* norm;
  double count;
  float weight;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    if (!norm->finite) return;
    const double unit = 0x1p-52 * SquareDigits::whole(norm->norm) * norm->scale * norm->scale, scale = unit / count;
    each_of_block(lanes, b, n, [=, k = *this](std::size_t i) FSDP_LANE {
      const double sum =
          static_cast<double>(k.words[i * k.stride]) + static_cast<double>(k.words[i * k.stride + k.low]) * 0x1p-32;
      const auto mean = static_cast<float>(sum * scale);
      k.factor[i] += k.weight * (mean - k.factor[i]);
    });
  }
};

/// One row: stores 1 / max(mean of the row factors, least) as two words. The first has the bits of the float, the second is 1.
/// If ranks with the same factors add their words, the second word becomes the number of ranks, and read() still returns the
/// same value.
struct InverseMean {
  const float* row_var;
  std::size_t rows;
  double least;
  std::int64_t* words;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t) const {
    lanes.once([k = *this]() FSDP_LANE {
      double sum = 0;
      for (std::size_t i = 0; i < k.rows; ++i) sum += static_cast<double>(k.row_var[i]);
      const double mean = sum / static_cast<double>(k.rows);
      k.words[0] = __builtin_bit_cast(std::int32_t, static_cast<float>(1 / (mean > k.least ? mean : k.least)));
      k.words[1] = 1;
    });
  }
  static constexpr std::size_t word_count = 2;
  FSDP_INLINE static float read(const std::int64_t* words) {
    return __builtin_bit_cast(float, static_cast<std::int32_t>(words[0] / words[1]));
  }
};

/// The direction of Adafactor's update, before clipping and scaling, from the factors of the second moment (Shazeer and Stern
/// 2018, "Adafactor", Algorithm 4).
struct FactoredDirection {
  const float *row, *column;
  float inverse_mean, least;  // 1 / mean of the row factors; the smallest second moment
  float gradient_scale;
  FSDP_INLINE float operator()(float g, float row_factor, std::size_t c) const {
    const float v = row_factor * column[c] * inverse_mean;
    return g * gradient_scale / square_root(v > least ? v : least);
  }
};

/// Pointers to the numbers of a FactoredDirection, which read() loads from device memory.
struct FactoredNumbers {
  const float *row, *column;
  const std::int64_t* inverse_mean;
  float least;
  const GradientNorm* norm;
  FSDP_INLINE FactoredDirection read() const {
    return {row, column, InverseMean::read(inverse_mean), least, static_cast<float>(norm->scale)};
  }
};

/// The step size of a tensor (Shazeer and Stern 2018, Algorithms 4 and 5).
FSDP_INLINE float step_size(const AdafactorScale& s) {
  const double weights = square_root(s.weights->value() / s.numel), directions = square_root(s.directions->value() / s.numel);
  const double excess = directions / s.clipping_threshold;
  return static_cast<float>((weights > s.least_scale ? weights : s.least_scale) * s.relative / (excess > 1 ? excess : 1.0));
}

/// Row i of the part: adds the squares of the row's update directions to `sum`.
struct FactoredSquares {
  static constexpr bool flush_denormals = true;
  FactoredNumbers numbers;
  MatrixPart part;
  std::size_t first_row;
  const float* gradient;
  ExactSum* sum;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t i) const {
    if (!numbers.norm->finite) return;
    const FactoredDirection d = numbers.read();
    const std::size_t r = first_row + i;
    const float row_factor = d.row[r];
    PendingSquares pending(sum);
    for (std::size_t at = part.first(r); at < part.last(r); at += Squares::block) {
      const std::size_t c = at - r * part.columns, left = part.last(r) - at;
      const float* g = gradient + (at - part.begin);
      Squares::add_block(lanes, pending, left < Squares::block ? left : Squares::block,
                         [=](std::size_t k) FSDP_LANE { return d(g[k], row_factor, c + k); });
    }
    pending.flush(lanes);
  }
};

/// Row i of the part: p = p * decay - step * direction.
struct FactoredUpdate {
  static constexpr bool flush_denormals = true;
  FactoredNumbers numbers;
  MatrixPart part;
  std::size_t first_row;
  const float* gradient;
  float* parameter;
  Halves copy;
  float decay;
  AdafactorScale scale;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t i) const {
    if (!numbers.norm->finite) return;
    const FactoredDirection d = numbers.read();
    const float keep = decay, step = step_size(scale);
    const std::size_t r = first_row + i, begin = part.first(r), count = part.last(r) - begin, c = begin - r * part.columns;
    const float row_factor = d.row[r];
    float* p = parameter + (begin - part.begin);
    const float* g = gradient + (begin - part.begin);
    lanes.each(count, [=](std::size_t j) FSDP_LANE { p[j] = p[j] * keep - step * d(g[j], row_factor, c + j); });
    if (!copy.data) return;
    lanes.sync();
    write_halves(lanes, copy, begin - part.begin, p, count);
  }
};

/// The direction for a vector, whose second moment is not factored.
struct VarianceDirection {
  float least;
  FSDP_INLINE float operator()(float g, float v) const { return g / square_root(v > least ? v : least); }
};

/// Block b: updates the second moments of the block's elements, and adds the squares of the directions to `sum`.
template <class State>
struct VarianceStatistics {
  static constexpr bool flush_denormals = true;
  VarianceDirection direction;
  ElementMemory<State, 1> memory;
  float weight;
  ExactSum* sum;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    if (!memory.applies()) return;
    const VarianceStatistics k = *this;
    const ElementMemory<State, 1> m = memory;
    const float scale = m.gradient_scale();
    m.each(
        lanes, b,
        [=](float* s, float g_i) FSDP_LANE {
          const float g = g_i * scale;
          s[0] += k.weight * (g * g - s[0]);
        },
        m.gradient);
    lanes.sync();
    const std::size_t first = m.begin(b);
    Squares::add(
        lanes, sum, m.end(b) - first, [=](float g_i, State v_i) FSDP_LANE { return k.direction(g_i * scale, m.value_of(v_i)); },
        m.gradient + first, m.state_of_row(0, b));
  }
};

/// Row r: KeepRule for the blocks of the row, without the new parameters, and adds the squares of the rounded numbers to `sum`.
/// Only GPUs run it. A CPU needs two passes: it rounds with denormals flushed to 0, and squares without.
struct KeepAndSquare {
  static constexpr unsigned cuda_threads = Squares::cuda_threads;
  KeepRule rule;
  ElementMemory<std::uint16_t, 1> memory;
  ExactSum* sum;
  std::size_t blocks, row;  // in total and per row

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    const ElementMemory<std::uint16_t, 1> m = memory;
    PendingSquares pending(sum);
    const std::size_t end = blocks < (r + 1) * row ? blocks : (r + 1) * row;
    for (std::size_t b = r * row; b < end; ++b) {
      m.each(
          lanes, b, [keep = rule](float* s, float p) FSDP_LANE { keep(p, 0, s); }, static_cast<const float*>(m.parameter));
      lanes.sync();
      Squares::add_block(
          lanes, pending, m.end(b) - m.begin(b), [=](std::uint16_t kept) FSDP_LANE { return m.value_of(kept); },
          m.state_of_row(0, b));
    }
    pending.flush(lanes);
  }
};

/// Updates the parameter. The state is unchanged: rounding a bf16 number to bf16 again does not change it.
struct VarianceRule {
  static constexpr int states = 1;
  VarianceDirection direction;
  float decay, step_size;
  FSDP_INLINE float operator()(float p, float g, const float* s) const { return p * decay - step_size * direction(g, s[0]); }
};

/// As VarianceRule, with a step size that the device computes from `scale`.
struct AdafactorVectorRule {
  static constexpr int states = 1;
  VarianceDirection direction;
  float decay;
  AdafactorScale scale;
  FSDP_INLINE VarianceRule resolve() const { return {direction, decay, kernels::step_size(scale)}; }
};

}  // namespace fsdp::kernels
