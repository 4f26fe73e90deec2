#include <optional>
#include <utility>

#include <unistd.h>

#include "data/output_place.hpp"
#include "data/token_writer.hpp"
#include "files/output_file.hpp"
#include "h5/h5.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

class Hdf5Writer : public TokenWriter {
 public:
  Hdf5Writer(const fs::path& path, std::size_t token_bytes) : path_(path) {
    require_place(path);
    remove_left_over(temporary());
    file_.emplace(h5::File::create(temporary()));
    tokens_.emplace(file_->create_integers("tokens", token_bytes, h5::Compression::gzip));
    buffer_.reserve(piece);
  }
  ~Hdf5Writer() override {
    if (finished_) return;
    tokens_.reset();
    file_.reset();
    ::unlink(temporary().c_str());
  }

  void add(std::span<const TokenId> tokens) override {
    for (const TokenId token : tokens) {
      buffer_.push_back(static_cast<std::uint32_t>(token));
      if (buffer_.size() == piece) flush();
      if (++in_document_ == most_in_document) end_document();
    }
    written_ += tokens.size();
  }

  void end_document() override {
    if (in_document_ == 0) return;
    lengths_.push_back(static_cast<std::uint32_t>(std::exchange(in_document_, 0)));
    ++documents_;
    if (lengths_.size() == piece) flush_lengths();
  }

  nlohmann::json save() override { return nullptr; }

  std::vector<WrittenFile> finish() override {
    if (documents_ > 0) end_document();
    flush();
    flush_lengths();
    tokens_.reset();
    lengths_of_documents_.reset();
    file_->close();
    rename_durably(temporary(), path_);
    finished_ = true;
    return {{path_, written_}};
  }

 private:
  static constexpr std::size_t piece = std::size_t{1} << 16;
  static constexpr std::uint64_t most_in_document = std::uint64_t{1} << 31;

  fs::path temporary() const { return path_.string() + ".tmp-1"; }
  void flush() {
    tokens_->append(buffer_);
    buffer_.clear();
  }
  void flush_lengths() {
    if (lengths_.empty()) return;
    if (!lengths_of_documents_)
      lengths_of_documents_.emplace(file_->create_integers("document_lengths", 4, h5::Compression::gzip));
    lengths_of_documents_->append(lengths_);
    lengths_.clear();
  }

  fs::path path_;
  std::optional<h5::File> file_;
  std::optional<h5::Integers> tokens_, lengths_of_documents_;  // after the file: they are gone before it is
  std::vector<std::uint32_t> buffer_, lengths_;
  std::uint64_t written_ = 0, documents_ = 0, in_document_ = 0;
  bool finished_ = false;
};

}  // namespace

std::unique_ptr<TokenWriter> make_hdf5_writer(const fs::path& path, std::size_t vocab_size) {
  return std::make_unique<Hdf5Writer>(path, vocab_size <= std::size_t{1} << 16 ? 2 : 4);
}

}  // namespace fsdp
