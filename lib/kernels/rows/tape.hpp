// Row bodies of recorded layers and losses (kernels/tape.hpp).
//
// Barriers. On a GPU a lane does not see what another lane wrote since the last barrier, and two functions of `lanes` may give
// the same element to different lanes. There is a barrier after each row of each step, so a step needs others only between its
// own writes and reads.
#pragma once

#include "base/element.hpp"
#include "kernels/rows/lanes.hpp"
#include "kernels/rows/layers.hpp"
#include "kernels/rows/pointwise.hpp"
#include "kernels/tape.hpp"

/// For functions that are too large to be inlined wherever they are called.
#if defined(FSDP_GPU)
#define FSDP_TAPE_FUNCTION __device__
#else
#define FSDP_TAPE_FUNCTION
#endif

namespace fsdp::kernels {

/// log(x) for all x: log() is for positive normal numbers.
FSDP_INLINE float log_of_any(float x) {
  const bool small = x < 0x1p-126f;
  float y = log(small ? x * 0x1p23f : x) - (small ? 15.9423847f : 0.0f);
  y = x == 0.0f ? -__builtin_huge_valf() : y;
  y = x > 0x1.fffffep127f ? x : y;
  return x >= 0.0f ? y : __builtin_nanf("");
}

/// One step for one row, which is row `local` of the tile and row `global` of the matrix.
template <class Lanes>
struct TapeRowOfStep {
  Lanes lanes;
  const TapeStep& step;
  const TapeRun& run;
  float *tile, *sums;
  std::size_t local, global, n;

  template <class T>
  FSDP_INLINE T* at(const TapeOperand& o) const {
    const std::size_t row = (o.space == tile_space ? local : global) * o.stride;
    void* const base = o.space == tile_space ? tile : o.space == sums_space ? sums : run.spaces.at[o.space];
    return static_cast<T*>(static_cast<void*>(static_cast<char*>(base) + o.offset)) + row;
  }

  FSDP_INLINE float* temporary(std::size_t i) const { return tile + i * run.widest; }

  /// An operand with a number for each column.
  FSDP_INLINE const float* in(const TapeOperand& o, std::size_t i) const {
    const float* const row = at<const float>(o);
    if (!o.one_column) return row;
    float* const spread = temporary(i);
    const float number = row[0];
    lanes.each(
        n, [=](float& x) FSDP_LANE { x = number; }, writes(spread));
    lanes.sync();
    return spread;
  }

  FSDP_INLINE float* out() const { return step.sums ? temporary(3) : at<float>(step.out); }
  FSDP_INLINE void finish() const {
    if (!step.sums) return;
    lanes.sync();
    const float total = lanes.sum(
        n, [](float x) FSDP_LANE { return x; }, static_cast<const float*>(temporary(3)));
    put(total);
  }
  FSDP_INLINE void put(float number) const {
    float* const to = at<float>(step.out);
    const bool adds = step.adds;
    lanes.once([=]() FSDP_LANE { *to = adds ? *to + number : number; });
  }

  /// Two loops, because a loop that may add or not does not become vector code.
  template <class F, class... In>
  FSDP_INLINE void each(F f, In... in_rows) const {
    float* const to = out();
    if (step.adds && !step.sums)
      lanes.each(
          n, [=](float& o, auto... x) FSDP_LANE { o += f(x...); }, to, in_rows...);
    else
      lanes.each(
          n, [=](float& o, auto... x) FSDP_LANE { o = f(x...); }, writes(to), in_rows...);
    finish();
  }
  template <class F>
  FSDP_TAPE_FUNCTION void one(F f) const {
    each(f, in(step.a, 0));
  }
  template <class F>
  FSDP_TAPE_FUNCTION void two(const TapeOperand& second, F f) const {
    each(f, in(step.a, 0), in(second, 1));
  }
  template <class F>
  FSDP_TAPE_FUNCTION void three(F f) const {
    each(f, in(step.a, 0), in(step.b, 1), in(step.c, 2));
  }

