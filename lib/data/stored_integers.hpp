// Reads consecutive integers in a file as tokens.
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/format.hpp"
#include "data/tokens.hpp"
#include "files/input_file.hpp"

namespace fsdp {

static_assert(std::endian::native == std::endian::little, "token files are read as they are");

struct IntegerType {
  std::size_t bytes = 2;  // 1, 2, 4 or 8
  bool is_signed = false;
  /// The largest integer of this type that can be a token; no_token if the type can hold more.
  std::uint64_t largest() const {
    const std::size_t bits = 8 * bytes - (is_signed ? 1 : 0);
    return bits >= 32 ? no_token : (std::uint64_t{1} << bits) - 1;
  }
  bool operator==(const IntegerType&) const = default;
};

/// Tokens that are consecutive integers in a file. A format derives from this class; its constructor reads the header, and
/// calls set().
class StoredIntegers : public Tokens {
 public:
  std::uint64_t size() const override { return count_; }
  /// Negative integers and those of more than 32 bits read as no_token.
  void read(std::uint64_t begin, std::span<std::uint32_t> out) const override;
  std::string name() const override { return format("'{}'", file_.path().string()); }
  std::uint64_t largest_possible() const override { return type_.largest(); }

 protected:
  /// Opens the file. Throws what InputFile throws. There are no integers until set() is called.
  explicit StoredIntegers(const std::filesystem::path& path) : file_(path) {}
  /// Sets the integers: `count` of them from byte `offset`, all within the file.
  void set(std::uint64_t offset, IntegerType type, std::uint64_t count) {
    offset_ = offset;
    type_ = type;
    count_ = count;
  }
  const InputFile& file() const { return file_; }

 private:
  InputFile file_;
  IntegerType type_;
  std::uint64_t offset_ = 0, count_ = 0;
};

}  // namespace fsdp
