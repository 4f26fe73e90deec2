// Writes tokens as a memory-mapped data set of Megatron-LM (make_indexed_writer).
#include <algorithm>
#include <optional>
#include <utility>

#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "data/indexed_format.hpp"
#include "data/output_place.hpp"
#include "data/token_writer.hpp"
#include "files/checksum.hpp"
#include "files/input_file.hpp"
#include "files/output_file.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

/// A file to which numbers are appended in large pieces.
class AppendedFile {
 public:
  /// If `kept` is empty, creates a file. Otherwise opens one and keeps its first kept->bytes bytes; kept->checksum is the
  /// checksum of the kept bytes after the header. Throws DamagedError if the file does not have these bytes.
  AppendedFile(const fs::path& path, std::uint64_t header_bytes, const std::optional<FileSum>& kept)
      : file_(kept ? require_size(path, kept->bytes) : path, kept ? OutputFile::Open::existing : OutputFile::Open::create),
        written_(kept ? kept->bytes : header_bytes) {
    file_.lock();
    file_.resize(written_);
    buffer_.reserve(buffer_bytes + sizeof(std::int64_t));
    if (!kept) return;
    each_piece(file_, header_bytes, written_, [&](const void* data, std::size_t bytes) { sum_.add(data, bytes); });
    if (sum_.value() != kept->checksum) throw_damaged(path);
  }
  template <class T>
  void append(T value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    buffer_.insert(buffer_.end(), bytes, bytes + sizeof value);
    if (buffer_.size() >= buffer_bytes) flush();
  }
  void flush() {
    file_.write(written_, buffer_.data(), buffer_.size());
    sum_.add(buffer_.data(), buffer_.size());
    written_ += buffer_.size();
    buffer_.clear();
  }
  /// The checksum of the bytes written after the header.
  std::uint64_t sum() const { return sum_.value(); }
  void sync() {
    flush();
    file_.sync();
  }
  OutputFile& file() { return file_; }

 private:
  [[noreturn]] static void throw_damaged(const fs::path& path) {
    throw DamagedError(format("the temporary file {} has changed since it was written; start anew", path.string()));
  }
  static const fs::path& require_size(const fs::path& path, std::uint64_t size) {
    const auto there = size_of_file(path);
    if (!there || *there < size) throw_damaged(path);
    return path;
  }

  static constexpr std::size_t buffer_bytes = std::size_t{1} << 20;
  OutputFile file_;
  std::uint64_t written_;
  RunningSum sum_;
  std::vector<std::byte> buffer_;
};

/// Writes one sequence per document, as most tools do. While tokens are added, the index file has only the
/// lengths of sequences. finish() computes the other parts of the index from these lengths.
class IndexedWriter : public TokenWriter {
 public:
  IndexedWriter(const fs::path& path, IntegerType type, const nlohmann::json& state)
      : data_path_(indexed::data_of(path)), index_path_(indexed::index_of(path)), type_(type) {
    std::optional<FileSum> kept_data, kept_index;
    if (!state.is_null()) {
      const auto number = [&](const char* key) -> std::uint64_t {
        if (!state.contains(key) || !state[key].is_number_unsigned())
          throw DamagedError(format("the resume file of {} has no \"{}\"; start anew", data_path_.string(), key));
        return state[key].get<std::uint64_t>();
      };
      if (number("token_bytes") != type_.bytes)
        throw DamagedError(format("{} was begun with tokens of another size; start anew", data_path_.string()));
      tokens_ = number("tokens");
      documents_ = number("documents");
      in_document_ = number("in_document");
      kept_data = {tokens_ * type_.bytes, number("data_sum")};
      kept_index = {indexed::megatron_header_bytes + 4 * documents_, number("index_sum")};
      kept_ = true;
    } else {
      for (const fs::path& target : {data_path_, index_path_}) {
        require_place(target);
        remove_left_over(temporary(target));
      }
    }
    data_.emplace(temporary(data_path_), 0, kept_data);
    index_.emplace(temporary(index_path_), indexed::megatron_header_bytes, kept_index);
  }
  ~IndexedWriter() override {
    if (kept_ || finished_) return;
    for (const fs::path& target : {data_path_, index_path_}) ::unlink(temporary(target).c_str());
  }

  void add(std::span<const TokenId> tokens) override {
    for (const TokenId token : tokens) {
      if (type_.bytes == 2)
        data_->append(static_cast<std::uint16_t>(token));
      else
        data_->append(token);
      ++tokens_;
      if (++in_document_ == most_in_document) end_document();
    }
  }

  void end_document() override {
    if (in_document_ == 0) return;
    index_->append(static_cast<std::int32_t>(in_document_));
    in_document_ = 0;
    ++documents_;
  }

  void sync() override {
    data_->sync();
    index_->sync();
    if (!std::exchange(kept_, true)) sync_folder(folder_of(data_path_));
  }
  nlohmann::json state() const override {
    return {{"token_bytes", type_.bytes},  {"tokens", tokens_},        {"documents", documents_},
            {"in_document", in_document_}, {"data_sum", data_->sum()}, {"index_sum", index_->sum()}};
  }

  std::vector<WrittenFile> finish() override {
    end_document();
    data_->flush();
    write_index();
    data_->file().finish();
    index_->file().finish();
    rename_durably(temporary(data_path_), data_path_);
    rename_durably(temporary(index_path_), index_path_);
    finished_ = true;
    return {{data_path_, tokens_}};
  }

 private:
  /// Lengths have 32 bits, so a longer document is cut at this length.
  static constexpr std::uint64_t most_in_document = std::uint64_t{1} << 30;

  static fs::path temporary(const fs::path& path) { return path.string() + format("{}-1", temporary_suffix); }

  /// Appends the sequences' offsets and the documents' first sequences to the lengths, and writes the header.
  void write_index() {
    index_->flush();
    std::vector<std::int32_t> lengths(std::min<std::uint64_t>(documents_, 1u << 16));
    std::int64_t start = 0;
    for (std::uint64_t begin = 0; begin < documents_; begin += lengths.size()) {
      const std::size_t n = std::min<std::uint64_t>(lengths.size(), documents_ - begin);
      index_->file().read(indexed::megatron_header_bytes + 4 * begin, lengths.data(), 4 * n);
      for (std::size_t i = 0; i < n; ++i) {
        index_->append(start);
        start += static_cast<std::int64_t>(lengths[i]) * static_cast<std::int64_t>(type_.bytes);
      }
    }
    for (std::uint64_t document = 0; document <= documents_; ++document) index_->append(document);
    index_->flush();
    std::string header(indexed::magic);
    const auto put = [&](auto value) { header.append(reinterpret_cast<const char*>(&value), sizeof value); };
    put(indexed::version);
    put(indexed::code_of(type_));
    put(documents_);
    put(documents_ + 1);
    expect(header.size() == indexed::megatron_header_bytes, "a header is as long as its room");
    index_->file().write(0, header.data(), header.size());
  }

  fs::path data_path_, index_path_;
  IntegerType type_;
  std::optional<AppendedFile> data_, index_;
  std::uint64_t tokens_ = 0, documents_ = 0, in_document_ = 0;
  bool kept_ = false, finished_ = false;
};

}  // namespace

std::unique_ptr<TokenWriter> make_indexed_writer(const fs::path& path, std::size_t vocab_size, const nlohmann::json& state) {
  // The same choice as Megatron's DType.optimal_dtype().
  const IntegerType type = vocab_size < 65500 ? IntegerType{2, false} : IntegerType{4, true};
  return std::make_unique<IndexedWriter>(path, type, state);
}

}  // namespace fsdp
