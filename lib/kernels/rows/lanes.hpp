// The interface between row bodies and processors. A row body is a kernel for one row: a plain struct with `template <class
// Lanes> void operator()(Lanes lanes, std::size_t row) const`. On the CPU one thread processes a row with vector code; on CUDA
// a thread block does, and a lane is a thread of the block. `lanes` has these functions on the elements of the row:
//   each(n, f)  calls f(i) for i in [0, n), in any order;
//   sum(n, f)   returns the sum of f(i): float, double or integer. The order depends on n, and on CUDA with arrays also on
//               the arrays' types and alignments to 16 bytes, which are the same on all ranks;
//   sums(n, f, g[, h])  returns two or three sums in one pass (the compiler shares common parts of f and g);
//   max(n, lowest, f)   returns the largest f(i), at least `lowest`;
//   each, sum, sums and max with arrays after the functions, for example each(n, f, x, y): functions receive the arrays'
//               elements instead of i, here f(x[i], y[i]), and CUDA accesses several elements at a time, 16 bytes of the array
//               with the largest type. A pointer to const is read, another pointer is read and written, and writes(pointer)
//               is only written. An array that is written may be the same memory as one that is read if functions read an
//               element before they write it;
//   grid(rows, n, f, x, ...)  calls f(x.row(r)[i], ...) for r in [0, rows) and i in [0, n), in any order; x is RowsOf{array,
//               stride}. CUDA accesses several elements at a time, as in each(), if all rows allow it;
//   rows(rows, n, f, g)  calls g(r, sum) for r in [0, rows), with the sum of f(r, i) over i in [0, n); the order of each sum
//               depends on n;
//   columns(n, rows, f, g)  calls g(c, sum) for c in [0, n), with the sum of f(r, c) over r in [0, rows). The CPU adds in the
//               order of r, CUDA in an order that depends only on n and rows;
//   column_sums<E, count>(n, sums)  returns an object that adds up `count` floats for each of n columns, from 0. Its each(f, x,
//               ...) calls f(sum, ..., x[c], ...) for each column c of a row of arrays of E. Rows are added in the order of
//               the calls, with a barrier between two calls. Its store() writes sums[count][n]. CUDA keeps sums of the first
//               columns in registers, if the row is aligned to packs;
//   total(values)  returns the sums of the Several numbers that each lane has;
//   find(begin, end, f)  returns the first i in [begin, end) for which f(i) is true, or `end`;
//   copy(n, to, from)  copies n floats; `to` is aligned to 64 bytes;
//   once(f)     calls f on one lane;
//   add(to, value)  *to += value, for integers, atomically: other rows may add to it at the same time;
//   sync()      is a barrier: lanes see what other lanes wrote before the barrier. Without a barrier, an each() may not see
//               what the previous each() wrote, since another lane may have written the element. sum, sums, max and total
//               include a barrier, and so do columns and find of a range that is not empty; rows has a barrier only at its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/unroll.hpp"
#if defined(FSDP_GPU)
#include "device/cuda/warp.hpp"
#else
#include "device/cpu/processor.hpp"
#endif
#include "kernels/math.hpp"

