// Reads token files in llm.c's format.
#include <cstring>

#include "base/error.hpp"
#include "base/format.hpp"
#include "data/formats.hpp"
#include "data/llmc_format.hpp"
#include "data/stored_integers.hpp"

namespace fsdp {

namespace {

class LlmcTokens : public Tokens {
 public:
  explicit LlmcTokens(const std::filesystem::path& path) : stored_(path) {
    const InputFile& file = stored_.file();
    const std::uint64_t bytes = file.size();
    if (bytes < sizeof(LlmcHeader))
      throw unusable_tokens(path, format("it has {} bytes, fewer than its header of {}", bytes, sizeof(LlmcHeader)));
    LlmcHeader header;
    file.read(0, header.data(), sizeof header);
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
    stored_.set(sizeof header, {as.token_bytes}, tokens);
  }

  std::uint64_t size() const override { return stored_.count(); }
  void read(std::uint64_t begin, std::span<std::uint32_t> out) const override { stored_.read(begin, out); }
  std::string name() const override { return format("'{}'", stored_.file().path().string()); }
  std::uint64_t largest_possible() const override { return stored_.type().largest(); }

 private:
  StoredIntegers stored_;
};

}  // namespace

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
                        std::uint64_t shard_tokens) { return make_llmc_writer(path, vocab_size, shard_tokens, state); },
      .has_shards = true};
  return row;
}

}  // namespace fsdp
