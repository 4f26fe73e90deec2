// Reads and writes the memory-mapped data sets of Megatron-LM and fairseq.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "data/formats.hpp"
#include "data/indexed_format.hpp"
#include "data/output_place.hpp"
#include "data/stored_integers.hpp"
#include "files/checksum.hpp"
#include "files/output_file.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

/// Reads NAME.bin by NAME.idx.
class IndexedTokens : public StoredIntegers {
 public:
  explicit IndexedTokens(const fs::path& path) : StoredIntegers(indexed::data_of(path)), index_(indexed::index_of(path)) {
    const std::uint64_t bytes = index_.size();
    if (bytes < indexed::fairseq_header_bytes) fail(format("it has {} bytes, fewer than its header", bytes));
    std::array<char, 9> beginning;
    index_.read(0, beginning.data(), beginning.size());
    if (std::string_view(beginning.data(), beginning.size()) != indexed::magic)
      fail("it is not the index of a memory-mapped data set of Megatron or fairseq");
    if (const std::uint64_t version = number(9); version != indexed::version)
      fail(format("it is of version {}, but only version {} is read", version, indexed::version));
    unsigned char code = 0;
    index_.read(17, &code, 1);
    const auto known = indexed::type_of(code);
    if (!known) fail(format("its tokens are of type {}, which is no integer type", code));
    type_ = *known;
    sequences_ = number(18);
    if (sequences_ > bytes / 12) fail(format("its header has {} sequences, but the file is too short for them", sequences_));
    const std::uint64_t as_fairseq = indexed::fairseq_header_bytes + 12 * sequences_;
    if (bytes == as_fairseq) {
      lengths_ = indexed::fairseq_header_bytes;
    } else {
      if (bytes < indexed::megatron_header_bytes) fail("it is cut");
      lengths_ = indexed::megatron_header_bytes;
      document_entries_ = number(26);
      const std::uint64_t without_documents = indexed::megatron_header_bytes + 12 * sequences_;
      const bool is_whole = document_entries_ <= bytes / 8 && (bytes == without_documents + 8 * document_entries_ ||
                                                               bytes == without_documents + 8 * document_entries_ + sequences_);
      if (!is_whole)
        fail(
            format("its header has {} sequences, but {} bytes are neither Megatron's nor fairseq's index of so many (is the "
                   "file cut?)",
                   sequences_, bytes));
      if (document_entries_ == 0) fail("its list of documents is empty");
      if (bytes != without_documents + 8 * document_entries_) modes_ = without_documents + 8 * document_entries_;
    }
    starts_ = lengths_ + 4 * sequences_;

    const std::uint64_t stored = file().size(), tokens = tokens_of_sequences();
    if (stored / type_.bytes != tokens || stored % type_.bytes != 0)
      throw UserError(
          format("'{}' does not belong to '{}' (the index has {} tokens of {} bits, which are {} bytes, but the file has {}); "
                 "copy both again, or write them anew",
                 file().path().string(), index_.path().string(), tokens, 8 * type_.bytes, tokens * type_.bytes, stored));
    set(0, type_, tokens);
  }

  bool has_documents() const override { return true; }
  /// The first token of each document, from Megatron's document index. If there is none, each sequence is a document. Documents
  /// without tokens are left out.
  std::vector<std::uint64_t> documents() const override {
    std::vector<std::uint64_t> starts(sequences_), first_sequences;
    index_.read(starts_, starts.data(), 8 * starts.size());
    if (document_entries_ > 0) {
      first_sequences.resize(document_entries_ - 1);
      index_.read(starts_ + 8 * sequences_, first_sequences.data(), 8 * first_sequences.size());
    }
    const std::uint64_t all = size(), count = document_entries_ > 0 ? first_sequences.size() : sequences_;
    std::vector<std::uint64_t> documents;
    documents.reserve(count);
    for (std::uint64_t d = 0; d < count; ++d) {
      const std::uint64_t sequence = document_entries_ > 0 ? first_sequences[d] : d;
      const std::uint64_t start = sequence < sequences_ ? starts[sequence] / type_.bytes : all;
      if (start < all && (documents.empty() || documents.back() < start)) documents.push_back(start);
    }
    return documents;
  }

