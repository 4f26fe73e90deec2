// RAII over the HDF5 C API: files with datasets of fp32 or 16-bit numbers or of integers, virtual datasets over other files,
// and attributes. No header of this folder includes hdf5.h.
//
// Errors. A failed call throws CallError with the call, its object and HDF5's own error stack; HDF5 prints nothing itself.
// Destructors close without throwing. After writing, call File::close(), which does throw: buffered bytes may reach the disk
// only then.
//
// Threads. HDF5 is not thread-safe everywhere (it is a build option), while logical ranks can be threads of one process: every
// call here holds one process-wide mutex. Objects may be used from any thread, one at a time each.
//
// Names. A name such as "exp_avg/transformer.wte.weight" leads through groups, which are created as needed.
//
// What is read may come from anybody. Where a file has checksums (files/sealed_file.hpp), HDF5 sees no byte that is not right.
// Whatever would lead into another file is refused: all links but hard ones, external storage and virtual datasets. So are all
// filters but HDF5's own shuffle, deflate and fletcher32. HDF5 itself may crash on bytes that were damaged and have no
// checksums (docs/reliability.md).
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

/// gzip: HDF5's own filters shuffle and deflate, which every HDF5 tool undoes.
enum class Compression { none, gzip };

/// Owns an HDF5 identifier, and knows how to close it.
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
  /// Closes now. Throws CallError; closed either way.
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

/// What can have attributes: a file (its root group) or a dataset.
class Node {
 public:
  void write_text(const std::string& name, std::string_view text);
  void write_integer(const std::string& name, std::uint64_t value);
  void write_integers(const std::string& name, std::span<const std::uint64_t> values);

  bool has_attribute(const std::string& name) const;
  std::vector<std::string> attribute_names() const;
  /// These throw CallError if there is no such attribute or it is of another kind.
  std::string read_text(const std::string& name) const;
  std::uint64_t read_integer(const std::string& name) const;

 protected:
  Node(Handle handle, std::string what) : handle_(std::move(handle)), what_(std::move(what)) {}
  Handle handle_;
  std::string what_;  // for messages: "checkpoint.h5" or "wte.weight of checkpoint.h5"
};

/// fp32, one or more dimensions.
class Dataset : public Node {
 public:
  const Shape& shape() const { return shape_; }
  /// Elements [range), flat in row-major order.
  void write(Range range, const float* values);
  void read(Range range, float* out) const;
  /// Where its elements begin in the file; nothing if they do not lie there one behind the other, or were never written.
  std::optional<std::uint64_t> offset() const;
  /// The type of its elements (f32, bf16 or f16) if they are stored uncompressed in this machine's format; else nothing.
  std::optional<DType> plain_type() const;
  /// Throws DamagedError if some elements were never written, or the index of its chunks is damaged: HDF5 reads such elements
  /// as zeros. Elements may be missing if the dataset has a fill value of its own.
  void require_whole() const;
  /// All bytes of the file that hold its elements, compressed or not.
  struct StoredRange {
    std::uint64_t offset, bytes;
  };
  std::vector<StoredRange> stored_ranges() const;

 private:
  friend class File;
  Dataset(Handle handle, std::string what, std::shared_ptr<WrittenStorage> output);
  Shape shape_;
  std::shared_ptr<WrittenStorage> output_;  // of a file that is written
};

/// Integers, one or more dimensions.
class Integers : public Node {
 public:
  const Shape& shape() const { return shape_; }
  /// Of one of them, as it is stored.
  std::size_t bytes() const { return bytes_; }
  bool is_signed() const { return is_signed_; }
  /// Elements [range), flat in row-major order; one that no int64 holds reads as the largest that it does.
  /// Throws DamagedError for what HDF5 cannot decode.
  void read(Range range, std::int64_t* out) const;
  /// As for a Dataset.
  void require_whole() const;
  /// Of a dataset that create_integers() has made: adds these behind the others.
  void append(std::span<const std::uint32_t> values);