namespace fsdp::kernels {

/// The result of sums().
template <class T, int count>
struct Several {
  T value[count];
};

/// An array whose elements a function writes and does not read.
template <class T>
struct Writes {
  T* data;
  FSDP_INLINE T& operator[](std::size_t i) const { return data[i]; }
  FSDP_INLINE Writes operator+(std::size_t n) const { return {data + n}; }
};
template <class T>
FSDP_INLINE Writes<T> writes(T* data) {
  return {data};
}

template <class A>
struct ElementOf {};
template <class T>
struct ElementOf<T*> {
  using type = T;
};
template <class T>
struct ElementOf<Writes<T>> {
  using type = T;
};
template <class A>
concept Array = requires {
  typename ElementOf<A>::type;
};

/// Rows of an array that are `stride` elements apart.
template <Array A>
struct RowsOf {
  A first;
  std::size_t stride;
  FSDP_INLINE A row(std::size_t r) const { return first + r * stride; }
};
template <class A>
RowsOf(A, std::size_t) -> RowsOf<A>;

/// Calls f for element i: f(i), or f of the arrays' elements.
template <class F, Array... A>
FSDP_INLINE decltype(auto) call(F& f, std::size_t i, A... arrays) {
  if constexpr (sizeof...(A) == 0)
    return f(i);
  else
    return f(arrays[i]...);
}

/// The number of threads of a block on GPUs for a body that does not choose another one. It suits rows of a few thousand
/// elements.
inline constexpr unsigned default_threads = 256;

/// A body whose rows have width() elements, for which the number of threads is chosen.
template <class Body>
concept HasWidth = requires(const Body& body) {
  body.width();
};

/// The number of threads of a block on GPUs for rows of `width` elements. Up to 8,192 elements, a lane has at most 32, and few
/// lanes have none. An A100, H100 or B200 runs up to 32 blocks on a multiprocessor, so blocks of one warp still give it 32
/// warps; GPUs for graphics run fewer.
constexpr unsigned threads_of_width(std::size_t width) {
  return width <= 1024 ? 32 : width <= 2048 ? 64 : width <= 4096 ? 128 : default_threads;
}

/// The number of threads of a block that runs `body` on a GPU: by the body's width(), or its cuda_threads, or `otherwise`. A
/// body has at most one of the two.
template <class Body>
constexpr unsigned threads_of(const Body& body, unsigned otherwise = default_threads) {
  constexpr bool has_cuda_threads = requires { Body::cuda_threads; };
  static_assert(!HasWidth<Body> || !has_cuda_threads);
  if constexpr (HasWidth<Body>)
    return threads_of_width(body.width());
  else if constexpr (has_cuda_threads)
    return Body::cuda_threads;
  else
    return otherwise;
}

#if !defined(FSDP_GPU)

/// The lanes of a CPU. `level` is a CpuLevel, or 5 for AMX. The level is part of the names of all instantiations, so that the
/// linker never merges code of two instruction sets.
template <int level>
struct CpuLanes {
  // The number of independent partial sums. It fills two AVX-512 registers, and is equal on every level, so that the order of
  // sums is the same.
  static constexpr std::size_t width = 32;

  template <class F, Array... A>
  FSDP_INLINE static void each(std::size_t n, F f, A... arrays) {
#pragma omp simd
    for (std::size_t i = 0; i < n; ++i) call(f, i, arrays...);
  }

  template <class F, Array... A>
  FSDP_INLINE static void grid(std::size_t rows, std::size_t n, F f, RowsOf<A>... arrays) {
    for (std::size_t r = 0; r < rows; ++r) each(n, f, arrays.row(r)...);
  }

  template <class F, class G>
  FSDP_INLINE static void rows(std::size_t rows, std::size_t n, F f, G g) {
    for (std::size_t r = 0; r < rows; ++r) g(r, sum(n, [&](std::size_t i) FSDP_LANE { return f(r, i); }));
  }

  template <class F, class G>
  FSDP_INLINE static void columns(std::size_t n, std::size_t rows, F f, G g) {
    constexpr std::size_t block = 2 * width;  // columns whose sums stay in registers over all rows
    std::size_t c = 0;
    for (; c + block <= n; c += block) {
      decltype(f(n, n)) total[block];
#pragma omp simd
      for (std::size_t j = 0; j < block; ++j) total[j] = f(0, c + j);
      for (std::size_t r = 1; r < rows; ++r) {
#pragma omp simd
        for (std::size_t j = 0; j < block; ++j) total[j] += f(r, c + j);
      }
      for (std::size_t j = 0; j < block; ++j) g(c + j, total[j]);
    }
    for (; c < n; ++c) {
      auto total = f(0, c);
      for (std::size_t r = 1; r < rows; ++r) total += f(r, c);
      g(c, total);
    }
  }

  template <int count>
  struct ColumnSums {
    std::size_t n;
    float* sums;
    template <class F, Array... A>
    FSDP_INLINE void each(F f, A... arrays) {
      if constexpr (count == 1)
        CpuLanes::each(n, f, sums, arrays...);
      else
        CpuLanes::each(n, f, sums, sums + n, arrays...);
    }
    FSDP_INLINE void store() {}
  };
  template <class E, int count>
  FSDP_INLINE static ColumnSums<count> column_sums(std::size_t n, float* sums) {
    each(
        count * n, [](float& sum) FSDP_LANE { sum = 0; }, writes(sums));
    return {n, sums};
  }

