// Memory that processes of one machine share.
//
// It is an anonymous file of the kernel (memfd_create), which others open as /proc/PID/fd/N. Unlike a file in /dev/shm it has
// no name that a killed job leaves behind and no file system that may be too small (64 MiB in many containers); unlike
// MPI_Win_allocate_shared of Open MPI 4.1, which only sets a file's length, it is reserved before use: where memory is short, a
// call fails instead of a store (SIGBUS).
#pragma once

#include <cstddef>
#include <cstdint>

namespace fsdp {

/// How another process finds a segment, as long as its maker has not closed the file.
struct SegmentHandle {
  std::int64_t pid = -1, fd = -1;
  std::uint64_t device = 0, inode = 0, bytes = 0;
};

/// One mapping of one segment. Errors are std::system_error.
class Segment {
 public:
  Segment() = default;
  /// New memory, all zeros, not reserved yet.
  static Segment create(std::size_t bytes);
  /// What another process of this machine (and of its PID namespace) made; it needs the same user.
  static Segment open(const SegmentHandle& handle);
  Segment(Segment&& other) noexcept { swap(other); }
  Segment& operator=(Segment&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Segment();

  /// Gets the memory of [offset, offset + bytes) from the system now, near the core that calls.
  void reserve(std::size_t offset, std::size_t bytes);
  SegmentHandle handle() const;
  /// Once all others have opened it, and nothing is left to reserve.
  void close_file() noexcept;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void map();
  void swap(Segment& other) noexcept;

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  int fd_ = -1;
};

}  // namespace fsdp
