// What a row body is written over. A body is a plain struct with `template <class Lanes> void operator()(Lanes, row) const`;
// `lanes` walks the elements of that row:
//   each(n, f)  calls f(i) for i in [0, n), in any order;
//   sum(n, f)   the sum of f(i), in an order that depends on n alone (float, double or integer);
//   sums(n, f, g[, h])  two or three sums in one walk (the compiler finds what f and g have in common);
//   max(n, f)   the largest f(i), at least `lowest`;
//   copy(n, to, from)  n floats, `to` on a multiple of 64 bytes;
//   once(f)     calls f on one lane;
//   add(to, value)  *to += value, of integers, to which other rows may add at the same time;
//   sync()      what lanes wrote before it, others read after it. sum() and max() imply it.
// On the CPU one thread walks a row with vector code; on CUDA a thread block does.
#pragma once

#include <cstddef>
#include <type_traits>

#if !defined(FSDP_GPU)
#include <xmmintrin.h>
#endif

#include "kernels/math.hpp"

namespace fsdp::kernels {

/// What sums() returns.
template <class T, int count>
struct Several {
  T value[count];
};

#if !defined(FSDP_GPU)

/// `level`: 2, 3, 4 for x86-64-v2, -v3, -v4. It makes the names of all instantiations differ, so that the linker never merges
/// code of two instruction sets.
template <int level>
struct CpuLanes {
  // Independent partial sums: enough for two AVX-512 registers, and the same number on every level, hence the same order.
  static constexpr std::size_t width = 32;

  template <class F>
  FSDP_INLINE static void each(std::size_t n, F f) {
#pragma omp simd
    for (std::size_t i = 0; i < n; ++i) f(i);
  }

  template <class F>
  FSDP_INLINE static auto sum(std::size_t n, F f) {
    using T = decltype(f(n));
    T part[width] = {};
    std::size_t i = 0;
    for (; i + width <= n; i += width) {
#pragma omp simd
      for (std::size_t j = 0; j < width; ++j) part[j] += f(i + j);
    }
    for (std::size_t j = 0; i < n; ++i, ++j) part[j] += f(i);
    return fold(part);
  }

  template <class F, class G>
  FSDP_INLINE static auto sums(std::size_t n, F f, G g) {
    using T = decltype(f(n));
    T part_f[width] = {}, part_g[width] = {};
    std::size_t i = 0;
    for (; i + width <= n; i += width) {
#pragma omp simd
      for (std::size_t j = 0; j < width; ++j) {
        part_f[j] += f(i + j);
        part_g[j] += g(i + j);
      }
    }
    for (std::size_t j = 0; i < n; ++i, ++j) {
      part_f[j] += f(i);
      part_g[j] += g(i);
    }
    return Several<T, 2>{{fold(part_f), fold(part_g)}};
  }

  template <class F, class G, class H>
  FSDP_INLINE static auto sums(std::size_t n, F f, G g, H h) {
    using T = decltype(f(n));
    T part_f[width] = {}, part_g[width] = {}, part_h[width] = {};
    std::size_t i = 0;
    for (; i + width <= n; i += width) {
#pragma omp simd
      for (std::size_t j = 0; j < width; ++j) {
        part_f[j] += f(i + j);
        part_g[j] += g(i + j);
        part_h[j] += h(i + j);
      }
    }
    for (std::size_t j = 0; i < n; ++i, ++j) {
      part_f[j] += f(i);
      part_g[j] += g(i);
      part_h[j] += h(i);
    }
    return Several<T, 3>{{fold(part_f), fold(part_g), fold(part_h)}};
  }

  template <class T, class F>
  FSDP_INLINE static T max(std::size_t n, T lowest, F f) {
    T part[width];
    for (std::size_t j = 0; j < width; ++j) part[j] = lowest;
    std::size_t i = 0;
    for (; i + width <= n; i += width) {
#pragma omp simd
      for (std::size_t j = 0; j < width; ++j) {
        const T value = f(i + j);
        part[j] = value > part[j] ? value : part[j];
      }
    }
    for (std::size_t j = 0; i < n; ++i, ++j) {
      const T value = f(i);
      part[j] = value > part[j] ? value : part[j];
    }
    for (std::size_t half = width / 2; half > 0; half /= 2)
      for (std::size_t j = 0; j < half; ++j) part[j] = part[j + half] > part[j] ? part[j + half] : part[j];
    return part[0];
  }

  /// Past the caches, without reading what is overwritten.
  FSDP_INLINE static void copy(std::size_t n, float* to, const float* from) {
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16)
      for (std::size_t j = 0; j < 16; j += 4) _mm_stream_ps(to + i + j, _mm_loadu_ps(from + i + j));
    for (; i < n; ++i) to[i] = from[i];
    _mm_sfence();
  }

  template <class F>
  FSDP_INLINE static void once(F f) {
    f();
  }
  FSDP_INLINE static void add(std::int64_t* to, std::int64_t value) { __atomic_fetch_add(to, value, __ATOMIC_RELAXED); }
  FSDP_INLINE static void sync() {}

 private:
  template <class T>
  FSDP_INLINE static T fold(T (&part)[width]) {
    for (std::size_t half = width / 2; half > 0; half /= 2)
      for (std::size_t j = 0; j < half; ++j) part[j] += part[j + half];
    return part[0];
  }
};

#else

/// One thread block per row; blockDim.x is a multiple of 32, at most 1024.
struct CudaLanes {
  template <class F>
  FSDP_INLINE static void each(std::size_t n, F f) {
    for (std::size_t i = threadIdx.x; i < n; i += blockDim.x) f(i);
  }

  template <class T, class Combine>
  FSDP_INLINE static T reduce(T value, Combine combine) {
    __shared__ T part[32];
    for (int offset = 16; offset > 0; offset /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    value = part[0];
    for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) value = combine(value, part[warp]);
    __syncthreads();
    return value;
  }

  template <class F>
  FSDP_INLINE static auto sum(std::size_t n, F f) {
    using T = decltype(f(n));
    T value = 0;
    for (std::size_t i = threadIdx.x; i < n; i += blockDim.x) value += f(i);
    return reduce(value, [](T a, T b) { return a + b; });
  }

  template <class... F>
  FSDP_INLINE static auto sums(std::size_t n, F... f) {
    using T = std::common_type_t<decltype(f(n))...>;
    return Several<T, sizeof...(F)>{{sum(n, f)...}};
  }

  template <class T, class F>
  FSDP_INLINE static T max(std::size_t n, T lowest, F f) {
    T value = lowest;
    for (std::size_t i = threadIdx.x; i < n; i += blockDim.x) {
      const T other = f(i);
      value = other > value ? other : value;
    }
    return reduce(value, [](T a, T b) { return b > a ? b : a; });
  }

  FSDP_INLINE static void copy(std::size_t n, float* to, const float* from) {
    each(n, [=](std::size_t i) { to[i] = from[i]; });
  }

  template <class F>
  FSDP_INLINE static void once(F f) {
    if (threadIdx.x == 0) f();
  }
  FSDP_INLINE static void add(std::int64_t* to, std::int64_t value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
  }
  FSDP_INLINE static void sync() { __syncthreads(); }
};

#endif

}  // namespace fsdp::kernels
