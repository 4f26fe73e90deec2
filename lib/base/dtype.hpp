// Element types of parameters, gradients, reductions and files.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace fsdp {

/// The elements of tensors are f32, bf16 or f16. f64 and i64 are used for sums over ranks.
enum class DType { f32, bf16, f16, f64, i64 };
/// size_of() is the size of an element in bytes, name_of() is "fp32", "bf16", "fp16", "fp64" or "int64".
constexpr std::size_t size_of(DType type) { return std::array{4u, 2u, 2u, 8u, 8u}[static_cast<std::size_t>(type)]; }
constexpr std::string_view name_of(DType type) {
  return std::array<std::string_view, 5>{"fp32", "bf16", "fp16", "fp64", "int64"}[static_cast<std::size_t>(type)];
}

}  // namespace fsdp