  template <class F>
  FSDP_INLINE static std::size_t find(std::size_t begin, std::size_t end, F f) {
    while (begin < end && !f(begin)) ++begin;
    return begin;
  }

  template <class F, Array... A>
  FSDP_INLINE static auto sum(std::size_t n, F f, A... arrays) {
    using T = decltype(call(f, n, arrays...));
    T part[width] = {};
    std::size_t i = 0;
    for (; i + width <= n; i += width) {
#pragma omp simd
      for (std::size_t j = 0; j < width; ++j) part[j] += call(f, i + j, arrays...);
    }
    for (std::size_t j = 0; i < n; ++i, ++j) part[j] += call(f, i, arrays...);
    return fold(part);
  }

  template <class F, class G, Array... A>
  FSDP_INLINE static auto sums(std::size_t n, F f, G g, A... arrays) {
    using T = decltype(call(f, n, arrays...));
    T part_f[width] = {}, part_g[width] = {};
    std::size_t i = 0;
    for (; i + width <= n; i += width) {
#pragma omp simd
      for (std::size_t j = 0; j < width; ++j) {
        part_f[j] += call(f, i + j, arrays...);
        part_g[j] += call(g, i + j, arrays...);
      }
    }
    for (std::size_t j = 0; i < n; ++i, ++j) {
      part_f[j] += call(f, i, arrays...);
      part_g[j] += call(g, i, arrays...);
    }
    return Several<T, 2>{{fold(part_f), fold(part_g)}};
  }

  template <class F, class G, class H, Array... A>
  requires(!Array<H>) FSDP_INLINE static auto sums(std::size_t n, F f, G g, H h, A... arrays) {
    using T = decltype(call(f, n, arrays...));
    T part_f[width] = {}, part_g[width] = {}, part_h[width] = {};
    std::size_t i = 0;
    for (; i + width <= n; i += width) {
#pragma omp simd
      for (std::size_t j = 0; j < width; ++j) {
        part_f[j] += call(f, i + j, arrays...);
        part_g[j] += call(g, i + j, arrays...);
        part_h[j] += call(h, i + j, arrays...);
      }
    }
    for (std::size_t j = 0; i < n; ++i, ++j) {
      part_f[j] += call(f, i, arrays...);
      part_g[j] += call(g, i, arrays...);
      part_h[j] += call(h, i, arrays...);
    }
    return Several<T, 3>{{fold(part_f), fold(part_g), fold(part_h)}};
  }

  template <class T, class F, Array... A>
  FSDP_INLINE static T max(std::size_t n, T lowest, F f, A... arrays) {
    T part[width];
    for (std::size_t j = 0; j < width; ++j) part[j] = lowest;
    std::size_t i = 0;
    for (; i + width <= n; i += width) {
#pragma omp simd
      for (std::size_t j = 0; j < width; ++j) {
        const T value = call(f, i + j, arrays...);
        part[j] = value > part[j] ? value : part[j];
      }
    }
    for (std::size_t j = 0; i < n; ++i, ++j) {
      const T value = call(f, i, arrays...);
      part[j] = value > part[j] ? value : part[j];
    }
    for (std::size_t half = width / 2; half > 0; half /= 2)
      for (std::size_t j = 0; j < half; ++j) part[j] = part[j + half] > part[j] ? part[j + half] : part[j];
    return part[0];
  }

  template <class T, int count>
  FSDP_INLINE static Several<T, count> total(Several<T, count> values) {
    return values;
  }

  FSDP_INLINE static void copy(std::size_t n, float* to, const float* from) { copy_past_caches(n, to, from); }

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

/// The unit of loads and stores, at most 16 bytes.
template <std::size_t size>
struct alignas(size) Bytes {
  std::uint32_t words[size / 4];
};

/// The number of bytes of `count` elements of an array.
template <class A, std::size_t count>
inline constexpr std::size_t bytes_of = count * sizeof(typename ElementOf<A>::type);

/// `count` elements of an array, in registers. The array's first element is aligned to the size of a pack.
template <class A, std::size_t count>
class Pack {
 public:
  using Element = typename ElementOf<A>::type;

  FSDP_INLINE explicit Pack(A first) : array_(first) {
    if constexpr (std::is_pointer_v<A>) whole_ = *reinterpret_cast<const Whole*>(&array_[0]);
  }
  FSDP_INLINE void store() const {
    if constexpr (!std::is_const_v<Element>) *reinterpret_cast<Whole*>(&array_[0]) = whole_;
  }
  FSDP_INLINE Element& operator[](std::size_t i) { return values_[i]; }

