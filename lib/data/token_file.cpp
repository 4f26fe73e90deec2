#include "data/token_file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

static_assert(std::endian::native == std::endian::little, "token files are mapped as they are");

namespace {

using Header = std::array<std::int32_t, 256>;
constexpr std::int32_t magic = 20240520, version = 1;

/// Closes a file descriptor unless it was closed before.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  /// A write that failed late may show only here.
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

/// Writes all of `data`. False with errno set if the system did not take it.
bool write_all(int fd, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd, at, std::min<std::size_t>(bytes, 1u << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path) : path_(path) {
  const auto reject = [&](const std::string& why) {
    return UserError(format("'{}' is not a token file that can be used ({}) make one with fsdp-tokenize TEXT... --out FILE.bin",
                            path.string(), why));
  };
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) throw reject(std::strerror(errno));
  struct stat status {};
  check_errno(::fstat(file.get(), &status) == 0, "stat " + path.string());
  if (S_ISDIR(status.st_mode)) throw reject("it is a folder");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (bytes == 0) throw reject("it is empty");
  if (bytes < sizeof(Header)) throw reject(format("{} bytes are too few for the header of {}", bytes, sizeof(Header)));

  void* map = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
  check_errno(map != MAP_FAILED, "mmap " + path.string());
  map_ = map;
  map_bytes_ = bytes;
  const auto* header = static_cast<const std::int32_t*>(map);
  try {
    if (header[0] != magic) throw reject(format("it starts with {}, a llm.c token file with {}", header[0], magic));
    if (header[1] != version)
      throw reject(format("it is of version {}, only version {} with tokens of 16 bits is read", header[1], version));
    const auto stored = (bytes - sizeof(Header)) / sizeof(std::uint16_t);
    if (header[2] < 0 || stored < static_cast<std::size_t>(header[2]))
      throw reject(format("it is truncated: its header says {} tokens, {} are there", header[2], stored));
    if (bytes != sizeof(Header) + sizeof(std::uint16_t) * static_cast<std::size_t>(header[2]))
      throw reject(format("its header says {} tokens, but {} bytes follow them", header[2],
                          bytes - sizeof(Header) - sizeof(std::uint16_t) * static_cast<std::size_t>(header[2])));
  } catch (...) {
    ::munmap(map_, map_bytes_);
    throw;
  }
  tokens_ = {reinterpret_cast<const std::uint16_t*>(header + std::tuple_size_v<Header>), static_cast<std::size_t>(header[2])};
}

TokenFile::TokenFile(TokenFile&& other) noexcept
    : path_(std::move(other.path_)),
      map_(std::exchange(other.map_, nullptr)),
      map_bytes_(std::exchange(other.map_bytes_, 0)),
      tokens_(std::exchange(other.tokens_, {})) {}

TokenFile::~TokenFile() {
  if (map_ != nullptr) ::munmap(map_, map_bytes_);
}

void TokenFile::refuse_token(std::size_t position, std::size_t vocab_size) const {
  throw UserError(format(
      "token {} at position {} of '{}' is outside the vocabulary of {} (the file was made with another tokenizer, or the "
      "model is another one); tokenize again or set --vocab-size",
      tokens_[position], position, path_.string(), vocab_size));
}

void TokenFile::check_vocabulary(std::size_t vocab_size, std::size_t part, std::size_t parts) const {
  const Range mine = share(tokens(), parts, part);
  constexpr std::size_t piece = std::size_t{1} << 21;
  for (std::size_t begin = mine.begin; begin < mine.end; begin += piece) {
    const auto tokens = tokens_.subspan(begin, std::min(piece, mine.end - begin));
    const auto largest = std::max_element(tokens.begin(), tokens.end());
    if (*largest >= vocab_size) refuse_token(begin + static_cast<std::size_t>(largest - tokens.begin()), vocab_size);
    ::madvise(map_, map_bytes_, MADV_DONTNEED);  // the file's pages are not memory of the run
  }
}

void TokenFile::read(std::size_t k, std::size_t T, std::size_t vocab_size, std::int32_t* inputs, std::int32_t* targets) const {
  const std::size_t begin = std::min(k * T, tokens());
  const std::size_t present = std::min(T + 1, tokens() - begin);
  const std::uint16_t* const from = tokens_.data() + begin;
  const std::size_t targets_present = present == 0 ? 0 : present - 1;
  for (std::size_t t = 0; t < present; ++t) {
    if (from[t] >= vocab_size) [[unlikely]]
      refuse_token(begin + t, vocab_size);
    if (t < targets_present) inputs[t] = from[t];
    if (t > 0) targets[t - 1] = from[t];
  }
  std::fill(inputs + targets_present, inputs + T, 0);
  std::fill(targets + targets_present, targets + T, -1);
}

void write_token_file(const std::filesystem::path& path, std::span<const std::uint16_t> tokens) {
  std::error_code none;
  if (std::filesystem::exists(path, none) && !std::filesystem::is_regular_file(path, none) &&
      !std::filesystem::is_directory(path, none))
    throw UserError(format("cannot write '{}' (it is there and not a plain file); choose another name", path.string()));
  if (!std::in_range<std::int32_t>(tokens.size()))
    throw UserError(
        format("{} tokens do not fit into one token file (its header counts to 2147483647) split the text", tokens.size()));
  Header header{};
  header[0] = magic;
  header[1] = version;
  header[2] = static_cast<std::int32_t>(tokens.size());

  const std::filesystem::path temporary = path.string() + format(".tmp-{}", ::getpid());
  Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.get() < 0)
    throw UserError(format("cannot write '{}' ({}) give a path in a folder that exists and can be written", path.string(),
                           std::strerror(errno)));
  const bool whole = write_all(file.get(), header.data(), sizeof(header)) &&
                     write_all(file.get(), tokens.data(), tokens.size_bytes()) && ::fsync(file.get()) == 0 && file.close() &&
                     ::rename(temporary.c_str(), path.c_str()) == 0;
  if (!whole) {
    const int code = errno;
    ::unlink(temporary.c_str());
    errno = code;
    check_errno(false, "write " + path.string());
  }
  // The new name itself must survive a crash.
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  const Descriptor parent(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (parent.get() >= 0) ::fsync(parent.get());
}

}  // namespace fsdp
