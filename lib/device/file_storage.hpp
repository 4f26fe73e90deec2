// The storage of a space in a file on a drive of this machine. Several threads read and write tiles of 1 MiB. Each tile has a
// checksum, so that bytes that a drive has changed are never used.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include <unistd.h>

#include "device/storage.hpp"

namespace fsdp {

/// A file's buffers begin at multiples of this. A storage's two streams must not copy parts of the same tile at the same time.
inline constexpr std::size_t tile_bytes = std::size_t{1} << 20;
/// The host memory (Device::allocate_staging()) that each file storage takes.
inline constexpr std::size_t file_staging_bytes = 17 * tile_bytes + 4096;

/// Makes `bytes` zeros in a file of `folder` without a name, which disappears with the process however that ends. Reserves the
/// space on the drive, if the file system can. Throws UserError if there is too little; the message has the bytes wanted and
/// free.
std::unique_ptr<Storage> make_file_storage(const std::filesystem::path& folder, std::size_t bytes, Device& device);

class OwnedDescriptor {
 public:
  explicit OwnedDescriptor(int fd) : fd_(fd) {}
  OwnedDescriptor(OwnedDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~OwnedDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  operator int() const { return fd_; }

 private:
  int fd_;
};

/// Opens a new file without a name, with O_DIRECT unless the file system refuses that. Throws UserError.
OwnedDescriptor open_unnamed(const std::filesystem::path& folder);

/// Throws UserError if a storage's file cannot be in the folder: it is missing, not writable, or in memory. Returns a warning
/// if it should not be there: the file system is over the network, keeps what is written in memory, or cannot reserve space;
/// empty: no warning.
std::string check_storage_folder(const std::filesystem::path& folder);

/// The bytes that this user can still write in the folder's file system. Throws UserError if the system does not report them.
std::size_t free_bytes_of(const std::filesystem::path& folder);

}  // namespace fsdp
