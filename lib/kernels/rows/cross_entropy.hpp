// Row bodies of softmax and cross-entropy over one piece of the vocabulary. The piece is a matrix whose rows are `stride`
// apart, and whose first column is column `begin` of the logits.
#pragma once

#include <cstdint>

#include "base/element.hpp"
#include "kernels/kernels.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// Returns the statistics of a row after a piece of `columns` logits, where `before` are those of the earlier pieces. `hit` is
/// the target's column in the piece.
template <class E, class Lanes>
FSDP_INLINE SoftmaxStats add_piece(Lanes lanes, SoftmaxStats before, const E* row, std::size_t columns, std::size_t hit) {
  SoftmaxStats s = before;
  const float old = s.top, top = lanes.max(
                               columns, old, [](float x) FSDP_LANE { return x; }, row);
  const Several<float, 2> sums = lanes.sums(
      columns, [=](float x) FSDP_LANE { return exp(x - top); }, [=](float x) FSDP_LANE { return x * exp(x - top); }, row);
  s.total = s.total * exp(old - top) + sums.value[0];
  s.weighted = s.weighted * exp(old - top) + sums.value[1];
  s.top = top;
  if (hit < columns) s.at_target = row[hit];
  return s;
}
/// The statistics of a row before its first piece.
FSDP_INLINE SoftmaxStats no_statistics() { return {-__builtin_huge_valf(), 0, 0, 0}; }
/// The loss of a row with these statistics. log() does not support NaN.
FSDP_INLINE float loss_of(const SoftmaxStats& s) { return s.total == s.total ? log(s.total) + (s.top - s.at_target) : s.total; }

/// Replaces the logits of a piece by their gradients; `s` are the statistics of all pieces.
template <class E, class Lanes>
FSDP_INLINE void replace_piece(Lanes lanes, const SoftmaxStats& s, E* row, std::size_t columns, std::size_t hit, float scale) {
  const float top = s.top, factor = scale / s.total;
  const float at_target = hit < columns ? float(row[hit]) : 0.0f;
  lanes.sync();
  lanes.each(
      columns, [=](E& x) FSDP_LANE { x = E(exp(x - top) * factor); }, row);
  lanes.sync();
  if (hit < columns) lanes.once([=]() FSDP_LANE { row[hit] = E(exp(at_target - top) * factor - scale); });
}

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
    const std::size_t hit = static_cast<std::size_t>(target) - begin;  // wraps if the target is in an earlier piece
    const SoftmaxStats s = add_piece(lanes, begin > 0 ? *own : no_statistics(), row, columns, hit);
    const bool done = last;
    lanes.once([=]() FSDP_LANE {
      *own = s;
      if (done) *out = loss_of(s);
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
    replace_piece(lanes, stats[r], row, columns, static_cast<std::size_t>(targets[r]) - begin, gradient_scale);
  }
};

/// Row r: CrossEntropy of one or two pieces, then LogitGradient of these, with the same bits. So the three passes over a row
/// follow one another, and a part of the row may still be in the GPU's cache.
template <class E>
struct LossAndGradient {
  struct Piece {
    E* logits;
    std::size_t begin, columns, stride;
  };
  float* loss;
  SoftmaxStats* stats;
  const std::int32_t* targets;
  Piece first, second;  // the second has no columns if there is only one
  float gradient_scale;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    float* out = loss + r;
    SoftmaxStats* const own = stats + r;
    const std::int32_t target = targets[r];
    E *const row = first.logits + r * first.stride, *const row2 = second.logits + r * second.stride;
    const std::size_t n = first.columns, n2 = second.columns;
    if (target < 0) {
      lanes.once([=]() FSDP_LANE { *out = 0; });
      lanes.each(
          n, [](E& x) FSDP_LANE { x = E(0.0f); }, writes(row));
      lanes.each(
          n2, [](E& x) FSDP_LANE { x = E(0.0f); }, writes(row2));
      return;
    }
    const std::size_t hit = static_cast<std::size_t>(target) - first.begin,
                      hit2 = static_cast<std::size_t>(target) - second.begin;
    const float scale = gradient_scale;
    SoftmaxStats s = add_piece<E>(lanes, no_statistics(), row, n, hit);
    if (n2 > 0) s = add_piece<E>(lanes, s, row2, n2, hit2);
    lanes.once([=]() FSDP_LANE {
      *own = s;
      *out = loss_of(s);
    });
    replace_piece(lanes, s, row, n, hit, scale);
    if (n2 > 0) replace_piece(lanes, s, row2, n2, hit2, scale);
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