 private:
  using Whole = Bytes<bytes_of<A, count>>;
  A array_;
  union {
    Whole whole_;
    std::remove_const_t<Element> values_[count];
  };
};

/// The number of elements of a pack: as many as 16 bytes hold of the largest element type. So the lanes of a warp access
/// consecutive bytes of each array.
template <class... A>
inline constexpr std::size_t pack_of = [] {
  std::size_t most = 1;
  ((most = sizeof(typename ElementOf<A>::type) > most ? sizeof(typename ElementOf<A>::type) : most), ...);
  return 16 / most;
}();

/// One thread block per row; blockDim.x is a multiple of warp_size, at most most_threads_of_block.
struct CudaLanes {
  template <class F>
  FSDP_INLINE static void each(std::size_t n, F f) {
    for (std::size_t i = threadIdx.x; i < n; i += blockDim.x) f(i);
  }
  template <class F, Array First, Array... A>
  FSDP_INLINE static void each(std::size_t n, F f, First first, A... arrays) {
    walk(n, f, first, arrays...);
  }

  template <class F, Array... A>
  FSDP_INLINE static void grid(std::size_t rows, std::size_t n, F f, RowsOf<A>... arrays) {
    constexpr std::size_t count = pack_of<A...>;
    const bool packed = n % count == 0 && ((is_aligned<count>(arrays.first) && is_aligned<count>(arrays.row(1))) && ...);
    const auto width = static_cast<std::uint32_t>(packed ? n / count : n), all = static_cast<std::uint32_t>(rows) * width;
    for (std::uint32_t k = threadIdx.x; k < all; k += blockDim.x) {
      const std::size_t r = k / width, i = k % width;
      if (packed)
        each_of_packs<count>(f, Pack<A, count>(arrays.row(r) + i * count)...);
      else
        call(f, i, arrays.row(r)...);
    }
  }

  /// Each warp processes a row.
  template <class F, class G>
  FSDP_INLINE static void rows(std::size_t rows, std::size_t n, F f, G g) {
    using T = decltype(f(rows, n));
    for (std::size_t r = warp_of_block(); r < rows; r += blockDim.x / warp_size) {
      T total = 0;
      for (std::size_t i = lane_of_warp(); i < n; i += warp_size) total += f(r, i);
      FSDP_UNROLL
      for (unsigned distance = warp_size / 2; distance > 0; distance /= 2) total += exchange(total, distance);
      if (lane_of_warp() == 0) g(r, total);
    }
    __syncthreads();
  }

  /// Adjacent lanes process adjacent columns, up to warp_size at a time.
  template <class F, class G>
  FSDP_INLINE static void columns(std::size_t n, std::size_t rows, F f, G g) {
    using T = decltype(f(rows, n));
    __shared__ T part[most_warps][warp_size];
    unsigned wide = 1;
    while (wide < warp_size && wide < n) wide *= 2;
    const unsigned column = threadIdx.x % wide, warps = blockDim.x / warp_size;
    for (std::size_t begin = 0; begin < n; begin += wide) {
      const std::size_t c = begin + column;
      T total = 0;
      if (c < n)
        for (std::size_t r = threadIdx.x / wide; r < rows; r += blockDim.x / wide) total += f(r, c);
      for (unsigned distance = warp_size / 2; distance >= wide; distance /= 2) total += exchange(total, distance);
      if (lane_of_warp() < wide) part[warp_of_block()][column] = total;
      __syncthreads();
      if (threadIdx.x < wide && c < n) {
        total = part[0][column];
        for (unsigned warp = 1; warp < warps; ++warp) total += part[warp][column];
        g(c, total);
      }
      __syncthreads();
    }
  }

