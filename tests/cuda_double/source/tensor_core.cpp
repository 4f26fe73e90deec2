// Tensor cores: see cuda_double_tensor_core.h. Compiled without sanitizers, as block.cpp: the lane that comes last reads what
// the others have on their stacks.
#include "cuda_double_tensor_core.h"

#include <atomic>
#include <cstring>

#include "base/element.hpp"
#include "double.hpp"

namespace fsdp::cuda_double {

namespace {

constexpr unsigned warp_lanes = 32;

struct Operands {
  float* sum;
  const std::uint32_t *left, *right;
};

float as_fp32(Half type, std::uint32_t part, int which) {
  const auto bits = static_cast<std::uint16_t>(which == 0 ? part & 0xffffu : part >> 16);
  return type == Half::bf16 ? element_parts::float_of(static_cast<std::uint32_t>(bits) << 16) : element_parts::from_f16(bits);
}

template <Half type>
void multiply(void* const* brought) {
  float left[16][16], right[16][8], sum[16][8];
  for (unsigned lane = 0; lane < warp_lanes; ++lane) {
    const auto& own = *static_cast<const Operands*>(brought[lane]);
    const unsigned group = lane >> 2, in_group = lane % 4;
    for (unsigned i = 0; i < 8; ++i) {
      const unsigned row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
      const unsigned column = in_group * 2 + (i & 1) + (i < 4 ? 0 : 8);
      left[row][column] = as_fp32(type, own.left[i / 2], static_cast<int>(i & 1));
    }
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = in_group * 2 + (i & 1) + (i < 2 ? 0 : 8);
      right[row][group] = as_fp32(type, own.right[i / 2], static_cast<int>(i & 1));
    }
    for (unsigned i = 0; i < 4; ++i) sum[i < 2 ? group : group + 8][in_group * 2 + (i & 1)] = own.sum[i];
  }
  for (unsigned row = 0; row < 16; ++row)
    for (unsigned k = 0; k < 16; ++k)
      for (unsigned column = 0; column < 8; ++column) sum[row][column] += left[row][k] * right[k][column];
  for (unsigned lane = 0; lane < warp_lanes; ++lane) {
    const unsigned group = lane >> 2, in_group = lane % 4;
    for (unsigned i = 0; i < 4; ++i)
      static_cast<Operands*>(brought[lane])->sum[i] = sum[i < 2 ? group : group + 8][in_group * 2 + (i & 1)];
  }
}

struct Rows {
  std::uint32_t* parts;
  const void* row;
};

std::uint32_t element(void* const* brought, unsigned matrix, unsigned row, unsigned column) {
  std::uint16_t bits;
  std::memcpy(&bits, static_cast<const std::uint16_t*>(static_cast<const Rows*>(brought[8 * matrix + row])->row) + column, 2);
  return bits;
}

std::atomic<std::uint64_t> conflicts = 0;

/// The 32 banks of shared memory have 4 bytes each, so the eight rows of a matrix must begin at different multiples of 16 bytes
/// modulo 128, unless they are the same row.
bool conflict(void* const* brought, unsigned matrix) {
  const void* in_banks[8] = {};
  for (unsigned row = 0; row < 8; ++row) {
    const void* const begin = static_cast<const Rows*>(brought[8 * matrix + row])->row;
    const void*& other = in_banks[reinterpret_cast<std::uintptr_t>(begin) / 16 % 8];
    if (other && other != begin) return true;
    other = begin;
  }
  return false;
}

template <bool transposed>
void read(void* const* brought) {
  for (unsigned matrix = 0; matrix < 4; ++matrix) conflicts += conflict(brought, matrix);
  for (unsigned lane = 0; lane < warp_lanes; ++lane)
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
      const unsigned one = lane / 4, two = lane % 4 * 2;
      static_cast<const Rows*>(brought[lane])->parts[matrix] =
          transposed ? element(brought, matrix, two, one) | element(brought, matrix, two + 1, one) << 16
                     : element(brought, matrix, one, two) | element(brought, matrix, one, two + 1) << 16;
    }
}

}  // namespace

std::uint64_t bank_conflicts() { return conflicts; }

void mma(Half type, float (&sum)[4], const std::uint32_t (&left)[4], const std::uint32_t (&right)[2]) {
  Operands own{sum, left, right};
  meet(&own, type == Half::bf16 ? multiply<Half::bf16> : multiply<Half::f16>);
}

void ldmatrix(std::uint32_t (&parts)[4], const void* row, bool transposed) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) refuse("ldmatrix is given an address that is no multiple of 16");
  Rows own{parts, row};
  meet(&own, transposed ? read<true> : read<false>);
}

}  // namespace fsdp::cuda_double
