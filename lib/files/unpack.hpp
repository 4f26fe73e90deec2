// Unpacks what gzip and zstd have packed: whole files, from their beginning to their end, and blocks of known size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/user_error.hpp"
#include "files/input_file.hpp"

namespace fsdp {

/// Bytes that can be read once, from the beginning.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Appends the next bytes, a few MiB at most unless one row has more. Returns false at the end.
  virtual bool more(std::string& to) = 0;
};

/// Unpacks a file. Several gzip members or zstd frames one after the other are one stream of bytes. `more()` throws UserError
/// if the file is damaged, is cut, or has other bytes after its end.
std::unique_ptr<ByteStream> unpack_gzip(InputFile file);
/// The same for zstd. Throws UserError if this build has no zstd.
std::unique_ptr<ByteStream> unpack_zstd(InputFile file);

/// Unpacks a block. Returns false unless it is whole and has exactly `bytes` bytes.
bool unpack_gzip_block(std::string_view packed, char* to, std::size_t bytes);
bool unpack_zstd_block(std::string_view packed, char* to, std::size_t bytes);
bool unpack_snappy_block(std::string_view packed, char* to, std::size_t bytes);

/// The checksum that gzip and Parquet store.
std::uint32_t crc32_of(std::string_view bytes);

/// The version of libzstd, or why this build has none.
std::string zstd_version();
/// True if this build reads what zstd has packed.
extern const bool has_zstd;
/// The error for a file or a part of a file that zstd has packed, in a build without zstd.
UserError without_zstd(const std::string& what);

}  // namespace fsdp
