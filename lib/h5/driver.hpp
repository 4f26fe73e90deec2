// HDF5's way to the bytes of a file: a file driver of ours, over one of two kinds of storage.
//
// Written files. HDF5 1.10 does not survive a write that fails (a full disk): objects that it cannot flush stay open, and it
// loops or crashes when they are closed again. So it never hears of one: the first error is kept, what follows is dropped, and
// the owner of the file asks for the error.
//
// Read files. HDF5 1.10 does not survive wrong bytes either: it gets those alone that were compared with their checksums, where
// the file has some, and else an error of the read.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>

#include "files/output_file.hpp"
#include "files/sealed_file.hpp"

namespace fsdp::h5 {

class Storage : public std::enable_shared_from_this<Storage> {
 public:
  virtual ~Storage() = default;
  virtual bool is_written() const = 0;
  virtual std::uint64_t size() const = 0;
  /// `numbers`: elements of a dataset, not what HDF5 parses.
  virtual void read(std::uint64_t offset, void* out, std::size_t bytes, bool numbers) = 0;
  virtual void write(std::uint64_t offset, const void* data, std::size_t bytes) = 0;
  virtual void resize(std::uint64_t bytes) = 0;
};

class WrittenStorage final : public Storage {
 public:
  /// Throws CallError, also if there is such a file.
  explicit WrittenStorage(const std::filesystem::path& path) : file_(path) {}
  bool is_written() const override { return true; }
  std::uint64_t size() const override { return size_; }
  /// What was never written, or was dropped, reads as zeros.
  void read(std::uint64_t offset, void* out, std::size_t bytes, bool numbers) override;
  void write(std::uint64_t offset, const void* data, std::size_t bytes) override;
  void resize(std::uint64_t bytes) override;

  /// The file itself, once HDF5 has closed it. Throws the first error of a write.
  OutputFile& file();
  /// Throws the first error of a write.
  void check() const;

 private:
  template <class Work>
  void keep_error(Work&& work);

  OutputFile file_;
  std::uint64_t size_ = 0;  // as HDF5 sees it
  std::exception_ptr error_;
};

class ReadStorage final : public Storage {
 public:
  ReadStorage(const std::filesystem::path& path, Verify verify, std::optional<FileSum> expected)
      : file_(path, verify, expected) {}
  bool is_written() const override { return false; }
  std::uint64_t size() const override { return file_.size(); }
  void read(std::uint64_t offset, void* out, std::size_t bytes, bool numbers) override {
    file_.read(offset, out, bytes, numbers);
  }
  void write(std::uint64_t, const void*, std::size_t) override {}
  void resize(std::uint64_t) override {}
  const CheckedFile& file() const { return file_; }

 private:
  CheckedFile file_;
};

/// Makes a list of file access properties go to `storage`.
void use_storage(std::int64_t access_list, Storage& storage);
/// What made a read of this thread fail since this was last asked, or null: HDF5 only says that it failed.
std::exception_ptr take_read_error();

}  // namespace fsdp::h5
