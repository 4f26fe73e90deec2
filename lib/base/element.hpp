// The 16-bit element types bf16 and f16. They only store values; arithmetic is done in fp32. bf16 is the upper half of an fp32
// number, f16 is IEEE binary16. Conversions round to nearest, ties to even. They have no branches, so that compilers vectorize
// loops over conversions for every instruction set. No fp32 operation in a conversion has a denormal operand, so the
// conversions are right even if the processor treats denormals as 0.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.hpp"

#if defined(__CUDACC__)
#define FSDP_ELEMENT __host__ __device__ __forceinline__  // for the library
#else
#define FSDP_ELEMENT __attribute__((always_inline)) inline  // for the library
#endif

namespace fsdp {

namespace element_parts {

FSDP_ELEMENT std::uint32_t bits_of(float x) { return __builtin_bit_cast(std::uint32_t, x); }
FSDP_ELEMENT float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

FSDP_ELEMENT std::uint16_t to_bf16(float x) {
  const std::uint32_t u = bits_of(x);
  const std::uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16, nan = u >> 16 | 0x40u;
  return static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

FSDP_ELEMENT std::uint16_t to_f16(float x) {
  const std::uint32_t all = bits_of(x), sign = all >> 16 & 0x8000u, u = all & 0x7fffffffu;
  const std::uint32_t normal = (u - (112u << 23) + 0xfffu + (u >> 13 & 1u)) >> 13;
  // A number below 2^-14 is rounded to a multiple of 2^-24. Adding 0.5 does this, because the last bit of the sum is worth
  // 2^-24.
  const std::uint32_t small = bits_of(float_of(u < 0x38800000u ? u : 0u) + 0.5f) - 0x3f000000u;
  const std::uint32_t huge = u > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return static_cast<std::uint16_t>(sign | (u < 0x38800000u ? small : u < 0x47800000u ? normal : huge));
}

FSDP_ELEMENT float from_f16(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16, u = (half & 0x7fffu) << 13;
  const float small = float_of(u + (113u << 23)) - float_of(113u << 23);  // the result if the number is below 2^-14
  const std::uint32_t normal = u + ((u < 0x7c00u << 13 ? 112u : 224u) << 23);
  return float_of(sign | (u < 0x400u << 13 ? bits_of(small) : normal));
}

}  // namespace element_parts

/// An element of type DType::bf16.
struct bf16 {
  std::uint16_t bits;  // sign, exponent and mantissa
  bf16() = default;
  /// Rounds to nearest.
  FSDP_ELEMENT explicit bf16(float x) : bits(element_parts::to_bf16(x)) {}
  /// Exact.
  FSDP_ELEMENT operator float() const { return element_parts::float_of(static_cast<std::uint32_t>(bits) << 16); }
};

/// An element of type DType::f16.
struct f16 {
  std::uint16_t bits;  // sign, exponent and mantissa
  f16() = default;
  /// Rounds to nearest.
  FSDP_ELEMENT explicit f16(float x) : bits(element_parts::to_f16(x)) {}
  /// Exact.
  FSDP_ELEMENT operator float() const { return element_parts::from_f16(bits); }
};

/// A pointer to 16-bit elements whose type, bf16 or f16, is only known at run time; null if there are no elements.
struct Halves {
  std::uint16_t* data = nullptr;  // the first element
  DType type = DType::bf16;       // of the elements

  /// The pointer advanced by `n` elements.
  Halves from(std::size_t n) const { return {data ? data + n : nullptr, type}; }
};

/// The DType of an element type: float, bf16 or f16.
template <class T>
inline constexpr DType dtype_of = DType::f32;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;  // that of bf16
template <>
inline constexpr DType dtype_of<f16> = DType::f16;  // that of f16

/// Calls f.operator()<T>() with the element type T that belongs to `type`.
template <class F>
decltype(auto) with_element(DType type, F&& f) {
  switch (type) {
    case DType::bf16:
      return f.template operator()<bf16>();
    case DType::f16:
      return f.template operator()<f16>();
    case DType::f32:
    case DType::f64:  // f64 and i64 are only used for sums over ranks, not by kernels
    case DType::i64:
      break;
  }
  return f.template operator()<float>();
}

#if !defined(__CUDACC__)
/// Rounds each value, in place, to the nearest number that `type` can represent.
inline void round_values(DType type, std::span<float> values) {
  with_element(type, [&]<class E>() {
    for (float& value : values) value = static_cast<float>(E(value));
  });
}
#endif

}  // namespace fsdp
