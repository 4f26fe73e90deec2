// Element types of parameters, gradients, reductions and files.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fsdp {

/// Tensors have the first three; f64 and i64 are those of sums over ranks.
enum class DType { f32, bf16, f16, f64, i64 };

constexpr std::size_t size_of(DType type) { return std::array{4u, 2u, 2u, 8u, 8u}[static_cast<std::size_t>(type)]; }
constexpr std::string_view name_of(DType type) {
  return std::array<std::string_view, 5>{"fp32", "bf16", "fp16", "fp64", "int64"}[static_cast<std::size_t>(type)];
}

/// bf16 is the upper half of an fp32 number. On the host, an element at a time; to the nearest, ties to even.
constexpr float bf16_to_float(std::uint16_t value) { return std::bit_cast<float>(std::uint32_t{value} << 16); }
constexpr std::uint16_t float_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);  // stays not a number
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace fsdp
