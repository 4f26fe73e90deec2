// Functions for the instructions of tensor cores and of asynchronous copies into shared memory, one function for each
// instruction. All exist on compute capability 8.0 and later. nvcc compiles them to PTX. In tests that emulate CUDA on the CPU,
// the lanes of a warp exchange their fragments (tests/cuda_double/include/cuda_double_tensor_core.h). Only .cu files include
// this header.
//
// A whole warp computes a product together. With g = lane / 4 and t = lane % 4, a lane holds these numbers of the operands (PTX
// ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"), two 16-bit numbers per register, the first one in its
// lower half:
//   left, 16 x 16    rows g, g + 8, g, g + 8 of columns 2t and 2t + 1; for the last two registers, columns 2t + 8 and 2t + 9
//   right, 16 x 8    rows 2t and 2t + 1 of column g; for the second register, rows 2t + 8 and 2t + 9
//   sum, 16 x 8      columns 2t and 2t + 1 of row g, then of row g + 8
// So the sums of two adjacent products, rounded to 16 bits, are a left operand, and lanes need not exchange anything.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/element.hpp"
#include "device/cuda/warp.hpp"
#include "kernels/math.hpp"

#if defined(FSDP_CUDA_DOUBLE)
#include "cuda_double_tensor_core.h"
#endif

namespace fsdp::kernels {

static_assert(warp_size == 32, "fragments are spread over 32 lanes");

struct LeftFragment {
  std::uint32_t part[4];
};
struct RightFragment {
  std::uint32_t part[2];
};
struct SumFragment {
  float part[4] = {};
};

/// The result of ldmatrix: four 8 x 8 parts.
struct FourParts {
  std::uint32_t part[4];
};

#if defined(FSDP_CUDA_DOUBLE)

template <class E>
inline constexpr cuda_double::Half half_of = std::is_same_v<E, bf16> ? cuda_double::Half::bf16 : cuda_double::Half::f16;

template <class E>
void mma(SumFragment& sum, const LeftFragment& left, const RightFragment& right) {
  cuda_double::mma(half_of<E>, sum.part, left.part, right.part);
}
inline FourParts ldmatrix(const void* row) {
  FourParts parts;
  cuda_double::ldmatrix(parts.part, row, false);
  return parts;
}
inline FourParts ldmatrix_transposed(const void* row) {
  FourParts parts;
  cuda_double::ldmatrix(parts.part, row, true);
  return parts;
}
template <unsigned bytes>
void copy_async(void* to, const void* from, bool there) {
  cuda_double::copy_async(to, from, bytes, there);
}
inline void commit_copies() { cuda_double::commit_copies(); }
template <unsigned groups>
void wait_copies() {
  cuda_double::wait_copies(groups);
}
template <class E>
std::uint32_t pack(float first, float second) {
  return E(first).bits | static_cast<std::uint32_t>(E(second).bits) << 16;
}
inline float exp2_approximate(float x) { return std::exp2(x); }

#else

/// sum += left * right, in fp32.
template <class E>
__device__ __forceinline__ void mma(SumFragment& sum, const LeftFragment& left, const RightFragment& right) {
  float* const s = sum.part;
  const std::uint32_t *const a = left.part, *const b = right.part;
  if constexpr (std::is_same_v<E, bf16>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ unsigned shared_address(const void* in_shared_memory) {
  return static_cast<unsigned>(__cvta_generic_to_shared(in_shared_memory));
}

/// Reads four 8 x 8 matrices of 16-bit numbers. Lane 8 i + r passes in `row` the address of row r of matrix i: 16 bytes of
/// shared memory, aligned to 16. Part i receives columns 2t and 2t + 1 of row g of matrix i.
__device__ __forceinline__ FourParts ldmatrix(const void* row) {
  FourParts p;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(p.part[0]), "=r"(p.part[1]), "=r"(p.part[2]), "=r"(p.part[3])
               : "r"(shared_address(row))
               : "memory");
  return p;
}
/// As ldmatrix(), with each matrix transposed: part i receives rows 2t and 2t + 1 of column g.
__device__ __forceinline__ FourParts ldmatrix_transposed(const void* row) {
  FourParts p;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(p.part[0]), "=r"(p.part[1]), "=r"(p.part[2]), "=r"(p.part[3])
               : "r"(shared_address(row))
               : "memory");
  return p;
}

/// Starts copying 4 or 16 bytes from device memory to shared memory. Both addresses are aligned to this size. If `there` is
/// false, writes zeros instead, and `from` need not be an address of any memory. This lane sees the bytes after wait_copies(),
/// and the other lanes of the block after the next barrier.
template <unsigned bytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool there) {
  static_assert(bytes == 4 || bytes == 16);
  if constexpr (bytes == 16)  // bypasses the L1 cache, since no other copy reuses the bytes there
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 4 : 0)
                 : "memory");
}
/// Makes a group of the copies that this lane has started since its last call of this function.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits for all of this lane's groups except the last `groups`.
template <unsigned groups>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

/// Rounds both numbers to E and packs them into a register.
template <class E>
__device__ __forceinline__ std::uint32_t pack(float first, float second) {
  std::uint32_t both;
  if constexpr (std::is_same_v<E, bf16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}

/// 2^x in one instruction, with a relative error of 2^-22; 0 below -126.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#endif

}  // namespace fsdp::kernels
