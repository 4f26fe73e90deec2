// Writes tokens as llm.c's files (make_llmc_writer).
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "data/llmc_format.hpp"
#include "data/output_place.hpp"
#include "data/token_writer.hpp"
#include "files/checksum.hpp"
#include "files/input_file.hpp"
#include "files/output_file.hpp"

namespace fsdp {

namespace {

/// The path of a numbered file: train_000003.bin for train.bin and 3.
std::filesystem::path shard_path(const std::filesystem::path& path, std::size_t shard) {
  return path.parent_path() / format("{}_{:06}{}", path.stem().string(), shard, path.extension().string());
}

class LlmcWriter : public TokenWriter {
 public:
  LlmcWriter(std::filesystem::path path, const LlmcFormat& as, std::uint64_t shard_tokens, const nlohmann::json& state)
      : path_(std::move(path)), format_(as), shard_tokens_(shard_tokens) {
    expect(shard_tokens > 0 && shard_tokens <= most_llmc_tokens, "a shard has 1 to 2147483647 tokens");
    require_place(path_);
    buffer_.reserve(buffer_bytes + format_.token_bytes);
    if (state.is_null()) {
      remove_temporaries(1);
      open_shard();
    } else {
      go_on(state);
    }
  }
  ~LlmcWriter() override {
    if (kept_ || finished_) return;
    file_.reset();
    for (std::size_t shard = 1; shard <= full_.size() + 1; ++shard) ::unlink(temporary(shard).c_str());
  }

  void add(std::span<const TokenId> tokens) override {
    while (!tokens.empty()) {
      if (in_shard_ == shard_tokens_) {
        close_shard();
        open_shard();
      }
      const std::size_t now =
          std::min<std::uint64_t>({tokens.size(), shard_tokens_ - in_shard_, buffer_bytes / format_.token_bytes});
      const std::size_t before = buffer_.size();
      buffer_.resize(before + now * format_.token_bytes);
      if (format_.token_bytes == sizeof(TokenId)) {
        std::memcpy(buffer_.data() + before, tokens.data(), now * sizeof(TokenId));
      } else {
        std::int32_t all = 0;  // the bitwise or of all tokens
        for (std::size_t i = 0; i < now; ++i) {
          all |= tokens[i];
          const auto token = static_cast<std::uint16_t>(tokens[i]);
          std::memcpy(buffer_.data() + before + 2 * i, &token, sizeof token);
        }
        expect((all & ~0xffff) == 0, "tokens fit into 16 bits");
      }
      in_shard_ += now;
      tokens = tokens.subspan(now);
      if (buffer_.size() >= buffer_bytes) flush();
    }
  }

  void end_document() override {}

  void sync() override {
    flush();
    file_->sync();
    if (!std::exchange(kept_, true)) sync_folder(folder_of(path_));
  }
  nlohmann::json state() const override {
    return {{"token_bytes", format_.token_bytes}, {"shard_tokens", shard_tokens_},
            {"full_shards", full_.size()},        {"full_sums", full_sums_},
            {"tokens_in_last", in_shard_},        {"last_sum", sum_.value()}};
  }

  std::vector<WrittenFile> finish() override {
    close_shard();
    std::vector<WrittenFile> files;
    for (std::size_t shard = 1; shard <= full_.size(); ++shard) {
      const std::filesystem::path name = full_.size() == 1 ? path_ : shard_path(path_, shard);
      rename_durably(temporary(shard), name);
      files.push_back({name, full_[shard - 1]});
    }
    finished_ = true;
    return files;
  }

 private:
  static constexpr std::size_t buffer_bytes = std::size_t{4} << 20;

  std::filesystem::path temporary(std::size_t shard) const { return path_.string() + format("{}-{}", temporary_suffix, shard); }

  /// Removes the temporary files of a killed process, beginning with shard `first`.
  void remove_temporaries(std::size_t first) {
    std::size_t end = first;
    for (; kind_of(temporary(end)) == PathKind::file; ++end)
      OutputFile(temporary(end), OutputFile::Open::existing).lock();  // throws if that process is alive
    for (std::size_t shard = first; shard < end; ++shard)
      check_errno(::unlink(temporary(shard).c_str()) == 0, "remove " + temporary(shard).string());
  }

  void open_shard() {
    file_.emplace(temporary(full_.size() + 1));
    file_->lock();
    in_shard_ = 0;
    sum_.reset();
    write_header();  // reserves room; close_shard() writes the right count
    written_ = sizeof(LlmcHeader);
  }