  /// Throws UserError unless the sequences of this part of the index follow each other without gaps, and sequence 0 begins at
  /// byte 0.
  void check(std::size_t part, std::size_t parts) const override {
    const Range mine = share(sequences_, parts, part);
    std::vector<std::int32_t> lengths(std::min<std::size_t>(mine.size(), 1u << 16));
    std::vector<std::int64_t> starts(lengths.size());
    std::uint64_t expected = mine.begin == 0 || mine.empty() ? 0 : end_of(mine.begin - 1);
    for (std::size_t begin = mine.begin; begin < mine.end;) {
      const std::size_t n = std::min(lengths.size(), mine.end - begin);
      index_.read(lengths_ + 4 * begin, lengths.data(), 4 * n);
      index_.read(starts_ + 8 * begin, starts.data(), 8 * n);
      for (std::size_t i = 0; i < n; ++i) {
        if (lengths[i] < 0 || starts[i] < 0 || static_cast<std::uint64_t>(starts[i]) != expected)
          fail(format("its sequence {} of {} tokens begins at byte {}, but the sequence before it ends at {}", begin + i,
                      lengths[i], starts[i], expected));
        expected += static_cast<std::uint64_t>(lengths[i]) * type_.bytes;
      }
      begin += n;
    }
    check_documents(share(document_entries_, parts, part));
    if (modes_ != 0) check_modes(mine);
  }

 private:
  /// The number of tokens of all sequences, computed from the end of the last sequence.
  std::uint64_t tokens_of_sequences() const {
    if (sequences_ == 0) return 0;
    const auto [start, length] = entry(sequences_ - 1);
    if (start % type_.bytes != 0) fail("its last sequence begins within a token");
    return start / type_.bytes + length;
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw UserError(format("'{}' is not an index that can be used ({}); write the data set anew with the program that made it",
                           index_.path().string(), why));
  }
  std::uint64_t number(std::uint64_t offset) const {
    std::uint64_t value = 0;
    index_.read(offset, &value, sizeof value);
    return value;
  }
  /// The start of a sequence in bytes, and its length in tokens.
  std::pair<std::uint64_t, std::uint64_t> entry(std::uint64_t sequence) const {
    std::int32_t length = 0;
    index_.read(lengths_ + 4 * sequence, &length, sizeof length);
    const auto start = static_cast<std::int64_t>(number(starts_ + 8 * sequence));
    if (length < 0 || start < 0) fail(format("its sequence {} has {} tokens from byte {}", sequence, length, start));
    return {static_cast<std::uint64_t>(start), static_cast<std::uint64_t>(length)};
  }
  std::uint64_t end_of(std::uint64_t sequence) const {
    const auto [start, length] = entry(sequence);
    return start + length * type_.bytes;
  }
  void check_documents(Range mine) const {
    std::vector<std::uint64_t> firsts(std::min<std::size_t>(mine.size(), 1u << 16));
    const std::uint64_t table = starts_ + 8 * sequences_;
    std::uint64_t before = mine.begin == 0 || mine.empty() ? 0 : number(table + 8 * (mine.begin - 1));
    for (std::size_t begin = mine.begin; begin < mine.end;) {
      const std::size_t n = std::min(firsts.size(), mine.end - begin);
      index_.read(table + 8 * begin, firsts.data(), 8 * n);
      for (std::size_t i = 0; i < n; ++i) {
        const std::uint64_t d = begin + i, here = firsts[i];
        if ((d == 0 && here != 0) || here < before || here > sequences_ || (d + 1 == document_entries_ && here != sequences_))
          fail(format("its document {} begins with sequence {} of {}, but the document before it with {}", d, here, sequences_,
                      before));
        before = here;
      }
      begin += n;
    }
  }