  FSDP_INLINE std::size_t position() const { return (global + (step.own ? run.spaces.first_row : 0)) % step.n; }
  FSDP_INLINE std::int64_t index() const {
    return step.n > 0 ? static_cast<std::int64_t>(position())
                      : std::int64_t{run.spaces.labels[global * run.spaces.labels_of_row + step.label]};
  }
  FSDP_INLINE bool counts() const { return !run.spaces.labels || run.spaces.labels[global * run.spaces.labels_of_row] >= 0; }
  FSDP_INLINE float largest(const float* a) const {
    return lanes.max(
        n, -__builtin_huge_valf(), [](float x) FSDP_LANE { return x; }, a);
  }
  FSDP_INLINE float log_of_sum_of_exp(const float* a) const {
    const float top = largest(a);
    const float total = lanes.sum(
        n, [=](float x) FSDP_LANE { return exp(x - top); }, a);
    return top + log_of_sum(total);
  }

  template <class E>
  FSDP_TAPE_FUNCTION void load() const {
    const E* const from = at<const E>(step.a);
    lanes.each(
        n, [](float& o, float x) FSDP_LANE { o = x; }, writes(at<float>(step.out)), from);
  }
  template <class E>
  FSDP_TAPE_FUNCTION void store() const {
    const float* const from = at<const float>(step.a);
    const bool adds = step.adds;
    lanes.each(
        n, [=](E& o, float x) FSDP_LANE { o = E(adds ? static_cast<float>(o) + x : x); }, at<E>(step.out), from);
  }

  FSDP_TAPE_FUNCTION void softmax(bool logarithms) const {
    const float* const a = in(step.a, 0);
    const float top = largest(a);
    const float total = lanes.sum(
        n, [=](float x) FSDP_LANE { return exp(x - top); }, a);
    if (logarithms) {
      const float shift = top + log_of_sum(total);
      one([=](float x) FSDP_LANE { return x - shift; });
    } else {
      const float inverse = 1.0f / total;
      one([=](float x) FSDP_LANE { return exp(x - top) * inverse; });
    }
  }
  FSDP_TAPE_FUNCTION void softmax_backward(bool logarithms) const {
    const float *const g = in(step.a, 0), *const y = in(step.c, 1);
    const float total = lanes.sum(
        n, [=](float g_c, float y_c) FSDP_LANE { return logarithms ? g_c : g_c * y_c; }, g, y);
    if (logarithms)
      two(step.c, [=](float g_c, float y_c) FSDP_LANE { return g_c - exp(y_c) * total; });
    else
      two(step.c, [=](float g_c, float y_c) FSDP_LANE { return y_c * (g_c - total); });
  }
  FSDP_TAPE_FUNCTION void row_max_backward() const {
    const float* const b = in(step.b, 1);
    const float top = *at<const float>(step.c), g = *at<const float>(step.a);
    const float share = g / lanes.sum(
                                n, [=](float x) FSDP_LANE { return x == top ? 1.0f : 0.0f; }, b);
    two(step.b, [=](float, float x) FSDP_LANE { return x == top ? share : 0.0f; });
  }
  FSDP_TAPE_FUNCTION void cross_entropy() const {
    const float* const a = in(step.a, 0);
    const std::int64_t at_column = index();
    put(at_column < 0 ? 0.0f : log_of_sum_of_exp(a) - a[at_column]);
  }
  FSDP_TAPE_FUNCTION void cross_entropy_backward() const {
    const std::int64_t at_column = index();
    const float* const b = in(step.b, 1);
    const float g = *at<const float>(step.a);
    const float all = at_column < 0 ? 0.0f : *at<const float>(step.c) + b[at_column];
    const bool counts = at_column >= 0;
    two(step.b, [=](float, float x) FSDP_LANE { return counts ? g * exp(x - all) : 0.0f; });
    if (!counts) return;
    lanes.sync();
    float* const d = at<float>(step.out) + at_column;
    lanes.once([=]() FSDP_LANE { *d -= g; });
  }

