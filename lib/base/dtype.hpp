// Element types of parameters, gradients, reductions and files.
#pragma once

#include <cstddef>
#include <string_view>

namespace fsdp {

enum class DType { f32, bf16, f16 };

constexpr std::size_t size_of(DType type) { return type == DType::f32 ? 4 : 2; }
constexpr std::string_view name_of(DType type) { return type == DType::f32 ? "fp32" : type == DType::bf16 ? "bf16" : "fp16"; }

}  // namespace fsdp
