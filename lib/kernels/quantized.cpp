#include "kernels/quantized.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/error.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

namespace {

constexpr std::size_t nf4_scales_in_block = 256;

/// Quantiles of a normal distribution (QLoRA, appendix E).
constexpr std::array nf4_levels = {-1.0f,
                                   -0.6961928009986877f,
                                   -0.5250730514526367f,
                                   -0.39491748809814453f,
                                   -0.28444138169288635f,
                                   -0.18477343022823334f,
                                   -0.09105003625154495f,
                                   0.0f,
                                   0.07958029955625534f,
                                   0.16093020141124725f,
                                   0.24611230194568634f,
                                   0.33791524171829224f,
                                   0.44070982933044434f,
                                   0.5626170039176941f,
                                   0.7229568362236023f,
                                   1.0f};

/// The levels of scales: bitsandbytes' dynamic map (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization",
/// section 1.3). In decade 10^(i - 6), for i from 0 to 6, there are 2^i levels of each sign: the centres of equal parts of
/// [0.1, 1]. The other two levels are 0 and 1.
std::array<float, 256> dynamic_levels() {
  std::array<float, 256> levels{};
  std::size_t n = 128;
  double decade = 1e-6;
  for (std::size_t i = 0; i < 7; ++i, decade *= 10)
    for (std::size_t j = 0; j < std::size_t{1} << i; ++j, ++n) {
      const double centre = 0.1 + 0.9 * (static_cast<double>(j) + 0.5) / static_cast<double>(std::size_t{1} << i);
      levels[n] = static_cast<float>(decade * centre);
      levels[254 - n] = -levels[n];
    }
  levels[255] = 1;
  return levels;
}

/// The number of the level that is nearest to `value`; the lower one of two.
std::uint8_t nearest(std::span<const float> levels, float value) {
  const auto upper = std::lower_bound(levels.begin(), levels.end(), value);
  if (upper == levels.begin()) return 0;
  if (upper == levels.end()) return static_cast<std::uint8_t>(levels.size() - 1);
  const auto at = static_cast<std::size_t>(upper - levels.begin());
  return static_cast<std::uint8_t>(value - levels[at - 1] <= levels[at] - value ? at - 1 : at);
}

float largest_magnitude(std::span<const float> values) {
  const float* const value = values.data();
  float largest = 0;
#pragma omp simd reduction(max : largest)
  for (std::size_t i = 0; i < values.size(); ++i) largest = std::max(largest, std::abs(value[i]));
  return largest;
}

template <class T>
T* part_at(std::span<std::byte> bytes, std::size_t offset) {
  return reinterpret_cast<T*>(bytes.data() + offset);
}

/// Calls f(i) for i in [0, n) on all threads.
template <class F>
void in_parallel(std::size_t n, const F& f) {
#pragma omp parallel for schedule(static) if (n > 1)
  for (std::size_t i = 0; i < n; ++i) f(i);
}

void quantize_rows(std::span<const float> values, std::size_t columns, float* scales, std::int8_t* codes) {
  in_parallel(values.size() / columns, [=](std::size_t r) {
    const float* const row = values.data() + r * columns;
    std::int8_t* const to = codes + r * columns;
    scales[r] = largest_magnitude({row, columns});
    const float to_code = scales[r] > 0 ? 127 / scales[r] : 0;
    constexpr float whole = 12582912;  // 1.5 * 2^23: adding it rounds to the nearest integer, halves to even
#pragma omp simd
    for (std::size_t c = 0; c < columns; ++c) to[c] = static_cast<std::int8_t>(row[c] * to_code + whole - whole);
  });
}

/// Quantizes the elements of whole blocks, except that the last one may be shorter. Writes the blocks' scales.
void quantize_blocks(std::span<const float> values, float* scales, std::uint8_t* codes) {
  in_parallel((values.size() + quantized_block - 1) / quantized_block, [=](std::size_t b) {
    const std::size_t begin = b * quantized_block;
    const std::span<const float> block = values.subspan(begin, std::min(quantized_block, values.size() - begin));
    const float scale = scales[b] = largest_magnitude(block);
    // bitsandbytes multiplies by the reciprocal, too. A quotient is another number, and would have another nearest level for
    // one of some million elements.
    const float to_level = 1 / std::max(scale, 1e-38f);
    float value[quantized_block] = {};
    std::int32_t code[quantized_block] = {};  // the number of the nearest level
    for (std::size_t i = 0; i < block.size(); ++i) value[i] = block[i] * to_level;
    for (std::size_t level = 1; level < nf4_levels.size(); ++level) {
      const float between = (nf4_levels[level - 1] + nf4_levels[level]) / 2;
#pragma omp simd
      for (std::size_t i = 0; i < quantized_block; ++i) code[i] += value[i] > between ? 1 : 0;
    }
    for (std::size_t i = 0; i < block.size(); i += 2)
      codes[(begin + i) / 2] = static_cast<std::uint8_t>(code[i] << 4 | (i + 1 < block.size() ? code[i + 1] : 0));
  });
}

/// Quantizes the scales of all blocks of a matrix.
void quantize_scales(std::vector<float> scales, const QuantizedParts& at, std::span<std::byte> out) {
  const std::array<float, 256> levels = dynamic_levels();
  double sum = 0;
  for (const float scale : scales) sum += scale;
  const float mean = static_cast<float>(sum / static_cast<double>(scales.size()));
  std::memcpy(out.data() + at.levels, nf4_levels.data(), sizeof nf4_levels);
  std::memcpy(out.data() + at.scale_levels, levels.data(), sizeof levels);
  *part_at<float>(out, at.mean_scale) = mean;
  for (float& scale : scales) scale -= mean;
  for (std::size_t begin = 0; begin < scales.size(); begin += nf4_scales_in_block) {
    const std::span<const float> some =
        std::span<const float>(scales).subspan(begin, std::min(nf4_scales_in_block, scales.size() - begin));
    const float scale = part_at<float>(out, at.scales)[begin / nf4_scales_in_block] = largest_magnitude(some);
    const float to_level = 1 / std::max(scale, 1e-38f);
    for (std::size_t i = 0; i < some.size(); ++i)
      part_at<std::uint8_t>(out, at.block_scales)[begin + i] = nearest(levels, some[i] * to_level);
  }
}

constexpr std::size_t quantized_at_once = std::size_t{1} << 20;  // elements

}  // namespace

