#include "comm/shm/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include "base/format.hpp"
#include "base/narrow.hpp"

namespace fsdp {

namespace {

[[noreturn]] void fail(const char* call, int code) { throw std::system_error(code, std::system_category(), call); }

// Throws unless `ok` is true. errno is read here, after the caller has computed `ok`.
void require(bool ok, const char* call) {
  if (!ok) fail(call, errno);
}

}  // namespace

Segment Segment::create(std::size_t bytes) {
  Segment made;
  made.bytes_ = bytes;
  made.fd_ = memfd_create("fsdp", MFD_CLOEXEC);
  require(made.fd_ >= 0, "memfd_create");
  require(ftruncate(made.fd_, narrow<off_t>(bytes)) == 0, "ftruncate");
  made.map();
  return made;
}

Segment Segment::open(const SegmentHandle& handle) {
  Segment found;
  found.bytes_ = handle.bytes;
  const std::string path = format("/proc/{}/fd/{}", handle.pid, handle.fd);
  found.fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  require(found.fd_ >= 0, path.c_str());
  // In another PID namespace, handle.pid is the number of another process.
  struct stat file;
  require(fstat(found.fd_, &file) == 0, "fstat");
  if (file.st_dev != handle.device || file.st_ino != handle.inode) fail((path + " is another process's").c_str(), ENOENT);
  found.map();
  return found;
}

Segment::~Segment() {
  if (data_ != nullptr) munmap(data_, bytes_);
  close_file();
}

void Segment::map() {
  if (bytes_ == 0) return;
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  require(memory != MAP_FAILED, "mmap");
  madvise(memory, bytes_, MADV_HUGEPAGE);  // takes effect if the system has huge pages for shared memory
  data_ = static_cast<std::byte*>(memory);
}

void Segment::reserve(std::size_t offset, std::size_t bytes) {
  constexpr std::size_t piece = std::size_t{64} << 20;  // in pieces, so that a signal interrupts only one
  for (std::size_t done = 0; done < bytes; done += piece) {
    int code;
    do {
      code = posix_fallocate(fd_, narrow<off_t>(offset + done), narrow<off_t>(std::min(piece, bytes - done)));
    } while (code == EINTR);
    if (code != 0) fail("posix_fallocate", code);
  }
}

SegmentHandle Segment::handle() const {
  struct stat file;
  require(fstat(fd_, &file) == 0, "fstat");
  return {getpid(), fd_, file.st_dev, file.st_ino, bytes_};
}

void Segment::close_file() noexcept {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void Segment::swap(Segment& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
}

}  // namespace fsdp
