// RAII classes over the HDF5 C API: files, datasets of floating-point numbers or of integers, virtual datasets, and attributes.
// No header of this folder includes hdf5.h.
//
// Errors. A failed call throws CallError with the name of the call, the name of the file or dataset, and HDF5's error stack;
// HDF5 itself prints nothing. Destructors never throw. So call File::close() after writing: HDF5 may write buffered bytes only
// when the file is closed, and close() throws if that fails.
//
// Threads. HDF5 is thread-safe only if it was built with that option, and ranks can be threads of one process. So every
// function here locks one mutex of the process. Any thread may use an object, but only one at a time.
//
// Names. The name of a dataset may be a path through groups, such as "exp_avg/transformer.wte.weight". Missing groups are
// created.
//
// Files of other programs. Everything through which a file could show the contents of another file is refused: links other than
// hard links, external storage and virtual datasets. Filters other than HDF5's shuffle, deflate and fletcher32 are also
// refused. If a file has checksums (files/sealed_file.hpp), HDF5 never gets damaged bytes. If it has none, HDF5 itself may
// crash on damaged bytes (docs/reliability.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.hpp"
#include "files/sealed_file.hpp"
#include "tensor/shape.hpp"

namespace fsdp::h5 {

class ReadStorage;
class WrittenStorage;

/// `gzip` means HDF5's own filters shuffle and deflate, which every HDF5 tool can read.
enum class Compression { none, gzip };

/// Owns an HDF5 identifier and the function that closes it.
class Handle {
 public:
  using Close = int (*)(std::int64_t);
  Handle() = default;
  Handle(std::int64_t id, Close closer, const char* close_name) noexcept : id_(id), close_(closer), close_name_(close_name) {}
  Handle(Handle&& other) noexcept { swap(other); }
  Handle& operator=(Handle&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Handle();

  std::int64_t id() const { return id_; }
  /// Closes the identifier now. If that fails, throws CallError; the destructor does not try again.
  void close(std::string_view what);

 private:
  void swap(Handle& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    std::swap(close_name_, other.close_name_);
  }
  std::int64_t id_ = -1;
  Close close_ = nullptr;
  const char* close_name_ = "";
};

/// An object that can have attributes: a file (its root group) or a dataset.
class Node {
 public:
  void write_text(const std::string& name, std::string_view text);
  void write_integer(const std::string& name, std::uint64_t value);
  void write_integers(const std::string& name, std::span<const std::uint64_t> values);

  bool has_attribute(const std::string& name) const;
  std::vector<std::string> attribute_names() const;
  /// read_text() and read_integer() throw CallError if there is no attribute `name`, or if it has another type.
  std::string read_text(const std::string& name) const;
  std::uint64_t read_integer(const std::string& name) const;

 protected:
  Node(Handle handle, std::string what) : handle_(std::move(handle)), what_(std::move(what)) {}
  Handle handle_;
  std::string what_;  // for messages: "checkpoint.h5" or "wte.weight of checkpoint.h5"
};

/// A dataset with one or more dimensions.
class Elements : public Node {
 public:
  /// `output` is the storage of a file that is written, else null.
  Elements(Handle handle, std::string what, std::shared_ptr<WrittenStorage> output);
  const Shape& shape() const { return shape_; }
  /// Throws DamagedError if some elements were never written, or if the index of the chunks is damaged. Without this check HDF5
  /// would read these elements as zeros. Elements may be missing if the dataset has a user-defined fill value.
  void require_whole() const;

 protected:
  Shape shape_;
  std::shared_ptr<WrittenStorage> output_;
};

/// A dataset of floating-point numbers. Elements are converted from and to fp32 when they are read and written.
class Dataset : public Elements {
 public:
  using Elements::Elements;
  /// Write and read the elements with flat indices `range`, in row-major order.
  void write(Range range, const float* values);
  void read(Range range, float* out) const;
  /// The offset in the file of the first element; nullopt if the elements are not contiguous or were never written.
  std::optional<std::uint64_t> offset() const;
  /// The type of the elements (f32, bf16 or f16) if they are contiguous and stored in the byte order of this machine, so that
  /// they can be read without HDF5; otherwise nullopt.
  std::optional<DType> plain_type() const;
  /// A range of bytes in the file.
  struct StoredRange {
    std::uint64_t offset, bytes;
  };
  /// Returns the ranges of bytes in the file that contain the elements, compressed or not.
  std::vector<StoredRange> stored_ranges() const;
};

/// A dataset of integers.
class Integers : public Elements {
 public:
  Integers(Handle handle, std::string what, std::shared_ptr<WrittenStorage> output);
  /// The bytes of one integer in the file.
  std::size_t bytes() const { return bytes_; }
  bool is_signed() const { return is_signed_; }
  /// Reads the elements with flat indices `range`, in row-major order. An element above the largest int64 is read as the
  /// largest int64. Throws DamagedError if HDF5 cannot decode the elements.
  void read(Range range, std::int64_t* out) const;
  /// Appends `values` to a dataset that create_integers() has made.
  void append(std::span<const std::uint32_t> values);

