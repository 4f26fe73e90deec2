// Tokens as an array of NumPy: numpy.save("tokens.npy", tokens) makes one. The format of the file is numpy.lib.format, version
// 1.0: a header of 128 bytes that ends with a dictionary of Python, then the numbers.
#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.hpp"
#include "base/format.hpp"
#include "data/formats.hpp"
#include "data/stored_integers.hpp"
#include "files/output_file.hpp"

namespace {

using namespace fsdp;
namespace fs = std::filesystem;

constexpr std::string_view magic = "\x93NUMPY\x01";
constexpr std::size_t begin_of_text = 10;

class NpyTokens : public StoredIntegers {
 public:
  explicit NpyTokens(const fs::path& path) : StoredIntegers(path) {
    std::string header(std::min<std::uint64_t>(file().size(), 256), '\0');
    file().read(0, header.data(), header.size());
    const std::size_t end = header.find('}');
    const auto after = [&](std::string_view key) {
      const std::size_t at = header.find(key);
      if (end == header.npos || at > end) throw unusable_tokens(path, format("its header has no {}", key));
      return std::string_view(header).substr(at + key.size(), end - at - key.size());
    };
    const std::string_view type = after("'descr': '").substr(0, 3);
    if (type != "<u2" && type != "<u4" && type != "<i4" && type != "<i8")
      throw unusable_tokens(path, format("its numbers are of type {}; save them as uint16 or uint32", type));
    const std::string_view shape = after("'shape': (");
    std::uint64_t count = 0;
    const auto [stop, error] = std::from_chars(shape.begin(), shape.end(), count);
    if (error != std::errc() || !std::string_view(stop, shape.end()).starts_with(",)"))
      throw unusable_tokens(path, "it is not of one dimension; save tokens.reshape(-1)");
    const IntegerType as = {static_cast<std::size_t>(type[2] - '0'), type[1] == 'i'};
    const std::size_t begin =
        begin_of_text + static_cast<unsigned char>(header[8]) + 256u * static_cast<unsigned char>(header[9]);
    if (file().size() != begin + count * as.bytes)
      throw unusable_tokens(path, format("its header says {} tokens, and its size is that of another number", count));
    set(begin, as, count);
  }
};

/// Has another name until it is whole, and cannot be resumed.
class NpyWriter : public TokenWriter {
 public:
  explicit NpyWriter(fs::path path) : path_(std::move(path)) {
    fs::remove(path_.string() + ".tmp");  // a killed run may have left it
    file_.emplace(path_.string() + ".tmp");
  }
  ~NpyWriter() override {
    if (file_) fs::remove(file_->path());
  }

  void add(std::span<const TokenId> tokens) override {
    const std::vector<std::uint32_t> numbers(tokens.begin(), tokens.end());
    file_->write(header_bytes + sizeof(std::uint32_t) * count_, numbers.data(), sizeof(std::uint32_t) * numbers.size());
    count_ += numbers.size();
  }
  std::vector<WrittenFile> finish() override {
    std::string header(magic);
    header += std::string("\0\x76\0", 3) + format("{{'descr': '<u4', 'fortran_order': False, 'shape': ({},), }}", count_);
    header.resize(header_bytes - 1, ' ');
    header += '\n';
    file_->write(0, header.data(), header.size());
    file_->finish();
    rename_durably(file_->path(), path_);
    file_.reset();
    return {{path_, count_}};
  }

 private:
  static constexpr std::size_t header_bytes = 128;
  fs::path path_;
  std::optional<OutputFile> file_;
  std::uint64_t count_ = 0;
};

}  // namespace

/// The row.
const fsdp::TokenFormat& npy_tokens() {
  static const TokenFormat row = {
      .name = "npy",
      .about = "an array of NumPy; a killed run begins anew.",
      .recognises = [](const fs::path&, std::string_view beginning) { return beginning.starts_with(magic); },
      .open = [](const fs::path& path) -> std::unique_ptr<Tokens> { return std::make_unique<NpyTokens>(path); },
      .make_writer = [](const fs::path& path, std::size_t, const nlohmann::json&,
                        std::uint64_t) -> std::unique_ptr<TokenWriter> { return std::make_unique<NpyWriter>(path); },
      .resumes = false,
      .endings = {".npy"}};
  return row;
}
