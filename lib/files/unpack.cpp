#include "files/unpack.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include <zlib.h>
#ifdef FSDP_ZSTD
#include <zstd.h>
#include <zstd_errors.h>
#endif

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

constexpr std::size_t packed_bytes = std::size_t{256} << 10, unpacked_bytes = std::size_t{1} << 17;

/// The bytes of a packed file that have been read and not yet unpacked.
class PackedFile {
 public:
  PackedFile(InputFile file, const char* packer) : file_(std::move(file)), packer_(packer) {}

  /// The bytes at hand; none at the end of the file.
  std::string_view bytes() {
    if (at_ == piece_.size()) {
      begin_ += piece_.size();
      piece_.resize(std::min<std::uint64_t>(packed_bytes, file_.size() - begin_));
      file_.read(begin_, piece_.data(), piece_.size());
      at_ = 0;
    }
    return std::string_view(piece_).substr(at_);
  }
  void use(std::size_t bytes) { at_ += bytes; }

  [[noreturn]] void fail(const std::string& why) const {
    throw UserError(format("'{}' cannot be unpacked ({}, at byte {} of {}); copy it again, or pack it again with {}",
                           file_.path().string(), why, begin_ + at_, file_.size(), packer_));
  }

 private:
  InputFile file_;
  const char* packer_;
  std::string piece_;
  std::size_t at_ = 0;       // the first byte of `piece_` that is not yet unpacked
  std::uint64_t begin_ = 0;  // the position of `piece_` in the file
};

/// zlib does not change its input, but its type is not const.
Bytef* as_input(const char* bytes) { return reinterpret_cast<Bytef*>(const_cast<char*>(bytes)); }

/// Appends up to unpacked_bytes bytes that `fill(to, bytes)` writes. It returns how many it has written.
template <class Fill>
bool append(std::string& to, const Fill& fill) {
  const std::size_t before = to.size();
  to.resize(before + unpacked_bytes);
  const std::size_t got = fill(to.data() + before, unpacked_bytes);
  to.resize(before + got);
  return got > 0;
}

class GzipStream : public ByteStream {
 public:
  explicit GzipStream(InputFile file) : packed_(std::move(file), "gzip") {
    if (::inflateInit2(&state_, 16 + MAX_WBITS) != Z_OK) throw CallError("inflateInit2", "zlib could not be started");
  }
  ~GzipStream() override { ::inflateEnd(&state_); }

  bool more(std::string& to) override {
    return append(to, [&](char* out, std::size_t bytes) {
      state_.next_out = reinterpret_cast<Bytef*>(out);
      state_.avail_out = static_cast<uInt>(bytes);
      while (state_.avail_out > 0) {
        const std::string_view in = packed_.bytes();
        if (in.empty() && is_between_members_) break;
        if (in.empty()) packed_.fail("it was cut");
        if (is_between_members_ && in.front() != '\x1f') packed_.fail("other bytes follow its end");
        state_.next_in = as_input(in.data());
        state_.avail_in = static_cast<uInt>(in.size());
        const int result = ::inflate(&state_, Z_NO_FLUSH);
        packed_.use(in.size() - state_.avail_in);
        if (result != Z_OK && result != Z_STREAM_END)
          packed_.fail(format("it is damaged: {}", state_.msg ? state_.msg : "unknown content"));
        is_between_members_ = result == Z_STREAM_END;
        if (is_between_members_) ::inflateReset(&state_);
      }
      return bytes - state_.avail_out;
    });
  }

 private:
  PackedFile packed_;
  z_stream state_ = {};
  bool is_between_members_ = false;
};

#ifdef FSDP_ZSTD
class ZstdStream : public ByteStream {
 public:
  explicit ZstdStream(InputFile file) : packed_(std::move(file), "zstd"), state_(::ZSTD_createDStream(), ::ZSTD_freeDStream) {
    if (!state_) throw CallError("ZSTD_createDStream", "no memory");
  }

  bool more(std::string& to) override {
    return append(to, [&](char* out, std::size_t bytes) {
      ZSTD_outBuffer written = {out, bytes, 0};
      while (written.pos < bytes) {
        const std::string_view in = packed_.bytes();
        if (in.empty() && is_between_frames_) break;
        ZSTD_inBuffer read = {in.data(), in.size(), 0};
        const std::size_t before = written.pos, result = ::ZSTD_decompressStream(state_.get(), &written, &read);
        packed_.use(read.pos);
        if (::ZSTD_isError(result)) fail(result);
        if (in.empty() && result != 0 && written.pos == before) packed_.fail("it was cut");
        is_between_frames_ = result == 0;
      }
      return written.pos;
    });
  }

