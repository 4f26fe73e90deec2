// XXH3-64 (xxhash.com, seed 0), the checksum of all files of this project.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

struct XXH3_state_s;

namespace fsdp {

std::uint64_t checksum(const void* data, std::size_t bytes);
/// Returns the checksum as 16 hexadecimal digits, such as "0123456789abcdef".
std::string checksum_text(std::uint64_t checksum);

/// The checksum of bytes that are added piece by piece.
class RunningSum {
 public:
  RunningSum();
  void add(const void* data, std::size_t bytes);
  std::uint64_t value() const;
  /// Resets the checksum to that of no bytes.
  void reset();

 private:
  std::unique_ptr<XXH3_state_s, int (*)(XXH3_state_s*)> state_;
};

/// Reads bytes [begin, end) of a file in pieces that fit into the cache, and calls handle(data, bytes) for each piece.
template <class File, class Handle>
void each_piece(const File& file, std::uint64_t begin, std::uint64_t end, Handle&& handle) {
  constexpr std::size_t most = std::size_t{256} << 10;  // large enough to hide the cost of a system call
  std::vector<char> piece(std::min<std::uint64_t>(most, end - begin));
  for (std::size_t n; begin < end; begin += n) {
    n = std::min<std::uint64_t>(piece.size(), end - begin);
    file.read(begin, piece.data(), n);
    handle(piece.data(), n);
  }
}

struct FileSum {
  std::uint64_t bytes = 0, checksum = 0;
  bool operator==(const FileSum&) const = default;
};
/// Returns the size and checksum of a whole file. After each piece that was read, calls `piece_done` with the piece's bytes.
/// Throws the errors of InputFile.
FileSum sum_file(const std::filesystem::path& path, const std::function<void(std::size_t)>& piece_done = nullptr);

}  // namespace fsdp