  /// If a row is aligned to packs, a lane has packs of columns that are blockDim.x packs apart, and adds the first ones to sums
  /// in registers. What these do not hold is added to `sums`: the other columns, and rows that are not aligned.
  template <class E, int count>
  class ColumnSums {
   public:
    FSDP_INLINE ColumnSums(std::size_t n, float* sums) : n_(n), sums_(sums) {
      CudaLanes::each(
          count * n, [](float& sum) { sum = 0; }, writes(sums));
      sync();
    }
    template <class F, Array... A>
    FSDP_INLINE void each(F f, A... arrays) {
      if (n_ % pack != 0 || !(is_aligned<pack>(arrays) && ...)) return add_from(0, f, arrays...);
      std::size_t first = pack * threadIdx.x;
      FSDP_UNROLL
      for (int k = 0; k < in_registers; ++k, first += pack * blockDim.x)
        if (first < n_) add_packs(kept_[k], f, Pack<A, pack>(arrays + first)...);
      if (const std::size_t held = in_registers * pack * blockDim.x; held < n_) add_from(held, f, arrays...);
    }
    FSDP_INLINE void store() const {
      sync();
      std::size_t first = pack * threadIdx.x;
      FSDP_UNROLL
      for (int k = 0; k < in_registers; ++k, first += pack * blockDim.x)
        for (std::size_t j = 0; j < pack; ++j)
          for (int s = 0; s < count; ++s)
            if (first + j < n_) sums_[s * n_ + first + j] += kept_[k].value[s][j];
    }

   private:
    // With more registers for sums, fewer than four blocks of 256 threads fit on a multiprocessor.
    static constexpr int pack = 16 / sizeof(E), in_registers = 2 / count;
    struct Sums {
      float value[count][pack];
    };

    template <class F, Array... A>
    FSDP_INLINE void add_from(std::size_t first, F f, A... arrays) const {
      if constexpr (count == 1)
        walk(n_ - first, f, sums_ + first, (arrays + first)...);
      else
        walk(n_ - first, f, sums_ + first, sums_ + n_ + first, (arrays + first)...);
    }
    template <class F, class... P>
    FSDP_INLINE static void add_packs(Sums& sums, F& f, P... packs) {
      FSDP_UNROLL
      for (int j = 0; j < pack; ++j) {
        if constexpr (count == 1)
          f(sums.value[0][j], packs[j]...);
        else
          f(sums.value[0][j], sums.value[1][j], packs[j]...);
      }
      (packs.store(), ...);
    }

    std::size_t n_;
    float* sums_;
    Sums kept_[in_registers] = {};
  };
  template <class E, int count>
  FSDP_INLINE static ColumnSums<E, count> column_sums(std::size_t n, float* sums) {
    return {n, sums};
  }

  template <class F>
  FSDP_INLINE static std::size_t find(std::size_t begin, std::size_t end, F f) {
    for (std::size_t first = begin; first < end; first += blockDim.x) {
      const std::size_t i = first + threadIdx.x;
      const unsigned mine = i < end && f(i) ? blockDim.x - threadIdx.x : 0;
      const unsigned best = reduce(mine, [](unsigned a, unsigned b) { return b > a ? b : a; });
      if (best > 0) return first + (blockDim.x - best);
    }
    return end;
  }

  template <class F, Array... A>
  FSDP_INLINE static auto sum(std::size_t n, F f, A... arrays) {
    using T = decltype(call(f, n, arrays...));
    T value = 0;
    walk(
        n, [&](auto&&... x) { value += f(x...); }, arrays...);
    return reduce(value, [](T a, T b) { return a + b; });
  }

  template <class F, class G, Array... A>
  FSDP_INLINE static auto sums(std::size_t n, F f, G g, A... arrays) {
    Several<decltype(call(f, n, arrays...)), 2> value{};
    walk(
        n,
        [&](auto&&... x) {
          value.value[0] += f(x...);
          value.value[1] += g(x...);
        },
        arrays...);
    return total(value);
  }

  template <class F, class G, class H, Array... A>
  requires(!Array<H>) FSDP_INLINE static auto sums(std::size_t n, F f, G g, H h, A... arrays) {
    Several<decltype(call(f, n, arrays...)), 3> value{};
    walk(
        n,
        [&](auto&&... x) {
          value.value[0] += f(x...);
          value.value[1] += g(x...);
          value.value[2] += h(x...);
        },
        arrays...);
    return total(value);
  }

  template <class T, class F, Array... A>
  FSDP_INLINE static T max(std::size_t n, T lowest, F f, A... arrays) {
    T value = lowest;
    walk(
        n,
        [&](auto&&... x) {
          const T other = f(x...);
          value = other > value ? other : value;
        },
        arrays...);
    if constexpr (std::is_same_v<T, std::int32_t>)
      return largest(value);
    else
      return reduce(value, [](T a, T b) { return b > a ? b : a; });
  }

