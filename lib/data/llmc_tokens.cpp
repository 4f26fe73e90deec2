// Reads and writes token files in llm.c's format.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "data/formats.hpp"
#include "data/output_place.hpp"
#include "data/stored_integers.hpp"
#include "files/output_file.hpp"

namespace fsdp {

namespace {

using LlmcHeader = std::array<std::int32_t, 256>;

struct LlmcFormat {
  std::int32_t magic, version;
  std::size_t token_bytes;
};
constexpr LlmcFormat narrow_llmc = {20240520, 1, 2}, wide_llmc = {20240801, 7, 4};

class LlmcTokens : public StoredIntegers {
 public:
  explicit LlmcTokens(const std::filesystem::path& path) : StoredIntegers(path) {
    const std::uint64_t bytes = file().size();
    if (bytes < sizeof(LlmcHeader))
      throw unusable_tokens(path, format("it has {} bytes, fewer than its header of {}", bytes, sizeof(LlmcHeader)));
    LlmcHeader header;
    file().read(0, header.data(), sizeof header);
    const LlmcFormat& as = header[0] == wide_llmc.magic ? wide_llmc : narrow_llmc;
    if (header[1] != as.version)
      throw unusable_tokens(path, format("it is of version {}, but only version {} with tokens of {} bits is read", header[1],
                                         as.version, 8 * as.token_bytes));
    for (std::size_t i = 3; i < header.size(); ++i)
      if (header[i] != 0)
        throw unusable_tokens(
            path, format("number {} of its header is {}, but all after the first three must be 0", i + 1, header[i]));
    const std::uint64_t stored = (bytes - sizeof header) / as.token_bytes;
    if (header[2] < 0 || stored < static_cast<std::uint64_t>(header[2]))
      throw unusable_tokens(path,
                            format("it is truncated: its header has {} tokens, but only {} are stored", header[2], stored));
    const auto tokens = static_cast<std::uint64_t>(header[2]);
    if (const std::uint64_t end = sizeof header + as.token_bytes * tokens; bytes != end)
      throw unusable_tokens(path, format("its header has {} tokens, but {} bytes follow them", tokens, bytes - end));
    set(sizeof header, {as.token_bytes}, tokens);
  }
};

/// The path of a numbered file: train_000003.bin for train.bin and 3.
std::filesystem::path shard_path(const std::filesystem::path& path, std::size_t shard) {
  return path.parent_path() / format("{}_{:06}{}", path.stem().string(), shard, path.extension().string());
}

/// More than `shard_tokens` tokens become several files: train.bin is then train_000001.bin, train_000002.bin and so on, each
/// full except the last.
class LlmcWriter : public TokenWriter {
 public:
  LlmcWriter(std::filesystem::path path, const LlmcFormat& as, std::uint64_t shard_tokens, const nlohmann::json& state)
      : path_(std::move(path)), format_(as), shard_tokens_(shard_tokens) {
    expect(shard_tokens > 0 && shard_tokens <= most_llmc_tokens, "a shard has 1 to 2147483647 tokens");
    require_place(path_);
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
    for (std::size_t shard = 1; shard <= full_.size() + 1; ++shard) ::unlink(temporary_path(path_, shard).c_str());
  }

  void add(std::span<const TokenId> tokens) override {
    while (!tokens.empty()) {
      if (in_shard_ == shard_tokens_) {
        close_shard();
        open_shard();
      }
      const std::size_t now = std::min<std::uint64_t>(tokens.size(), shard_tokens_ - in_shard_);
      file_->append(tokens.first(now), format_.token_bytes);
      in_shard_ += now;
      tokens = tokens.subspan(now);
    }
  }

  void sync() override {
    file_->sync();
    if (!std::exchange(kept_, true)) sync_folder(folder_of(path_));
  }
  nlohmann::json state() const override {
    return {{"token_bytes", format_.token_bytes}, {"shard_tokens", shard_tokens_},
            {"full_shards", full_.size()},        {"full_sums", full_sums_},
            {"tokens_in_last", in_shard_},        {"last_sum", file_->sum()}};
  }

  std::vector<WrittenFile> finish() override {
    close_shard();
    std::vector<WrittenFile> files;
    for (std::size_t shard = 1; shard <= full_.size(); ++shard) {
      const std::filesystem::path name = full_.size() == 1 ? path_ : shard_path(path_, shard);
      rename_durably(temporary_path(path_, shard), name);
      files.push_back({name, full_[shard - 1]});
    }
    finished_ = true;
    return files;
  }

