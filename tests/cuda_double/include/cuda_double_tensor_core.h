// Tensor cores and asynchronous copies on the double of CUDA (see cuda_runtime_api.h); the product calls them through
// kernels/cuda/tensor_core.hpp. A product, and ldmatrix, is a barrier of a whole warp. The assignment of numbers to lanes is
// that of the PTX ISA, written independently of the product's code.
//
// A copy fills its place with the bytes 0xff (NaN) when it begins, and reads and writes nothing until the lane that began it
// waits for it. So code that begins a copy while others still read its place, that does not wait, or that has no barrier after
// the wait, computes with NaN. Copies without a wait are never made.
#pragma once

#include <cstdint>

#include "cuda_runtime.h"

namespace fsdp::cuda_double {

enum class Half { bf16, f16 };

/// mma.sync.aligned.m16n8k16 with sums in fp32, in the order of k.
void mma(Half type, float (&sum)[4], const std::uint32_t (&left)[4], const std::uint32_t (&right)[2]);
/// ldmatrix.sync.aligned.m8n8.x4, with .trans if `transposed`.
void ldmatrix(std::uint32_t (&parts)[4], const void* row, bool transposed);
/// Returns how many 8 x 8 matrices of ldmatrix had rows that share banks of shared memory, which a GPU reads one after another.
std::uint64_t bank_conflicts();

/// cp.async, with a source of no bytes unless they are `there`; cp.async.commit_group; cp.async.wait_group.
void copy_async(void* to, const void* from, unsigned bytes, bool there);
void commit_copies();
void wait_copies(unsigned groups);

}  // namespace fsdp::cuda_double
