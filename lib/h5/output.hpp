// How HDF5's bytes get to the disk. HDF5 1.10 does not survive a write that fails (a full disk): objects that it cannot flush
// stay open, and it loops or crashes when they are closed again. So it writes through a file driver of ours that never fails:
// the first error is kept, what follows is dropped, and the owner of the file asks for the error and throws it.
//
// Large writes go past the page cache (O_DIRECT) where the file system allows that: copying into it takes a core that trains
// while a save goes on, and pages for it, which others need.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace fsdp::h5 {

class Output : public std::enable_shared_from_this<Output> {
 public:
  enum class Open { create, existing };
  /// Throws CallError, also if there is such a file, or with `existing` if there is none.
  explicit Output(std::string path, Open open = Open::create);
  Output(const Output&) = delete;
  ~Output();

  void write(std::uint64_t offset, const void* data, std::size_t bytes) noexcept;
  /// What was never written, or was dropped, reads as zeros.
  void read(std::uint64_t offset, void* data, std::size_t bytes) noexcept;
  void resize(std::uint64_t bytes) noexcept;
  std::uint64_t size() const { return size_; }

  /// Throws CallError if some write has failed.
  void check() const;
  /// Waits until all is on the disk, and closes. Throws CallError, also for an earlier failure.
  void finish();

 private:
  void failed(const char* call, std::uint64_t bytes, std::uint64_t offset) noexcept;
  void write_cached(std::uint64_t offset, const char* data, std::size_t bytes) noexcept;
  std::size_t write_direct(std::uint64_t offset, const char* data, std::size_t bytes) noexcept;
  std::string path_;
  int fd_, direct_fd_ = -1;  // the same file
  bool direct_refused_ = false;
  std::unique_ptr<char, void (*)(void*)> direct_piece_;  // what is written from, aligned
  std::uint64_t size_ = 0;
  std::string error_;
};

/// Makes a list of file access properties write to `output`.
void use_output(std::int64_t access_list, Output& output);

}  // namespace fsdp::h5