  FSDP_TAPE_FUNCTION void operator()() const {
    const float k = step.k, m = step.m;
    switch (step.op) {
      case TapeOp::fill:
        lanes.each(
            n, [=](float& o) FSDP_LANE { o = k; }, writes(at<float>(step.out)));
        break;
      case TapeOp::label:
        put(static_cast<float>(run.spaces.labels[global * run.spaces.labels_of_row + step.label]));
        break;
      case TapeOp::position:
        put(static_cast<float>(position()));
        break;
      case TapeOp::load:
        if (run.spaces.type == DType::bf16)
          load<bf16>();
        else if (run.spaces.type == DType::f16)
          load<f16>();
        else
          load<float>();
        break;
      case TapeOp::store:
        if (run.spaces.type == DType::bf16)
          store<bf16>();
        else if (run.spaces.type == DType::f16)
          store<f16>();
        else
          store<float>();
        break;
      case TapeOp::copy:
        one([](float a) FSDP_LANE { return a; });
        break;
      case TapeOp::affine:
        one([=](float a) FSDP_LANE { return multiply_add(k, a, m); });
        break;
      case TapeOp::exp:
        one([](float a) FSDP_LANE { return exp(a); });
        break;
      case TapeOp::log:
        one([](float a) FSDP_LANE { return log_of_any(a); });
        break;
      case TapeOp::sqrt:
        one([](float a) FSDP_LANE { return square_root(a); });
        break;
      case TapeOp::square:
        one([](float a) FSDP_LANE { return a * a; });
        break;
      case TapeOp::abs:
        one([](float a) FSDP_LANE { return a < 0.0f ? -a : a; });
        break;
      case TapeOp::tanh:
        one([](float a) FSDP_LANE { return kernels::tanh(a); });
        break;
      case TapeOp::sigmoid:
        one([](float a) FSDP_LANE { return sigmoid(a); });
        break;
      case TapeOp::relu:
        one([](float a) FSDP_LANE { return ReluActivation::value(a); });
        break;
      case TapeOp::silu:
        one([](float a) FSDP_LANE { return SiluActivation::value(a); });
        break;
      case TapeOp::gelu_tanh:
        one([](float a) FSDP_LANE { return GeluActivation<Gelu::tanh>::value(a); });
        break;
      case TapeOp::gelu_erf:
        one([](float a) FSDP_LANE { return GeluActivation<Gelu::erf>::value(a); });
        break;
      case TapeOp::clamp:
        one([=](float a) FSDP_LANE { return a < k ? k : a > m ? m : a; });
        break;
      case TapeOp::add:
        two(step.b, [](float a, float b) FSDP_LANE { return a + b; });
        break;
      case TapeOp::subtract:
        two(step.b, [](float a, float b) FSDP_LANE { return a - b; });
        break;
      case TapeOp::multiply:
        two(step.b, [](float a, float b) FSDP_LANE { return a * b; });
        break;
      case TapeOp::divide:
        two(step.b, [](float a, float b) FSDP_LANE { return a / b; });
        break;
      case TapeOp::min:
        two(step.b, [](float a, float b) FSDP_LANE { return b < a ? b : a; });
        break;
      case TapeOp::max:
        two(step.b, [](float a, float b) FSDP_LANE { return b > a ? b : a; });
        break;
      case TapeOp::is_less:
        two(step.b, [](float a, float b) FSDP_LANE { return a < b ? 1.0f : 0.0f; });
        break;
      case TapeOp::is_equal:
        two(step.b, [](float a, float b) FSDP_LANE { return a == b ? 1.0f : 0.0f; });
        break;
      case TapeOp::where:
        three([](float a, float b, float c) FSDP_LANE { return a != 0.0f ? b : c; });
        break;
      case TapeOp::row_max:
        put(largest(in(step.a, 0)));
        break;
      case TapeOp::log_sum_exp:
        put(log_of_sum_of_exp(in(step.a, 0)));
        break;
      case TapeOp::softmax:
        softmax(false);
        break;
      case TapeOp::log_softmax:
        softmax(true);
        break;
      case TapeOp::cross_entropy:
        cross_entropy();
        break;
      case TapeOp::pick: {
        const std::int64_t column = index();
        put(column < 0 ? 0.0f : at<const float>(step.a)[column]);
        break;
      }
      case TapeOp::count_loss:
        put(counts() ? *at<const float>(step.a) : 0.0f);
        break;
      case TapeOp::loss_backward:
        put(counts() ? run.spaces.loss_scale : 0.0f);
        break;
      case TapeOp::log_backward:
        two(step.b, [](float g, float b) FSDP_LANE { return g / b; });
        break;
      case TapeOp::sqrt_backward:
        two(step.c, [](float g, float y) FSDP_LANE { return 0.5f * g / y; });
        break;
      case TapeOp::square_backward:
        two(step.b, [](float g, float b) FSDP_LANE { return 2.0f * g * b; });
        break;
      case TapeOp::abs_backward:
        two(step.b, [](float g, float b) FSDP_LANE { return b > 0.0f ? g : b < 0.0f ? -g : 0.0f; });
        break;
      case TapeOp::tanh_backward:
        two(step.c, [](float g, float y) FSDP_LANE { return g * (1.0f - y * y); });
        break;
      case TapeOp::sigmoid_backward:
        two(step.c, [](float g, float y) FSDP_LANE { return g * y * (1.0f - y); });
        break;
      case TapeOp::relu_backward:
        two(step.b, [](float g, float b) FSDP_LANE { return b > 0.0f ? g : 0.0f; });
        break;
      case TapeOp::silu_backward:
        two(step.b, [](float g, float b) FSDP_LANE { return SiluActivation::backward(g, b); });
        break;
      case TapeOp::gelu_tanh_backward:
        two(step.b, [](float g, float b) FSDP_LANE { return GeluActivation<Gelu::tanh>::backward(g, b); });
        break;
      case TapeOp::gelu_erf_backward:
        two(step.b, [](float g, float b) FSDP_LANE { return GeluActivation<Gelu::erf>::backward(g, b); });
        break;
      case TapeOp::clamp_backward:
        two(step.b, [=](float g, float b) FSDP_LANE { return b > k && b < m ? g : 0.0f; });
        break;
      case TapeOp::divisor_backward:
        three([](float g, float b, float y) FSDP_LANE { return -g * y / b; });
        break;
      case TapeOp::min_backward:
        three([](float g, float b, float c) FSDP_LANE { return b < c ? g : b == c ? 0.5f * g : 0.0f; });
        break;
      case TapeOp::max_backward:
        three([](float g, float b, float c) FSDP_LANE { return b > c ? g : b == c ? 0.5f * g : 0.0f; });
        break;
      case TapeOp::where_backward:
        two(step.b, [](float g, float b) FSDP_LANE { return b != 0.0f ? g : 0.0f; });
        break;
      case TapeOp::else_backward:
        two(step.b, [](float g, float b) FSDP_LANE { return b != 0.0f ? 0.0f : g; });
        break;
      case TapeOp::row_max_backward:
        row_max_backward();
        break;
      case TapeOp::log_sum_exp_backward:
        three([](float g, float b, float y) FSDP_LANE { return g * exp(b - y); });
        break;
      case TapeOp::softmax_backward:
        softmax_backward(false);
        break;
      case TapeOp::log_softmax_backward:
        softmax_backward(true);
        break;
      case TapeOp::cross_entropy_backward:
        cross_entropy_backward();
        break;
      case TapeOp::pick_backward: {
        const std::int64_t column = index();
        const float g = *at<const float>(step.a);
        float* const d = at<float>(step.out);
        if (column >= 0) lanes.once([=]() FSDP_LANE { d[column] += g; });
        break;
      }
    }
  }
};

/// All steps for the tiles of one part, in the memory of one thread, or on a GPU of one part.
struct TapeTiles {
  TapeRun run;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t part) const {
    (*this)(lanes, part, run.tiles + part * run.tile_floats);
  }
  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t part, float* tile) const {
    const std::size_t tiles = TapeRun::tiles_of(run.rows);
    const std::size_t first = part * tiles / run.parts, last = (part + 1) * tiles / run.parts;
    float* const sums = run.sums + part * run.sum_floats;
    lanes.each(
        run.sum_floats, [](float& sum) FSDP_LANE { sum = 0.0f; }, writes(sums));
    lanes.sync();
    for (std::size_t t = first; t < last; ++t) {
      const std::size_t begin = t * TapeRun::tile_rows, left = run.rows - begin;
      const std::size_t rows = left < TapeRun::tile_rows ? left : TapeRun::tile_rows;
      for (std::size_t i = 0; i < run.count; ++i) {
        const TapeStep& step = run.steps[i];
        if ((step.serves & run.wanted) == 0) continue;
        const std::size_t count = step.flat || step.once ? 1 : rows, n = step.flat ? rows * step.columns : step.columns;
        for (std::size_t r = 0; r < count; ++r) {
          TapeRowOfStep<Lanes>{lanes, step, run, tile, sums, r, begin + r, n}();
          lanes.sync();
        }
      }
    }
  }
};