 private:
  friend class File;
  Integers(Handle handle, std::string what, std::shared_ptr<WrittenStorage> output);
  Shape shape_;
  std::size_t bytes_ = 0;
  bool is_signed_ = false;
  std::shared_ptr<WrittenStorage> output_;  // of a file that is written
};

/// Elements of a dataset in a file that is sealed, and the memory that still has the same bytes, with their checksum; or null:
/// they are read.
struct KnownPart {
  SealedPart part;
  const void* bytes = nullptr;
};

/// Elements [range) of a virtual dataset, flat, are all elements of a 1-D dataset of another file.
struct VirtualPart {
  Range range;
  std::string file;  // relative to the folder of the virtual dataset's file
  std::string dataset;
};

class File : public Node {
 public:
  /// Fails if there is such a file.
  static File create(const std::filesystem::path& path);
  /// Opens it for reading only. Throws UserError if it is not there, not an HDF5 file, or shorter than it says; DamagedError if
  /// its seal is broken, or it has none although a size is `expected`. Later reads throw DamagedError, too. With Verify::no the
  /// elements of datasets are not compared with their checksums; all else is.
  static File open(const std::filesystem::path& path, Verify verify = Verify::yes,
                   std::optional<FileSum> expected = std::nullopt);
  /// Whether its first bytes are those of an HDF5 file. Throws what InputFile throws.
  static bool looks_like_hdf5(const std::filesystem::path& path);

  /// fp32, without values until written. Contiguous; with gzip in chunks of 64 Ki elements, but for small ones, and of one
  /// dimension.
  Dataset create_dataset(const std::string& name, const Shape& shape, Compression compression = Compression::none);
  /// Contiguous room for elements of `type`, whose bytes somebody else writes once the file is closed. Returns where it begins
  /// in the file. Bytes of the file do not depend on the time.
  std::uint64_t reserve_dataset(const std::string& name, const Shape& shape, DType type);
  /// fp32; what no part covers reads as NaN, and so do the parts of a file that is missing.
  void create_virtual_dataset(const std::string& name, const Shape& shape, std::span<const VirtualPart> parts);
  /// Unsigned integers of so many bytes (2 or 4), none at first, of one dimension, in chunks of 64 Ki.
  Integers create_integers(const std::string& name, std::size_t bytes, Compression compression);
  bool has(const std::string& name) const;
  /// Throws UserError if it leads out of this file.
  Dataset dataset(const std::string& name) const;
  Integers integers(const std::string& name) const;
  /// Names of the datasets directly in a group ("/" for the root), in HDF5's order by name.
  std::vector<std::string> dataset_names(const std::string& group) const;
  /// Names of the groups and types directly in a group.
  std::vector<std::string> other_names(const std::string& group) const;
  /// Closes; what was written is on the disk then, or this throws CallError. Datasets of this file must be gone by then.
  void close();
  /// Seals it and closes. What is in memory need not be read again. Returns what it is as a whole.
  FileSum seal(std::vector<KnownPart> known = {});

  /// Whether all that is read from the file is compared with checksums. For files that are open for reading.
  bool is_checked() const;
  /// Tells the system that these bytes of the file will be read soon, by any process, so that the disk may begin.
  void prefetch(std::uint64_t offset, std::size_t bytes) const;

 private:
  File(Handle handle, const std::filesystem::path& path, std::shared_ptr<WrittenStorage> output,
       std::shared_ptr<const ReadStorage> input)
      : Node(std::move(handle), path.string()), output_(std::move(output)), input_(std::move(input)) {}
  Handle open_dataset(const std::string& name, bool of_integers, const std::string& what) const;
  std::shared_ptr<WrittenStorage> output_;    // if it is written
  std::shared_ptr<const ReadStorage> input_;  // if it is read
};

/// "1.10.8": of the library that is loaded.
std::string library_version();
/// Of the headers with which this was compiled. HDF5 ends a process in which the two differ, when it is first used.
std::string header_version();

}  // namespace fsdp::h5