  /// Throws UserError for a mode other than text (0). Megatron's multimodal data sets have other modes.
  void check_modes(Range mine) const {
    each_piece(index_, modes_ + mine.begin, modes_ + mine.end, [&](const char* modes, std::size_t n) {
      if (const auto other = std::find_if(modes, modes + n, [](char mode) { return mode != 0; }); other != modes + n)
        fail(format("it has a sequence of mode {}, but only mode 0 (text) is read", static_cast<int>(*other)));
    });
  }

  InputFile index_;
  IntegerType type_;
  std::uint64_t sequences_ = 0, document_entries_ = 0, lengths_ = 0, starts_ = 0, modes_ = 0;  // modes_ is 0 if there are none
};

/// Writes one sequence per document, as most tools do; a document of more than 2^30 tokens becomes several. While tokens are
/// added, the index file has only the lengths of sequences. finish() computes the other parts of the index from these lengths.
class IndexedWriter : public TokenWriter {
 public:
  IndexedWriter(const fs::path& path, IntegerType type, const nlohmann::json& state)
      : data_path_(indexed::data_of(path)), index_path_(indexed::index_of(path)), type_(type) {
    std::optional<FileSum> kept_data, kept_index;
    if (!state.is_null()) {
      const auto number = [&](const char* key) { return number_of_state(state, key, data_path_); };
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
        remove_left_over(temporary_path(target));
      }
    }
    data_.emplace(temporary_path(data_path_), 0, kept_data);
    index_.emplace(temporary_path(index_path_), indexed::megatron_header_bytes, kept_index);
  }
  ~IndexedWriter() override {
    if (kept_ || finished_) return;
    for (const fs::path& target : {data_path_, index_path_}) ::unlink(temporary_path(target).c_str());
  }

  void add(std::span<const TokenId> tokens) override {
    for (std::size_t n; !tokens.empty(); tokens = tokens.subspan(n)) {
      n = std::min<std::uint64_t>(tokens.size(), most_in_document - in_document_);
      data_->append(tokens.first(n), type_.bytes);
      tokens_ += n;
      if ((in_document_ += n) == most_in_document) end_document();
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
    rename_durably(temporary_path(data_path_), data_path_);
    rename_durably(temporary_path(index_path_), index_path_);
    finished_ = true;
    return {{data_path_, tokens_}};
  }

 private:
  /// Lengths have 32 bits, so a longer document is cut at this length.
  static constexpr std::uint64_t most_in_document = std::uint64_t{1} << 30;

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

/// The memory-mapped data sets of Megatron-LM (megatron.core.datasets.indexed_dataset) and of fairseq
/// (fairseq.data.indexed_dataset.MMapIndexedDataset): NAME.bin, which has only tokens, and NAME.idx, which has their type and
/// the length of each sequence.
const TokenFormat& indexed_tokens() {
  static const TokenFormat row = {
      .name = "megatron",
      .about = "NAME stands for NAME.bin and NAME.idx (where documents begin); fairseq reads them, too.",
      .recognises =
          [](const fs::path& path, std::string_view beginning) {
            return beginning.starts_with(indexed::magic) ||
                   (path.extension() == ".bin" && kind_of(indexed::index_of(path)) == PathKind::file);
          },
      .open = [](const fs::path& path) -> std::unique_ptr<Tokens> { return std::make_unique<IndexedTokens>(path); },
      .make_writer = [](const fs::path& path, std::size_t vocab_size, const nlohmann::json& state,
                        std::uint64_t) -> std::unique_ptr<TokenWriter> {
        // The same choice as Megatron's DType.optimal_dtype().
        const IntegerType type = vocab_size < 65500 ? IntegerType{2, false} : IntegerType{4, true};
        return std::make_unique<IndexedWriter>(path, type, state);
      },
      .file_of = indexed::data_of};
  return row;
}

}  // namespace fsdp