QuantizedParts::QuantizedParts(Quantization kind, MatrixShape shape) {
  const auto take = [this](std::size_t& part, std::size_t bytes) {
    part = end;
    end = round_up(end + bytes, 64);
  };
  if (kind == Quantization::int8) {
    take(scales, shape.rows * sizeof(float));
    take(codes, shape.numel());
    return;
  }
  const std::size_t blocks = (shape.numel() + quantized_block - 1) / quantized_block;
  take(levels, sizeof nf4_levels);
  take(scale_levels, 256 * sizeof(float));
  take(mean_scale, sizeof(float));
  take(scales, (blocks + nf4_scales_in_block - 1) / nf4_scales_in_block * sizeof(float));
  take(block_scales, blocks);
  take(codes, (shape.numel() + 1) / 2);
}

void quantize(Quantization kind, MatrixShape shape, const std::function<void(Range range, float* to)>& read,
              std::span<std::byte> out) {
  const QuantizedParts at(kind, shape);
  expect(shape.numel() > 0 && out.size() == at.end, "there is memory for a quantized matrix");
  std::fill(out.begin(), out.end(), std::byte{0});
  // Whole rows, and whole blocks.
  const std::size_t step =
      round_up(std::max<std::size_t>(1, quantized_at_once / shape.columns), quantized_block) * shape.columns;
  std::vector<float> values(std::min(step, shape.numel())), block_scales;
  if (kind == Quantization::nf4) block_scales.resize((shape.numel() + quantized_block - 1) / quantized_block);
  for (std::size_t begin = 0; begin < shape.numel(); begin += step) {
    const Range range{begin, std::min(begin + step, shape.numel())};
    read(range, values.data());
    const auto some = std::span<const float>(values).first(range.size());
    if (kind == Quantization::int8)
      quantize_rows(some, shape.columns, part_at<float>(out, at.scales) + begin / shape.columns,
                    part_at<std::int8_t>(out, at.codes) + begin);
    else
      quantize_blocks(some, block_scales.data() + begin / quantized_block, part_at<std::uint8_t>(out, at.codes) + begin / 2);
  }
  if (kind == Quantization::nf4) quantize_scales(std::move(block_scales), at, out);
}

template <class E>
void dequantize(Stream& stream, Quantization kind, MatrixShape shape, const void* matrix, Range range, E* out) {
  const QuantizedParts at(kind, shape);
  const auto* const bytes = static_cast<const std::byte*>(matrix);
  const auto floats = [&](std::size_t offset) { return reinterpret_cast<const float*>(bytes + offset); };
  const auto codes = [&](std::size_t offset) { return reinterpret_cast<const std::uint8_t*>(bytes + offset); };
  if (kind == Quantization::int8) {
    expect(range.begin % shape.columns == 0 && range.size() % shape.columns == 0, "whole rows of an int8 matrix are expanded");
    const std::size_t row = range.begin / shape.columns;
    launch(stream,
           DequantizeInt8<E>{out, reinterpret_cast<const std::int8_t*>(bytes + at.codes) + range.begin, floats(at.scales) + row,
                             shape.columns},
           range.size() / shape.columns);
    return;
  }
  expect(range.begin % quantized_block == 0, "whole blocks of an nf4 matrix are expanded");
  const std::size_t block = range.begin / quantized_block;
  launch(stream,
         DequantizeNf4<E>{out, floats(at.levels), floats(at.scale_levels), floats(at.mean_scale), floats(at.scales),
                          codes(at.block_scales) + block, codes(at.codes) + range.begin / 2, block, range.size()},
         flat_blocks(range.size()));
}

#define FSDP_INSTANTIATE(E) template void dequantize(Stream&, Quantization, MatrixShape, const void*, Range, E*);
FSDP_FOR_ELEMENTS(FSDP_INSTANTIATE)

}  // namespace fsdp::kernels
