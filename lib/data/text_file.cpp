#include "data/text_file.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/format.hpp"
#include "data/parquet.hpp"
#include "files/checksum.hpp"

namespace fsdp {

/// A storage format of texts: the first bytes of such a file, and the function that opens it.
struct TextFile::Packing {
  std::string_view signature;
  std::unique_ptr<ByteStream> (*open)(InputFile file);
  bool has_rows = false;
};

std::filesystem::path without_packing(std::filesystem::path name) {
  for (const char* const packed : {".gz", ".zst"})
    if (name.extension() == packed) return name.replace_extension();
  return name;
}

TextFile::TextFile(const std::filesystem::path& path) : path_(path) {
  static constexpr Packing packings[] = {
      {"\x1f\x8b", unpack_gzip}, {"\x28\xb5\x2f\xfd", unpack_zstd}, {"PAR1", rows_of_parquet, true}};
  const InputFile file(path);
  file_bytes_ = file.size();
  identity_ = file.identity();
  const std::string beginning = file.beginning(4);
  for (const Packing& packing : packings)
    if (beginning.starts_with(packing.signature)) packing_ = &packing;
  if (!packing_) text_bytes_ = file_bytes_;
}

bool TextFile::has_rows() const { return packing_ && packing_->has_rows; }

InputFile TextFile::open_again() const {
  InputFile file(path_);
  if (file.identity() != identity_)
    throw UserError(format("'{}' has changed while it was read (another program has written it); start again", path_.string()));
  return file;
}

std::uint64_t TextFile::size() const {
  if (text_bytes_) return *text_bytes_;
  std::string piece;
  std::uint64_t bytes = 0;
  for (const auto stream = packing_->open(open_again()); stream->more(piece); piece.clear()) bytes += piece.size();
  text_bytes_ = bytes;
  return bytes;
}

std::size_t TextFile::read(std::uint64_t offset, char* to, std::size_t bytes) const {
  if (!packing_) {
    if (!plain_) plain_.emplace(open_again());
    bytes = std::min<std::uint64_t>(bytes, file_bytes_ - std::min(offset, file_bytes_));
    plain_->read(offset, to, bytes);
    return bytes;
  }
  if (!stream_ || offset < piece_begin_) {
    close();
    stream_ = packing_->open(open_again());
  }
  std::size_t done = 0;
  while (done < bytes) {
    const std::uint64_t in_piece = offset + done - piece_begin_;
    if (in_piece < piece_.size()) {
      done += piece_.copy(to + done, bytes - done, in_piece);
      continue;
    }
    std::string next;
    if (!stream_->more(next)) {
      text_bytes_ = piece_begin_ + piece_.size();
      break;
    }
    piece_begin_ += piece_.size();
    piece_ = std::move(next);
  }
  return done;
}

std::string TextFile::beginning(std::size_t most) const {
  std::string bytes(packing_ ? most : std::min<std::uint64_t>(file_bytes_, most), '\0');
  bytes.resize(read(0, bytes.data(), bytes.size()));
  return bytes;
}

void TextFile::close() const {
  if (!is_kept_) plain_.reset();
  stream_.reset();
  piece_ = {};
  piece_begin_ = 0;
}

void TextFile::keep_open() {
  plain_.emplace(open_again());
  is_kept_ = true;
}

std::uint64_t TextFile::checksum_of_blocks() const {
  constexpr std::uint64_t blocks = 64, block_bytes = 64 << 10;
  const InputFile file = open_again();
  const bool is_short = file_bytes_ <= blocks * block_bytes;
  std::string block(is_short ? file_bytes_ : block_bytes, '\0');
  RunningSum sum;
  for (std::uint64_t k = 0; k < (is_short ? 1 : blocks); ++k) {
    file.read(k * (file_bytes_ - block.size()) / (blocks - 1), block.data(), block.size());
    sum.add(block.data(), block.size());
  }
  return sum.value();
}

}  // namespace fsdp