  void go_on(const nlohmann::json& state) {
    const auto number = [&](const char* key) -> std::uint64_t {
      const auto found = state.find(key);
      if (found == state.end() || !found->is_number_unsigned())
        throw DamagedError(format("the resume file of '{}' has no \"{}\"; start anew", path_.string(), key));
      return found->get<std::uint64_t>();
    };
    const std::uint64_t full = number("full_shards");
    in_shard_ = number("tokens_in_last");
    const auto require = [&](bool right) {
      if (!right)
        throw DamagedError(
            format("the temporary files of '{}' have changed since they were written; start anew", path_.string()));
    };
    require(number("token_bytes") == format_.token_bytes && number("shard_tokens") == shard_tokens_ &&
            in_shard_ <= shard_tokens_ && full < (std::uint64_t{1} << 32));
    const nlohmann::json sums = state.value("full_sums", nlohmann::json());
    require(sums.is_array() && sums.size() == full);
    for (std::size_t shard = 1; shard <= full; ++shard) {
      const std::uint64_t bytes = sizeof(LlmcHeader) + shard_tokens_ * format_.token_bytes;
      require(size_of_file(temporary(shard)) == bytes);
      const InputFile file(temporary(shard));
      LlmcHeader header;
      file.read(0, header.data(), sizeof header);
      sum_.reset();
      add_tokens(file, bytes);
      require(header == header_of(shard_tokens_) && sums[shard - 1] == sum_.value());
      full_.push_back(shard_tokens_);
      full_sums_.push_back(sum_.value());
    }
    const std::filesystem::path last = temporary(full + 1);
    written_ = sizeof(LlmcHeader) + in_shard_ * format_.token_bytes;
    const auto size = size_of_file(last);
    require(size && *size >= written_);
    file_.emplace(last, OutputFile::Open::existing);
    file_->lock();
    file_->resize(written_);
    sum_.reset();
    add_tokens(*file_, written_);
    require(sum_.value() == number("last_sum"));
    remove_temporaries(full + 2);  // shards that were begun after the last saved state
    kept_ = true;
  }

  LlmcHeader header_of(std::uint64_t tokens) const {
    LlmcHeader header{};
    header[0] = format_.magic;
    header[1] = format_.version;
    header[2] = static_cast<std::int32_t>(tokens);
    return header;
  }
  void write_header() {
    const LlmcHeader header = header_of(in_shard_);
    file_->write(0, header.data(), sizeof header);
  }
  template <class File>
  void add_tokens(const File& file, std::uint64_t end) {
    each_piece(file, sizeof(LlmcHeader), end, [&](const void* data, std::size_t bytes) { sum_.add(data, bytes); });
  }

  void flush() {
    file_->write(written_, buffer_.data(), buffer_.size());
    sum_.add(buffer_.data(), buffer_.size());
    written_ += buffer_.size();
    buffer_.clear();
  }

  void close_shard() {
    flush();
    write_header();
    file_->finish();
    file_.reset();
    full_.push_back(in_shard_);
    full_sums_.push_back(sum_.value());
  }

  std::filesystem::path path_;
  LlmcFormat format_;
  std::uint64_t shard_tokens_;
  std::vector<std::uint64_t> full_;  // number of tokens of each closed shard
  std::optional<OutputFile> file_;   // the shard that is being written
  std::uint64_t in_shard_ = 0;       // tokens in that shard, including those in the buffer
  std::uint64_t written_ = 0;        // bytes of that shard in the file
  RunningSum sum_;                   // checksum of that shard's tokens in the file
  std::vector<std::uint64_t> full_sums_;
  std::vector<std::byte> buffer_;
  bool kept_ = false, finished_ = false;
};

}  // namespace

std::unique_ptr<TokenWriter> make_llmc_writer(const std::filesystem::path& path, std::size_t vocab_size,
                                              std::uint64_t shard_tokens, const nlohmann::json& state) {
  return std::make_unique<LlmcWriter>(path, vocab_size <= std::size_t{1} << 16 ? narrow_llmc : wide_llmc, shard_tokens, state);
}

std::vector<std::filesystem::path> llmc_files_of_earlier_runs(const std::filesystem::path& path, std::size_t files) {
  std::vector<std::filesystem::path> others;
  if (files > 1 && kind_of(path) == PathKind::file) others.push_back(path);
  for (std::size_t shard = files > 1 ? files + 1 : 1; kind_of(shard_path(path, shard)) == PathKind::file; ++shard)
    others.push_back(shard_path(path, shard));
  return others;
}

void write_token_file(const std::filesystem::path& path, std::span<const std::uint16_t> tokens) {
  LlmcWriter writer(path, narrow_llmc, most_llmc_tokens, nullptr);
  const std::vector<TokenId> ids(tokens.begin(), tokens.end());
  writer.add(ids);
  writer.finish();
}
void write_token_file(const std::filesystem::path& path, std::span<const std::uint32_t> tokens) {
  LlmcWriter writer(path, wide_llmc, most_llmc_tokens, nullptr);
  const std::vector<TokenId> ids(tokens.begin(), tokens.end());
  writer.add(ids);
  writer.finish();
}

}  // namespace fsdp
