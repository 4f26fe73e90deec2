// Memory that processes of one machine share.
//
// It is an anonymous file of the kernel (memfd_create), which others open as /proc/PID/fd/N. A file in /dev/shm would have a
// name that a killed job leaves behind, and a file system that may be too small (64 MiB in many containers).
// MPI_Win_allocate_shared of Open MPI 4.1 only sets a file's length; this memory is reserved before use, so that too little
// memory makes a call fail and not a store (SIGBUS).
#pragma once

#include <cstddef>
#include <cstdint>

namespace fsdp {

/// How another process finds a segment, until its maker closes the file.
struct SegmentHandle {
  std::int64_t pid = -1, fd = -1;
  std::uint64_t device = 0, inode = 0, bytes = 0;
};

/// One mapping of one segment. Errors are std::system_error.
class Segment {
 public:
  Segment() = default;
  /// Returns new memory, all zeros, not yet reserved.
  static Segment create(std::size_t bytes);
  /// Opens a segment that another process made. Both processes must have the same machine, PID namespace and user.
  static Segment open(const SegmentHandle& handle);
  Segment(Segment&& other) noexcept { swap(other); }
  Segment& operator=(Segment&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Segment();

  /// Gets the memory of [offset, offset + bytes) from the system now, on the NUMA node of the calling core.
  void reserve(std::size_t offset, std::size_t bytes);
  SegmentHandle handle() const;
  /// Call this after all others have opened the segment and all memory has been reserved.
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