 private:
  /// Removes the temporary files of a killed process, beginning with shard `first`.
  void remove_temporaries(std::size_t first) {
    std::size_t end = first;
    for (; kind_of(temporary_path(path_, end)) == PathKind::file; ++end)
      OutputFile(temporary_path(path_, end), OutputFile::Open::existing).lock();  // throws if that process is alive
    for (std::size_t shard = first; shard < end; ++shard) remove_left_over(temporary_path(path_, shard));
  }

  void open_shard(const std::optional<FileSum>& kept = {}) {
    file_.emplace(temporary_path(path_, full_.size() + 1), sizeof(LlmcHeader), kept);
    in_shard_ = kept ? (kept->bytes - sizeof(LlmcHeader)) / format_.token_bytes : 0;
    if (!kept) write_header();  // reserves room; close_shard() writes the right count
  }

  void go_on(const nlohmann::json& state) {
    const auto number = [&](const char* key) { return number_of_state(state, key, path_); };
    const std::uint64_t full = number("full_shards"), in_last = number("tokens_in_last");
    const auto require = [&](bool right) {
      if (!right)
        throw DamagedError(
            format("the temporary files of '{}' have changed since they were written; start anew", path_.string()));
    };
    require(number("token_bytes") == format_.token_bytes && number("shard_tokens") == shard_tokens_ &&
            in_last <= shard_tokens_ && full < (std::uint64_t{1} << 32));
    const nlohmann::json sums = state.value("full_sums", nlohmann::json());
    require(sums.is_array() && sums.size() == full);
    for (const nlohmann::json& sum : sums) {
      require(sum.is_number_unsigned());
      open_shard(FileSum{sizeof(LlmcHeader) + shard_tokens_ * format_.token_bytes, sum});
      LlmcHeader header;
      file_->file().read(0, header.data(), sizeof header);
      require(header == header_of(shard_tokens_));
      full_.push_back(shard_tokens_);
      full_sums_.push_back(sum);
    }
    open_shard(FileSum{sizeof(LlmcHeader) + in_last * format_.token_bytes, number("last_sum")});
    remove_temporaries(full + 2);  // shards that were begun after the last saved state
    kept_ = true;
  }

  LlmcHeader header_of(std::uint64_t tokens) const {
    return {format_.magic, format_.version, static_cast<std::int32_t>(tokens)};
  }
  void write_header() {
    const LlmcHeader header = header_of(in_shard_);
    file_->file().write(0, header.data(), sizeof header);
  }

  void close_shard() {
    file_->flush();
    write_header();
    file_->file().finish();
    full_.push_back(in_shard_);
    full_sums_.push_back(file_->sum());
    file_.reset();
  }

  std::filesystem::path path_;
  LlmcFormat format_;
  std::uint64_t shard_tokens_;
  std::vector<std::uint64_t> full_;   // number of tokens of each closed shard
  std::optional<AppendedFile> file_;  // the shard that is being written
  std::uint64_t in_shard_ = 0;        // tokens in that shard
  std::vector<std::uint64_t> full_sums_;
  bool kept_ = false, finished_ = false;
};

}  // namespace

std::vector<std::filesystem::path> llmc_files_of_earlier_runs(const std::filesystem::path& path, std::size_t files) {
  std::vector<std::filesystem::path> others;
  if (files > 1 && kind_of(path) == PathKind::file) others.push_back(path);
  for (std::size_t shard = files > 1 ? files + 1 : 1; kind_of(shard_path(path, shard)) == PathKind::file; ++shard)
    others.push_back(shard_path(path, shard));
  return others;
}

/// llm.c's format: a header of 256 little-endian int32, then the tokens. For uint16 tokens the header begins with 20240520, 1
/// and the number of tokens; for uint32 tokens with 20240801, 7 and the number of tokens. The other numbers are 0.
const TokenFormat& llmc_tokens() {
  static const TokenFormat row = {
      .name = "llm.c",
      .about = "16 bits per token, or 32 if the vocabulary has more than 65536 tokens.",
      .recognises =
          [](const std::filesystem::path&, std::string_view beginning) {
            std::int32_t magic = 0;
            if (beginning.size() >= sizeof magic) std::memcpy(&magic, beginning.data(), sizeof magic);
            return magic == narrow_llmc.magic || magic == wide_llmc.magic;
          },
      .open = [](const std::filesystem::path& path) -> std::unique_ptr<Tokens> { return std::make_unique<LlmcTokens>(path); },
      .make_writer = [](const std::filesystem::path& path, std::size_t vocab_size, const nlohmann::json& state,
                        std::uint64_t shard_tokens) -> std::unique_ptr<TokenWriter> {
        const LlmcFormat& as = vocab_size <= std::size_t{1} << 16 ? narrow_llmc : wide_llmc;
        return std::make_unique<LlmcWriter>(path, as, shard_tokens, state);
      },
      .has_shards = true};
  return row;
}

}  // namespace fsdp
