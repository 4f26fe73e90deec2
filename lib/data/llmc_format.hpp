// The header of llm.c's token files: 256 little-endian int32 numbers. The first three are a magic number, a version and
// the number of tokens; the others are 0.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace fsdp {

static_assert(std::endian::native == std::endian::little, "token files are read and written as they are");

using LlmcHeader = std::array<std::int32_t, 256>;

struct LlmcFormat {
  std::int32_t magic, version;
  std::size_t token_bytes;
};
inline constexpr LlmcFormat narrow_llmc = {20240520, 1, 2}, wide_llmc = {20240801, 7, 4};

}  // namespace fsdp