/// The sum over parts of 512 columns.
template <class E>
struct FinishSums {
  static constexpr std::size_t block = 512;
  E* out;
  const float* sums;
  std::size_t parts, stride, n;
  bool adds;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    const std::size_t begin = b * block, count = n - begin < block ? n - begin : block, all = parts, apart = stride;
    const float* const from = sums + begin;
    E* const to = out + begin;
    const bool add = adds;
    lanes.each(count, [=](std::size_t c) FSDP_LANE {
      float total = 0.0f;
      for (std::size_t p = 0; p < all; ++p) total += from[p * apart + c];
      to[c] = E(add ? static_cast<float>(to[c]) + total : total);
    });
  }
};

/// 16 rows of the result.
template <class E>
struct TransposeMatrix {
  static constexpr std::size_t block = 16;
  E* out;
  const E* in;
  std::size_t R, C;
  bool adds;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    const std::size_t begin = b * block, count = C - begin < block ? C - begin : block, rows = R, columns = C;
    E* const to = out + begin * R;
    const E* const from = in + begin;
    const bool add = adds;
    lanes.each(count * rows, [=](std::size_t i) FSDP_LANE {
      const std::size_t r = i / count, c = i - r * count;
      E& o = to[c * rows + r];
      o = E(add ? static_cast<float>(o) + static_cast<float>(from[r * columns + c])
                : static_cast<float>(from[r * columns + c]));
    });
  }
};

