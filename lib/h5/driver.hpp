// Our HDF5 file driver, through which HDF5 reads and writes the bytes of a file. There are two kinds of Storage, which provide
// the bytes.
//
// WrittenStorage: a file that is written. HDF5 1.10 loops or crashes after a failed write (a full disk), because objects that
// it cannot flush stay open, and it tries to close them again. So the driver does not report the failure to HDF5. Instead, the
// storage keeps the first error and drops all later writes. The owner of the file must call check() or file(), which throw
// that error.
//
// ReadStorage: a file that is read. HDF5 1.10 may also crash on damaged bytes. If the file has checksums, HDF5 gets only bytes
// that match their checksum; the read of any other bytes fails.
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
  /// `numbers` is true for elements of a dataset, false for bytes that HDF5 parses.
  virtual void read(std::uint64_t offset, void* out, std::size_t bytes, bool numbers) = 0;
  virtual void write(std::uint64_t offset, const void* data, std::size_t bytes) = 0;
  virtual void resize(std::uint64_t bytes) = 0;
};

class WrittenStorage final : public Storage {
 public:
  /// Creates the file. Throws CallError if that fails or the file exists.
  explicit WrittenStorage(const std::filesystem::path& path) : file_(path) {}
  bool is_written() const override { return true; }
  std::uint64_t size() const override { return size_; }
  /// Bytes that were never written, or whose write was dropped, are read as zeros.
  void read(std::uint64_t offset, void* out, std::size_t bytes, bool numbers) override;
  void write(std::uint64_t offset, const void* data, std::size_t bytes) override;
  void resize(std::uint64_t bytes) override;

  /// Returns the file, for use after HDF5 has closed it. Throws the first error of a write, if any.
  OutputFile& file();
  /// Throws the first error of a write, if any.
  void check() const;

 private:
  template <class Work>
  void keep_error(Work&& work);

  OutputFile file_;
  std::uint64_t size_ = 0;  // the size of the file as reported to HDF5
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

/// Makes HDF5 read and write a file through `storage` if HDF5 opens the file with the file access property list `access_list`.
void use_storage(std::int64_t access_list, Storage& storage);
/// Returns the first exception that ReadStorage has thrown in this thread since the last call of this function, or null. HDF5
/// itself only reports that a read failed.
std::exception_ptr take_read_error();

}  // namespace fsdp::h5
