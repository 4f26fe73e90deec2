// A file of text as its readers see it: packed files are unpacked, and each row of a Parquet file is a line of JSON. The kind
// of a file is found from its first bytes, whatever its name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "files/input_file.hpp"
#include "files/unpack.hpp"

namespace fsdp {

/// Removes .gz or .zst from the end of a name.
std::filesystem::path without_packing(std::filesystem::path name);

class TextFile {
 public:
  /// Opens the file to find its kind, and closes it again. Throws the errors of InputFile.
  explicit TextFile(const std::filesystem::path& path);

  /// Returns true if the text is not simply the bytes of the file.
  bool is_packed() const { return packing_ != nullptr; }
  /// Returns true if each row of the file is a line of the text.
  bool has_rows() const;
  /// The size of the file.
  std::uint64_t size_of_file() const { return file_bytes_; }
  /// The number of bytes of the text. The first call for a packed file unpacks it as a whole, and so finds any damage.
  std::uint64_t size() const;
  /// Reads up to `bytes` bytes of the text from `offset` on. Returns their number, which is less only at the end of the text.
  /// Opens the file if it is closed. A packed file is unpacked from its beginning if `offset` is before the bytes that were
  /// read last. Throws the errors of InputFile, and UserError for a damaged file and for one that has changed.
  std::size_t read(std::uint64_t offset, char* to, std::size_t bytes) const;
  /// Reads the first `most` bytes of the text, or all if there are fewer.
  std::string beginning(std::size_t most) const;
  /// Closes the file until the next read(), because a process may have fewer open files than a data set has. Does nothing after
  /// keep_open().
  void close() const;
  /// Keeps a file that is not packed open, so that its name can be removed.
  void keep_open();
  /// A checksum of the whole file or, if it has more than 4 MiB, of 64 blocks of 64 KiB, among them the first and the last.
  std::uint64_t checksum_of_blocks() const;

 private:
  struct Packing;
  InputFile open_again() const;

  std::filesystem::path path_;
  const Packing* packing_ = nullptr;  // null: the text is the file's bytes
  std::uint64_t file_bytes_ = 0, identity_ = 0;
  mutable std::optional<std::uint64_t> text_bytes_;  // once it is known
  bool is_kept_ = false;
  mutable std::optional<InputFile> plain_;
  mutable std::unique_ptr<ByteStream> stream_;
  mutable std::string piece_;  // the part of a packed text that was unpacked last
  mutable std::uint64_t piece_begin_ = 0;
};

}  // namespace fsdp