 private:
  [[noreturn]] void fail(std::size_t result) const {
    switch (::ZSTD_getErrorCode(result)) {
      case ZSTD_error_frameParameter_windowTooLarge:
        packed_.fail("it was packed with a window of more than 128 MiB");
      case ZSTD_error_prefix_unknown:
        packed_.fail("other bytes follow its end");
      default:
        packed_.fail(format("it is damaged: {}", ::ZSTD_getErrorName(result)));
    }
  }

  PackedFile packed_;
  std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> state_;
  bool is_between_frames_ = false;
};
#endif

}  // namespace

std::unique_ptr<ByteStream> unpack_gzip(InputFile file) { return std::make_unique<GzipStream>(std::move(file)); }

bool unpack_gzip_block(std::string_view packed, char* to, std::size_t bytes) {
  if (std::max(packed.size(), bytes) > std::numeric_limits<uInt>::max()) return false;
  z_stream state = {};
  state.next_in = as_input(packed.data());
  state.avail_in = static_cast<uInt>(packed.size());
  state.next_out = reinterpret_cast<Bytef*>(to);
  state.avail_out = static_cast<uInt>(bytes);
  if (::inflateInit2(&state, 32 + MAX_WBITS) != Z_OK) return false;  // 32: also zlib's own header
  const bool ends = ::inflate(&state, Z_FINISH) == Z_STREAM_END;
  ::inflateEnd(&state);
  return ends && state.avail_out == 0;
}

std::uint32_t crc32_of(std::string_view bytes) {
  return static_cast<std::uint32_t>(::crc32_z(0, as_input(bytes.data()), bytes.size()));
}

/// The format is described in google/snappy's format_description.txt: the unpacked size, then literals and copies of earlier
/// bytes.
bool unpack_snappy_block(std::string_view packed, char* to, std::size_t bytes) {
  std::size_t at = 0, done = 0;
  const auto number = [&](std::size_t width) {  // little-endian; 0 if the block is cut, which the checks below notice
    std::size_t value = 0;
    for (std::size_t i = 0; i < width && at < packed.size(); ++i)
      value |= std::size_t{static_cast<unsigned char>(packed[at++])} << (8 * i);
    return value;
  };
  std::size_t size = 0;
  for (unsigned shift = 0; shift < 35; shift += 7) {
    const std::size_t byte = number(1);
    size |= (byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  if (size != bytes) return false;
  while (at < packed.size()) {
    const std::size_t tag = number(1), kind = tag & 3;
    std::size_t length = (tag >> 2) + 1;
    if (kind == 0) {
      if (length > 60) length = number(length - 60) + 1;
      if (length > packed.size() - at || length > bytes - done) return false;
      std::memcpy(to + done, packed.data() + at, length);
      at += length;
    } else {
      std::size_t distance = 0;
      if (kind == 1) {
        length = ((tag >> 2) & 7) + 4;
        distance = (tag >> 5) << 8;
      }
      distance += number(kind == 3 ? 4 : kind);
      if (distance == 0 || distance > done || length > bytes - done) return false;
      for (std::size_t i = 0; i < length; ++i) to[done + i] = to[done + i - distance];  // the two may overlap
    }
    done += length;
  }
  return done == bytes;
}

UserError without_zstd(const std::string& what) {
  return UserError(
      format("{} was packed by zstd, which this build does not read (it was configured without libzstd); unpack "
             "it with zstd -d, or build with -DFSDP_WITH_ZSTD=ON",
             what));
}

#ifdef FSDP_ZSTD
const bool has_zstd = true;
std::string zstd_version() { return ::ZSTD_versionString(); }
std::unique_ptr<ByteStream> unpack_zstd(InputFile file) { return std::make_unique<ZstdStream>(std::move(file)); }
bool unpack_zstd_block(std::string_view packed, char* to, std::size_t bytes) {
  return ::ZSTD_decompress(to, bytes, packed.data(), packed.size()) == bytes;
}
#else
const bool has_zstd = false;
std::string zstd_version() { return "none (this build does not read what zstd has packed: FSDP_WITH_ZSTD)"; }
std::unique_ptr<ByteStream> unpack_zstd(InputFile file) { throw without_zstd(format("'{}'", file.path().string())); }
bool unpack_zstd_block(std::string_view, char*, std::size_t) { return false; }
#endif

}  // namespace fsdp
