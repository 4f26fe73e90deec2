// The format of the memory-mapped data sets of Megatron-LM and fairseq. NAME.bin has only tokens. NAME.idx has the magic
// number, the version as uint64, the type of tokens as a byte, and the number of sequences n as uint64. Megatron adds the
// number of entries of its document index as uint64. Then follow the lengths of the sequences as int32[n], and the byte offsets
// of the sequences in NAME.bin as int64[n]. Megatron adds its document index, which is the first sequence of each document and
// then n, all as int64. In some files a byte per sequence follows, its mode.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "data/stored_integers.hpp"

namespace fsdp::indexed {

inline constexpr std::string_view magic{"MMIDIDX\0\0", 9};
inline constexpr std::uint64_t version = 1, fairseq_header_bytes = 26, megatron_header_bytes = 34;

/// The codes of integer types. They have the same meaning in Megatron-LM and fairseq; only fairseq has codes 9 and 10.
struct TypeCode {
  unsigned char code;
  IntegerType type;
};
inline constexpr TypeCode type_codes[] = {{1, {1, false}}, {2, {1, true}},  {3, {2, true}},  {4, {4, true}},
                                          {5, {8, true}},  {8, {2, false}}, {9, {4, false}}, {10, {8, false}}};
/// Returns nullopt for types that are not integers and for invalid codes.
inline std::optional<IntegerType> type_of(unsigned char code) {
  for (const TypeCode& row : type_codes)
    if (row.code == code) return row.type;
  return std::nullopt;
}
inline unsigned char code_of(IntegerType type) {
  for (const TypeCode& row : type_codes)
    if (row.type == type) return row.code;
  return 0;
}

/// NAME for NAME.bin or NAME.idx; any other path unchanged.
inline std::filesystem::path stem_of(const std::filesystem::path& path) {
  const std::filesystem::path extension = path.extension();
  return extension == ".bin" || extension == ".idx" ? std::filesystem::path(path).replace_extension() : path;
}
inline std::filesystem::path index_of(const std::filesystem::path& path) { return stem_of(path).string() + ".idx"; }
inline std::filesystem::path data_of(const std::filesystem::path& path) { return stem_of(path).string() + ".bin"; }

}  // namespace fsdp::indexed
