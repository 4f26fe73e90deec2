// How fast a file for state is read and written (device/file_storage.hpp), and a plain loop of the same pieces.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>

#include "comm/communicator.hpp"
#include "device/device.hpp"
#include "device/file_storage.hpp"
#include "device/storage.hpp"

namespace fsdp {

/// One pass over a file. `both` reads the first half of the file and writes the second half at the same time.
enum class FilePass { write, read, both };

/// Times the transfers of loads and unloads, without computing: slots are copied between memory of the device and a `Storage`,
/// with one stream for each direction.
class StoragePasses {
 public:
  /// `bytes` is the size of the storage, a multiple of 4 MiB.
  StoragePasses(Device& device, Storage& storage, std::size_t bytes);
  void run(FilePass pass);

 private:
  struct Direction {
    std::shared_ptr<Stream> stream;
    Buffer memory;
    std::size_t end = 0;  // the first byte after those that the next pass reads or writes
  };
  Storage& storage_;
  std::size_t bytes_, slot_bytes_;
  Direction reads_, writes_;
};

/// What StoragePasses are compared with: threads that only read and write pieces of 1 MiB of an unnamed file, with O_DIRECT.
class PlainPasses {
 public:
  /// Throws UserError if the file cannot be made.
  PlainPasses(const std::filesystem::path& folder, std::size_t bytes);
  /// Throws RunError if a call fails.
  void run(FilePass pass);
  static constexpr std::size_t threads = 8;  // for each direction

 private:
  OwnedDescriptor file_;
  std::size_t bytes_;
  Buffer memory_;  // a piece for each thread
};

/// Calls `run` on all ranks at once, and returns their bytes per second together; each rank's are `bytes` bytes. Collective
/// over group: if `run` throws on a rank, all throw CollectiveError.
double rate_of_pass(Group& group, std::size_t bytes, const std::function<void()>& run);

}  // namespace fsdp
