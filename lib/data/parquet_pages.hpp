// The columns of a Parquet file, value by value (parquet.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/input_file.hpp"

namespace fsdp::parquet {

/// Why a file cannot be read; the caller adds the name of the file.
struct Unreadable {
  std::string why;
};

/// A value of Thrift's compact protocol, in which a file describes itself. A field that is absent has the number 0, no text and
/// no items.
struct Thrift {
  std::int64_t number = 0;  // also of booleans
  std::string_view text = {};
  std::vector<std::pair<std::int64_t, Thrift>> items = {};  // fields with their ids, or elements of a list

  const Thrift& at(std::int64_t field) const;
  bool has(std::int64_t field) const { return &at(field) != &at(-1); }
};
/// Reads a struct at the beginning of `bytes`. Sets *end to the position after it. Throws Unreadable.
Thrift read_thrift(std::string_view bytes, std::size_t* end = nullptr);

enum class Type { boolean, int32, int64, int96, float32, float64, bytes, fixed_bytes };

/// Levels and indices of dictionaries: runs of equal numbers, and numbers packed into bits.
class Runs {
 public:
  Runs() = default;
  Runs(std::string_view bytes, unsigned width) : bytes_(bytes), width_(width) {}
  std::uint32_t next();

 private:
  std::string_view bytes_ = {};
  unsigned width_ = 0, bit_ = 0;
  std::uint64_t equal_ = 0, packed_ = 0;  // how many numbers are left in the run that has begun
  std::uint32_t value_ = 0;
};

/// The part of a column in one row group.
struct Chunk {
  std::uint64_t begin, end;  // bytes of the file
  std::uint64_t values;
  std::int64_t codec;
};

/// The values of a column without children. Each has a level of definition, which says how many of the groups around it exist
/// (all, if it has the highest level), and a level of repetition, which says which of the lists around it it continues.
class Column {
 public:
  Column(const InputFile& file, Type type, std::size_t fixed_size, unsigned most_definition, unsigned most_repetition)
      : file_(file),
        type_(type),
        fixed_size_(fixed_size),
        most_definition_(most_definition),
        most_repetition_(most_repetition) {}
  void add(Chunk chunk) { chunks_.push_back(chunk); }

  Type type() const { return type_; }
  /// The levels of the next value. Both are 0 at the end. Throw Unreadable, as next() does.
  unsigned definition() { return prepare() ? definition_ : 0; }
  unsigned repetition() { return prepare() ? repetition_ : 0; }
  bool at_end() { return !prepare(); }
  /// Moves on. Returns the bytes of the value, little-endian, valid until the next call; they are empty for a value that does
  /// not exist.
  std::string_view next();

 private:
  bool prepare();
  void next_page();
  void read_dictionary(std::string_view page, const Thrift& header);
  void begin_values(std::string_view bytes, std::int64_t encoding, std::uint64_t most);
  std::string_view take(std::string_view& from) const;
  std::string unpack(std::string_view packed, std::size_t bytes) const;

  const InputFile& file_;
  Type type_;
  std::size_t fixed_size_;
  unsigned most_definition_, most_repetition_;
  std::vector<Chunk> chunks_;
  std::size_t chunk_ = 0;       // the number of chunks that have begun
  std::uint64_t at_ = 0;        // the position of the next page in the file
  std::uint64_t in_chunk_ = 0;  // the number of values that the chunk has after this page
  std::uint64_t in_page_ = 0;   // the number of values that the page still has
  std::string page_, values_, dictionary_page_, rewritten_;
  std::vector<std::string_view> dictionary_;
  bool has_indices_ = false, is_prepared_ = false;
  Runs definitions_, repetitions_, indices_;
  std::string_view plain_;  // the values of the page that are not yet read
  unsigned bit_ = 0;        // of booleans in a page of them
  unsigned definition_ = 0, repetition_ = 0;
};

}  // namespace fsdp::parquet