  template <class T, int count>
  FSDP_INLINE static Several<T, count> total(Several<T, count> values) {
    return reduce(values, [](T a, T b) { return a + b; });
  }

  FSDP_INLINE static void copy(std::size_t n, float* to, const float* from) {
    each(
        n, [](float& out, float in) { out = in; }, writes(to), from);
  }

  template <class F>
  FSDP_INLINE static void once(F f) {
    if (threadIdx.x == 0) f();
  }
  FSDP_INLINE static void add(std::int64_t* to, std::int64_t value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
  }
  FSDP_INLINE static void sync() { __syncthreads(); }

 private:
  static constexpr unsigned most_warps = most_threads_of_block / warp_size;

  /// Calls f for this lane's share of [0, n). If there is an index at which all arrays are aligned to their packs, the elements
  /// from that index on are processed in packs. The elements before it, and those that do not fill a pack, are processed one by
  /// one.
  template <class F, Array... A>
  FSDP_INLINE static void walk(std::size_t n, F f, A... arrays) {
    std::size_t lead = 0, packed = 0;  // numbers of elements
    if constexpr (sizeof...(A) > 0) {
      constexpr std::size_t count = pack_of<A...>;
      lead = before_pack<count>(arrays...);
      if (lead < n && (is_aligned<count>(arrays + lead) && ...)) packed = (n - lead) / count * count;
      for (std::size_t i = threadIdx.x * count; i < packed; i += blockDim.x * count)
        each_of_packs<count>(f, Pack<A, count>(arrays + (lead + i))...);
    }
    for (std::size_t k = threadIdx.x; k < n - packed; k += blockDim.x) call(f, k < lead ? k : k + packed, arrays...);
  }
  template <std::size_t count, class A>
  FSDP_INLINE static bool is_aligned(A array) {
    return reinterpret_cast<std::uintptr_t>(&array[0]) % bytes_of<A, count> == 0;
  }
  /// The number of elements of the first array before its next pack.
  template <std::size_t count, class First, class... A>
  FSDP_INLINE static std::size_t before_pack(First first, A...) {
    return -reinterpret_cast<std::uintptr_t>(&first[0]) % bytes_of<First, count> / sizeof(typename ElementOf<First>::type);
  }
  template <std::size_t count, class F, class... P>
  FSDP_INLINE static void each_of_packs(F& f, P... packs) {
    FSDP_UNROLL
    for (std::size_t j = 0; j < count; ++j) f(packs[j]...);
    (packs.store(), ...);
  }

  template <class T, class Combine>
  FSDP_INLINE static T reduce(T value, Combine combine) {
    return reduce(Several<T, 1>{{value}}, combine).value[0];
  }
  /// Reduces each value over all lanes.
  template <class T, int count, class Combine>
  FSDP_INLINE static Several<T, count> reduce(Several<T, count> values, Combine combine) {
    __shared__ T part[count][most_warps];
    FSDP_UNROLL
    for (int k = 0; k < count; ++k) {
      T& value = values.value[k];
      FSDP_UNROLL
      for (unsigned distance = warp_size / 2; distance > 0; distance /= 2) value = combine(value, exchange(value, distance));
      if (lane_of_warp() == 0) part[k][warp_of_block()] = value;
    }
    __syncthreads();
    FSDP_UNROLL
    for (int k = 0; k < count; ++k) {
      values.value[k] = part[k][0];
      for (unsigned warp = 1; warp < blockDim.x / warp_size; ++warp) values.value[k] = combine(values.value[k], part[k][warp]);
    }
    __syncthreads();
    return values;
  }
  /// As reduce(), with the instruction that compares the integers of a warp.
  FSDP_INLINE static std::int32_t largest(std::int32_t value) {
    __shared__ std::int32_t part[most_warps];
    value = largest_of_warp(value);
    if (lane_of_warp() == 0) part[warp_of_block()] = value;
    __syncthreads();
    if (lane_of_warp() < blockDim.x / warp_size) value = part[lane_of_warp()];
    value = largest_of_warp(value);
    __syncthreads();
    return value;
  }
};

#endif

}  // namespace fsdp::kernels