FSDP_INLINE std::int64_t row_of(const TapeRows& rows, std::size_t r) {
  return rows.labels ? std::int64_t{rows.labels[r * rows.labels_of_row]} : static_cast<std::int64_t>(r % rows.n);
}

template <class E>
struct GatherRows {
  E* out;
  const E* table;
  TapeRows rows;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    const std::int64_t row = row_of(rows, r);
    const E* const from = table + (row < 0 ? 0 : static_cast<std::size_t>(row)) * rows.C;
    lanes.each(
        rows.C, [=](E& o, float x) FSDP_LANE { o = E(row < 0 ? 0.0f : x); }, writes(out + r * rows.C), from);
  }
};

/// 512 columns of all rows, so that each sum is in the order of the rows.
template <class D, class E>
struct ScatterRows {
  static constexpr std::size_t block = 512;
  D* d_table;
  const E* d;
  TapeRows rows;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    const std::size_t begin = b * block, count = rows.C - begin < block ? rows.C - begin : block;
    for (std::size_t r = 0; r < rows.R; ++r) {
      const std::int64_t row = row_of(rows, r);
      if (row < 0) continue;
      lanes.each(
          count, [](D& o, float x) FSDP_LANE { o = D(static_cast<float>(o) + x); },
          d_table + static_cast<std::size_t>(row) * rows.C + begin, d + r * rows.C + begin);
      lanes.sync();
    }
  }
};

/// The bodies for whole matrices.
#define FSDP_TAPE_BODIES(X)     \
  FSDP_TAPE_BODIES_OF(X, float) \
  FSDP_TAPE_BODIES_OF(X, bf16)  \
  FSDP_TAPE_BODIES_OF(X, f16)   \
  X(ScatterRows<float, bf16>)   \
  X(ScatterRows<float, f16>)
#define FSDP_TAPE_BODIES_OF(X, E) X(FinishSums<E>) X(TransposeMatrix<E>) X(GatherRows<E>) X(ScatterRows<E, E>)

}  // namespace fsdp::kernels