 private:
  std::size_t bytes_ = 0;
  bool is_signed_ = false;
};

/// A dataset of a file that is to be sealed. If its bytes are still in memory, `bytes` points to them and part.checksum is
/// their checksum. If `bytes` is null, File::seal() reads the bytes from the file and computes the checksum.
struct KnownPart {
  SealedPart part;
  const void* bytes = nullptr;
};

/// A part of a virtual dataset: the elements with flat indices `range` are stored as a 1-D dataset in another file.
struct VirtualPart {
  Range range;
  std::string file;  // relative to the folder of the virtual dataset's file
  std::string dataset;
};

class File : public Node {
 public:
  /// Throws CallError if the file exists.
  static File create(const std::filesystem::path& path);
  /// Opens a file for reading. Throws UserError if the file does not exist, is not an HDF5 file or is shorter than its header
  /// requires. Throws DamagedError if its seal is broken; if `expected` is given, also if the file's size differs or its seal
  /// is missing. Later reads may also throw DamagedError. With Verify::no, the elements of datasets are not compared with their
  /// checksums, but all other bytes are.
  static File open(const std::filesystem::path& path, Verify verify = Verify::yes,
                   std::optional<FileSum> expected = std::nullopt);
  /// Returns true if the file begins with the signature of HDF5. Throws the errors of InputFile.
  static bool looks_like_hdf5(const std::filesystem::path& path);

  /// Creates an fp32 dataset, whose elements are written later. Without compression it is contiguous. With Compression::gzip
  /// it must have one dimension, and it has chunks of 64 Ki elements unless it is small.
  Dataset create_dataset(const std::string& name, const Shape& shape, Compression compression = Compression::none);
  /// Creates a contiguous dataset of `type`, and returns the offset in the file of its first element. Other code writes the
  /// elements after the file is closed. HDF5 stores no creation time, so that equal contents give equal files.
  std::uint64_t reserve_dataset(const std::string& name, const Shape& shape, DType type);
  /// Creates a virtual fp32 dataset. Elements that are in no part, or whose file is missing, are read as NaN.
  void create_virtual_dataset(const std::string& name, const Shape& shape, std::span<const VirtualPart> parts);
  /// Creates an empty 1-D dataset of unsigned integers with `bytes` bytes (1, 2 or 4) each, in chunks of 64 Ki elements.
  Integers create_integers(const std::string& name, std::size_t bytes, Compression compression);
  bool has(const std::string& name) const;
  /// dataset() and integers() open a dataset. They throw UserError if the elements of that dataset are not stored in this
  /// file, or are stored in a form that is not supported.
  Dataset dataset(const std::string& name) const;
  Integers integers(const std::string& name) const;
  /// Returns the names of the datasets directly in a group ("/" is the root), sorted by HDF5.
  std::vector<std::string> dataset_names(const std::string& group) const;
  /// Returns the names of the groups and named types directly in a group.
  std::vector<std::string> other_names(const std::string& group) const;
  /// Closes the file and waits until all bytes are on the disk; throws CallError if that fails. Destroy all Dataset and
  /// Integers objects of this file before.
  void close();
  /// Seals the file (files/sealed_file.hpp) and closes it. Returns the size and checksum of the whole file.
  FileSum seal(std::vector<KnownPart> known = {});

  /// Returns true if the file has checksums and is open for reading.
  bool is_checked() const;
  /// Asks the system to read these bytes from the disk in advance, because a process will read them soon.
  void prefetch(std::uint64_t offset, std::size_t bytes) const;

 private:
  File(Handle handle, const std::filesystem::path& path, std::shared_ptr<WrittenStorage> output,
       std::shared_ptr<const ReadStorage> input)
      : Node(std::move(handle), path.string()), output_(std::move(output)), input_(std::move(input)) {}
  Handle open_dataset(const std::string& name, bool of_integers, const std::string& what) const;
  std::shared_ptr<WrittenStorage> output_;    // the storage of a file that is written, else null
  std::shared_ptr<const ReadStorage> input_;  // the storage of a file that is read, else null
};

/// The version of the HDF5 library that is loaded: "1.10.8".
std::string library_version();
/// The version of the HDF5 headers with which this program was compiled. If this version differs from library_version(), HDF5
/// ends the process at the first call of HDF5.
std::string header_version();

}  // namespace fsdp::h5
