// How fast a file for state is read and written (device/file_storage.hpp), and a plain loop of the same pieces.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>

#include "comm/communicator.hpp"
#include "device/device.hpp"
#include "device/storage.hpp"

namespace fsdp {

/// One pass over a file. `both` reads the first half of the file and writes the second half at the same time.
enum class FilePass { write, read, both };

/// Loads and unloads of a training run, without the rest: whole slots go between memory of the device and a `Storage`, and
/// reads and writes have a stream each.
class StoragePasses {
 public:
  /// `bytes` is the size of the storage, a multiple of 4 MiB.
  StoragePasses(Device& device, Storage& storage, std::size_t bytes);
  void run(FilePass pass);

 private:
  struct Direction {
    std::shared_ptr<Stream> stream;
    Buffer memory;
    std::size_t begin = 0, end = 0;  // the bytes of the storage that the next pass reads or writes
  };
  static std::byte* slot(const Direction& direction);
  Storage& storage_;
  std::size_t bytes_, slot_bytes_;
  Direction reads_, writes_;
};

/// The bound for a `Storage`: threads that read and write pieces of 1 MiB of an unnamed file past the page cache (O_DIRECT),
/// and do nothing else.
class PlainPasses {
 public:
  /// Throws UserError if the file cannot be made.
  PlainPasses(const std::filesystem::path& folder, std::size_t bytes);
  PlainPasses(const PlainPasses&) = delete;
  ~PlainPasses();
  /// Throws RunError if a call fails.
  void run(FilePass pass);
  static constexpr std::size_t threads = 8;  // for each direction, as a file for state has

 private:
  int file_ = -1;
  std::size_t bytes_;
  Buffer memory_;  // a piece for each thread
};

/// Returns the bytes per second of `pass`, which all ranks run at the same time over `bytes` bytes each. Collective over group:
/// if `run` throws on a rank, all throw CollectiveError.
double rate_of_pass(Group& group, std::size_t bytes, const std::function<void()>& run);

}  // namespace fsdp
