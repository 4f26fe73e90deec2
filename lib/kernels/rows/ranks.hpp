// Row bodies for sums over ranks after a library such as NCCL has gathered the ranks' numbers, and for rounding these numbers
// before they are sent. "Row" b is a block of elements, as in pointwise.hpp.
#pragma once

#include <utility>

#include "kernels/rows/pointwise.hpp"

namespace fsdp::kernels {

/// out[i] (=, +=) the sum of element i over ranks; adjacent ranks are paired at strides 1, 2, 4, ... as defined in
/// comm/tree_sum.hpp. The other ranks' numbers are rows of `received`, `stride` apart, in the order of the ranks.
template <class T, class In>
struct SumRanks {
  T* out;
  const In *own, *received;
  std::size_t stride, n;
  int ranks, me;
  bool add;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    each_of_block(lanes, b, n, [k = *this](std::size_t i) FSDP_LANE {
      const T sum = k.sum_of(i);
      k.out[i] = k.add ? k.out[i] + sum : sum;
    });
  }

  /// `part` has the sums of subtrees whose right neighbours have not been added yet: after rank r, `part` has one sum for each
  /// 1 in the binary digits of r + 1.
  FSDP_INLINE T sum_of(std::size_t i) const {
    T part[24];  // ranks are below 2^24
    int parts = 0;
    for (int r = 0; r < ranks; ++r) {
      const In* const in = r == me ? own : received + static_cast<std::size_t>(r < me ? r : r - 1) * stride;
      T value = static_cast<T>(in[i]);
      for (int left = r; (left & 1) != 0; left >>= 1) value = part[--parts] + value;
      part[parts++] = value;
    }
    T value = part[--parts];
    while (parts > 0) value = part[--parts] + value;
    return value;
  }
};

/// Adds neighbours, then neighbouring sums, and so on: the canonical order for a power of two of numbers.
template <class... In>
FSDP_INLINE float sum_in_pairs(In... x) {
  float value[] = {static_cast<float>(x)...};
  FSDP_UNROLL
  for (std::size_t n = sizeof...(x); n > 1; n /= 2) {
    FSDP_UNROLL
    for (std::size_t i = 0; i < n / 2; ++i) value[i] = value[2 * i] + value[2 * i + 1];
  }
  return value[0];
}

/// SumRanks for 2, 4 or 8 ranks. It keeps all numbers in registers, and loads and stores 16 bytes at a time.
template <class In, std::size_t ranks>
struct SumFewRanks {
  float* out;
  const In* of_rank[ranks];
  std::size_t n;
  bool add;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    sum(lanes, b, std::make_index_sequence<ranks>());
  }

 private:
  template <class Lanes, std::size_t... r>
  FSDP_INLINE void sum(Lanes lanes, std::size_t b, std::index_sequence<r...>) const {
    if (add)
      each_of_block(
          lanes, b, n, [](float& to, auto... x) FSDP_LANE { to += sum_in_pairs(x...); }, out, of_rank[r]...);
    else
      each_of_block(
          lanes, b, n, [](float& to, auto... x) FSDP_LANE { to = sum_in_pairs(x...); }, writes(out), of_rank[r]...);
  }
};

/// Copies elements [begin, begin + n) of each rank's share of `whole`, rounded to In, to rows of `out` that are `stride` apart.
/// `whole` is divided into `ranks` shares. Elements after a share's end are not written.
template <class In>
struct RoundShares {
  In* out;
  const float* whole;
  std::size_t total, begin, n, stride, ranks;

  /// A "row" is a block of one rank's elements.
  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    const std::size_t blocks = flat_blocks(n), r = b / blocks;
    const std::size_t small = total / ranks, extra = total % ranks;  // as share() of tensor/shape.hpp
    const std::size_t size = small + (r < extra ? 1 : 0);
    const float* const from = whole + r * small + (r < extra ? r : extra) + begin;
    In* const to = out + r * stride;
    const std::size_t first = b % blocks * flat_block, left = size > begin ? size - begin : 0, end = left < n ? left : n;
    const std::size_t count = first >= end ? 0 : end - first < flat_block ? end - first : flat_block;
    lanes.each(
        count, [](In& to_i, float from_i) FSDP_LANE { to_i = In(from_i); }, writes(to + first), from + first);
  }
};

/// Rounds each element to the nearest number of type E, in place.
template <class E>
struct RoundValues {
  float* x;
  std::size_t n;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    each_of_block(
        lanes, b, n, [](float& x_i) FSDP_LANE { x_i = static_cast<float>(E(x_i)); }, x);
  }
};

}  // namespace fsdp::kernels
