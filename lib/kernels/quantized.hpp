// Frozen matrices in fewer bits, expanded before a product.
//   int8  a scale for each row: the largest magnitude of the row is 127 (Dettmers et al. 2022, "LLM.int8()", section 2.1)
//   nf4   one of 16 levels for each element, and a scale for each block of 64 consecutive elements. The scales, less their
//   mean,
//         are quantized again, to one of 256 levels with a scale for each 256 of them (Dettmers et al. 2023, "QLoRA", section
//         3)
// Both are the numbers of bitsandbytes (int8_vectorwise_quant; quantize_4bit with quant_type "nf4", blocksize 64 and
// compress_statistics).
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>

#include "device/device.hpp"
#include "tensor/shape.hpp"

namespace fsdp::kernels {

enum class Quantization { int8, nf4 };
constexpr std::string_view name_of(Quantization kind) { return kind == Quantization::int8 ? "int8" : "nf4"; }

/// A row-major matrix [rows, columns].
struct MatrixShape {
  std::size_t rows = 0, columns = 0;
  std::size_t numel() const { return rows * columns; }
};

/// Where the parts of a quantized matrix are, in bytes. Parts begin at multiples of 64, and so does `end`, the size.
struct QuantizedParts {
  std::size_t levels = 0;        // nf4: fp32 [16], the levels of elements
  std::size_t scale_levels = 0;  // nf4: fp32 [256], the levels of scales
  std::size_t mean_scale = 0;    // nf4: fp32
  std::size_t scales = 0;        // int8: fp32 [rows]; nf4: fp32, a scale for each 256 scales of blocks
  std::size_t block_scales = 0;  // nf4: a byte for each block of 64 elements, the number of a level
  std::size_t codes = 0;         // int8: a signed byte for each element; nf4: 4 bits, the first of two in the upper half
  std::size_t end = 0;

  QuantizedParts(Quantization kind, MatrixShape shape);
};

/// The number of elements in a block of nf4. dequantize() begins at a multiple of it.
inline constexpr std::size_t quantized_block = 64;

/// Quantizes a matrix in host memory. `read(range, to)` writes these elements of the matrix, which must be finite; it is called
/// for consecutive ranges of about a million elements. `out` has QuantizedParts::end bytes, aligned to 4.
void quantize(Quantization kind, MatrixShape shape, const std::function<void(Range range, float* to)>& read,
              std::span<std::byte> out);

/// out[range.size()] receives these elements of a quantized matrix. For nf4, range.begin is a multiple of quantized_block. The
/// matrix is aligned to 64 bytes.
template <class E>
void dequantize(Stream& stream, Quantization kind, MatrixShape shape, const void* matrix, Range range, E* out);

}  // namespace fsdp::kernels
