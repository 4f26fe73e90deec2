#include "comm/tree_sum.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "base/element.hpp"
#include "base/error.hpp"

namespace fsdp {

namespace {

// The number of elements that are added at a time. With this number, the partial sums of all levels of the tree fit into the
// L1 cache.
constexpr std::size_t block = 512;

template <class T>
void add(const T* a, const T* b, T* out, std::size_t n) {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

// Returns the sum over `inputs` of elements [begin, begin + n), n <= block. The result is in `scratch`, or in the input itself
// if there is only one input. The size of the left subtree is the largest power of two below the number of inputs; this gives
// the canonical order.
template <class T, class In>
const T* block_sum(std::span<const void* const> inputs, std::size_t begin, std::size_t n, T* scratch) {
  if (inputs.size() == 1) {
    const In* const input = static_cast<const In*>(inputs[0]) + begin;
    if constexpr (std::is_same_v<T, In>) {
      return input;
    } else {
      for (std::size_t i = 0; i < n; ++i) scratch[i] = input[i];
      return scratch;
    }
  }
  const std::size_t left_size = std::bit_ceil(inputs.size()) / 2;
  const T* left = block_sum<T, In>(inputs.first(left_size), begin, n, scratch);
  alignas(64) T right_scratch[block];
  const T* right = block_sum<T, In>(inputs.subspan(left_size), begin, n, right_scratch);
  add(left, right, scratch, n);
  return scratch;
}

}  // namespace

template <class T, class In>
void tree_sum(std::span<const void* const> inputs, std::size_t count, T* out, Into into) {
  expect(!inputs.empty(), "a sum has at least one input");
  alignas(64) T scratch[block];
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t n = std::min(block, count - begin);
    const T* sum = block_sum<T, In>(inputs, begin, n, scratch);
    if (into == Into::add)
      add(out + begin, sum, out + begin, n);
    else if (sum != out + begin)
      std::copy_n(sum, n, out + begin);
  }
}

template void tree_sum<float>(std::span<const void* const>, std::size_t, float*, Into);
template void tree_sum<float, bf16>(std::span<const void* const>, std::size_t, float*, Into);
template void tree_sum<float, f16>(std::span<const void* const>, std::size_t, float*, Into);
template void tree_sum<double>(std::span<const void* const>, std::size_t, double*, Into);
template void tree_sum<std::uint64_t>(std::span<const void* const>, std::size_t, std::uint64_t*, Into);

}  // namespace fsdp
