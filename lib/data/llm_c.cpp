#include <array>
#include <bit>
#include <cstring>

#include "base/error.hpp"
#include "base/format.hpp"
#include "data/formats.hpp"
#include "data/stored_integers.hpp"

namespace fsdp {

namespace {

using Header = std::array<std::int32_t, 256>;
struct Version {
  std::int32_t magic, version;
  IntegerType type;
};
constexpr Version narrow_tokens = {20240520, 1, {2}}, wide_tokens = {20240801, 7, {4}};

class LlmCTokens : public Tokens {
 public:
  explicit LlmCTokens(const std::filesystem::path& path) : stored_(path) {
    const InputFile& file = stored_.file();
    const std::uint64_t bytes = file.size();
    if (bytes < sizeof(Header))
      throw unusable_tokens(path, format("{} bytes are too few for the header of {}", bytes, sizeof(Header)));
    Header header;
    file.read(0, header.data(), sizeof header);
    const Version& as = header[0] == wide_tokens.magic ? wide_tokens : narrow_tokens;
    if (header[1] != as.version)
      throw unusable_tokens(path, format("it is of version {}, only version {} with tokens of {} bits is read", header[1],
                                         as.version, 8 * as.type.bytes));
    const std::uint64_t stored = (bytes - sizeof header) / as.type.bytes;
    if (header[2] < 0 || stored < static_cast<std::uint64_t>(header[2]))
      throw unusable_tokens(path, format("it is truncated: its header says {} tokens, {} are there", header[2], stored));
    const auto tokens = static_cast<std::uint64_t>(header[2]);
    if (const std::uint64_t end = sizeof header + as.type.bytes * tokens; bytes != end)
      throw unusable_tokens(path, format("its header says {} tokens, but {} bytes follow them", tokens, bytes - end));
    stored_.set(sizeof header, as.type, tokens);
  }

  std::uint64_t size() const override { return stored_.count(); }
  void read(std::uint64_t begin, std::span<std::uint32_t> out) const override { stored_.read(begin, out); }
  std::string name() const override { return format("'{}'", stored_.file().path().string()); }
  std::uint64_t largest_possible() const override { return stored_.type().largest(); }

 private:
  StoredIntegers stored_;
};

}  // namespace

const TokenFormat& llm_c_tokens() {
  static constexpr TokenFormat row = {
      "llm.c",
      [](const std::filesystem::path&, std::string_view beginning) {
        std::int32_t magic = 0;
        if (beginning.size() >= sizeof magic) std::memcpy(&magic, beginning.data(), sizeof magic);
        return magic == narrow_tokens.magic || magic == wide_tokens.magic;
      },
      [](const std::filesystem::path& path) -> std::unique_ptr<Tokens> { return std::make_unique<LlmCTokens>(path); }};
  return row;
}

}  // namespace fsdp
