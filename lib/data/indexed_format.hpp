// The memory-mapped data sets of Megatron-LM and fairseq: what their readers and writers agree on. NAME.bin is nothing but
// tokens. NAME.idx has the magic number, the version as uint64, the type of tokens as a byte, the number of sequences n as
// uint64; with Megatron, the number of entries of its index of documents as uint64. Then the lengths of the sequences,
// int32[n], and where each begins in NAME.bin, int64[n], in bytes; with Megatron, the first sequence of each document, and n
// behind the last one, int64; and, in some, a byte per sequence, its mode.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "data/stored_integers.hpp"

namespace fsdp::indexed {

inline constexpr std::string_view magic{"MMIDIDX\0\0", 9};
inline constexpr std::uint64_t version = 1, fairseq_header_bytes = 26, megatron_header_bytes = 34;

/// The codes of both programs mean the same types, as far as they are integers; those from 9 on are fairseq's alone.
struct TypeCode {
  unsigned char code;
  IntegerType type;
};
inline constexpr TypeCode type_codes[] = {{1, {1, false}}, {2, {1, true}},  {3, {2, true}},  {4, {4, true}},
                                          {5, {8, true}},  {8, {2, false}}, {9, {4, false}}, {10, {8, false}}};
/// Nothing for types that are not integers, and for what is none.
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

/// NAME of NAME.bin or NAME.idx, or of NAME itself if it is neither.
inline std::filesystem::path stem_of(const std::filesystem::path& path) {
  const std::filesystem::path extension = path.extension();
  return extension == ".bin" || extension == ".idx" ? std::filesystem::path(path).replace_extension() : path;
}
inline std::filesystem::path index_of(const std::filesystem::path& path) { return stem_of(path).string() + ".idx"; }
inline std::filesystem::path data_of(const std::filesystem::path& path) { return stem_of(path).string() + ".bin"; }

}  // namespace fsdp::indexed
