// Writes tokens as an HDF5 file (make_hdf5_writer).
#include <optional>
#include <utility>

#include <unistd.h>

#include "base/format.hpp"
#include "data/output_place.hpp"
#include "data/token_writer.hpp"
#include "files/output_file.hpp"
#include "h5/h5.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

/// A dataset, which is created in the file when it gets its first values.
class Column {
 public:
  Column(h5::File& file, const char* name, std::size_t bytes) : file_(file), name_(name), bytes_(bytes) {}
  void add(std::uint32_t value) {
    buffer_.push_back(value);
    if (buffer_.size() == piece) flush();
  }
  void finish() {
    flush();
    dataset_.reset();
  }

 private:
  static constexpr std::size_t piece = std::size_t{1} << 16;

  void flush() {
    if (buffer_.empty()) return;
    if (!dataset_) dataset_.emplace(file_.create_integers(name_, bytes_, h5::Compression::gzip));
    dataset_->append(buffer_);
    buffer_.clear();
  }

  h5::File& file_;
  const char* name_;
  std::size_t bytes_;
  std::optional<h5::Integers> dataset_;
  std::vector<std::uint32_t> buffer_;
};

/// Writes the mask into a file that another writer finishes.
class Hdf5MaskWriter : public TokenWriter {
 public:
  explicit Hdf5MaskWriter(h5::File& file) : mask_(file, "loss_mask", 2) {}
  void add(std::span<const TokenId> counts) override {
    for (const TokenId each : counts) mask_.add(static_cast<std::uint32_t>(each));
  }
  void end_document() override {}
  void sync() override {}
  nlohmann::json state() const override { return nullptr; }
  std::vector<WrittenFile> finish() override {
    mask_.finish();
    return {};
  }

 private:
  Column mask_;
};

class Hdf5Writer : public TokenWriter {
 public:
  Hdf5Writer(const fs::path& path, std::size_t token_bytes) : path_(path) {
    require_place(path);
    remove_left_over(temporary());
    file_.emplace(h5::File::create(temporary()));
    tokens_.emplace(*file_, "tokens", token_bytes);
    lengths_.emplace(*file_, "document_lengths", 4);
  }
  ~Hdf5Writer() override {
    if (finished_) return;
    tokens_.reset();
    lengths_.reset();
    file_.reset();
    ::unlink(temporary().c_str());
  }

  void add(std::span<const TokenId> tokens) override {
    for (const TokenId token : tokens) {
      tokens_->add(static_cast<std::uint32_t>(token));
      if (++in_document_ == most_in_document) end_document();
    }
    written_ += tokens.size();
  }

  void end_document() override {
    if (in_document_ == 0) return;
    lengths_->add(static_cast<std::uint32_t>(std::exchange(in_document_, 0)));
    ++documents_;
  }

  std::unique_ptr<TokenWriter> make_mask_writer() override { return std::make_unique<Hdf5MaskWriter>(*file_); }

  void sync() override {}
  nlohmann::json state() const override { return nullptr; }

  std::vector<WrittenFile> finish() override {
    if (documents_ > 0) end_document();
    tokens_->finish();
    lengths_->finish();
    file_->close();
    rename_durably(temporary(), path_);
    finished_ = true;
    return {{path_, written_}};
  }

 private:
  static constexpr std::uint64_t most_in_document = std::uint64_t{1} << 31;

  fs::path temporary() const { return path_.string() + format("{}-1", temporary_suffix); }

  fs::path path_;
  std::optional<h5::File> file_;
  std::optional<Column> tokens_, lengths_;  // declared after the file, so that they are destroyed first
  std::uint64_t written_ = 0, documents_ = 0, in_document_ = 0;
  bool finished_ = false;
};

}  // namespace

std::unique_ptr<TokenWriter> make_hdf5_writer(const fs::path& path, std::size_t vocab_size) {
  return std::make_unique<Hdf5Writer>(path, vocab_size <= std::size_t{1} << 16 ? 2 : 4);
}

}  // namespace fsdp
