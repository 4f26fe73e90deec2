// Memory that processes of one machine share.
//
// A segment is an anonymous file of the kernel (memfd_create), which other processes open as /proc/PID/fd/N. A file in /dev/shm
// would remain after a killed job, and /dev/shm may be too small (64 MiB in many containers). A segment is reserved before use,
// so that reserve() throws if there is too little memory; with MPI_Win_allocate_shared of Open MPI 4.1, which reserves nothing,
// a later store would raise SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fsdp {

/// Another process can open a segment with this handle, until the process that created the segment calls close_file().
struct SegmentHandle {
  std::int64_t pid = -1, fd = -1;
  std::uint64_t device = 0, inode = 0, bytes = 0;
};

/// A mapping of a segment. Functions that fail throw std::system_error.
class Segment {
 public:
  Segment() = default;
  /// Returns new memory, filled with zeros and not yet reserved.
  static Segment create(std::size_t bytes);
  /// Opens a segment that another process created. Both must run on the same machine, in one PID namespace and as the same
  /// user.
  static Segment open(const SegmentHandle& handle);
  Segment(Segment&& other) noexcept { swap(other); }
  Segment& operator=(Segment&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Segment();

  /// Allocates the memory of [offset, offset + bytes) now, on the NUMA node of the calling core.
  void reserve(std::size_t offset, std::size_t bytes);
  SegmentHandle handle() const;
  /// Call this after all other processes have opened the segment and all of its memory has been reserved.
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
