#include "data/token_file.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/format.hpp"
#include "data/llmc_format.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

namespace {

UserError unusable(const std::filesystem::path& path, const std::string& why) {
  return UserError(format("'{}' is not a token file that can be used ({}); make one with fsdp-tokenize", path.string(), why));
}

/// Files that are often taken for token files are called by their names.
UserError of_another_kind(const std::filesystem::path& path, const InputFile& file, std::int32_t first_number) {
  constexpr std::pair<std::string_view, const char*> kinds[] = {
      {"\x89HDF\r\n\x1a\n", "an HDF5 file"},
      {"\x93NUMPY", "an array of numpy"},
      {"MMIDIDX", "the index of a Megatron or fairseq data set"},
      {"\x1f\x8b", "compressed by gzip"},
      {"PK\x03\x04", "a zip archive, as torch.save and numpy.savez make"},
      {"PAR1", "a Parquet file"}};
  std::string beginning(std::min<std::size_t>(file.size(), 256), '\0');
  file.read(0, beginning.data(), beginning.size());
  for (const auto& [signature, name] : kinds)
    if (beginning.starts_with(signature))
      return UserError(format(
          "'{}' is not a token file that can be used (it is {}); write its tokens to one as \"Tokens\" in docs/running.md "
          "shows",
          path.string(), name));
  const bool is_text = std::none_of(beginning.begin(), beginning.end(), [](unsigned char c) {
    return c < ' ' && c != '\n' && c != '\r' && c != '\t' && c != '\f';
  });
  if (is_text)
    return unusable(
        path, format("it starts with {}, a llm.c token file with {}: it looks like text", first_number, narrow_llmc.magic));
  return UserError(
      format("'{}' is not a token file that can be used (it starts with {}, a llm.c token file with {}); make one of text with "
             "fsdp-tokenize, or of other tokens as \"Tokens\" in docs/running.md shows",
             path.string(), first_number, narrow_llmc.magic));
}

InputFile open_tokens(const std::filesystem::path& path) {
  switch (kind_of(path)) {
    case PathKind::missing:
      throw unusable(path, "No such file or directory");
    case PathKind::folder:
      throw unusable(path, "it is a folder");
    case PathKind::other:
      throw unusable(path, "it is a pipe or a device");
    case PathKind::file:
      break;
  }
  return InputFile(path);
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path) : file_(open_tokens(path)) {
  const std::uint64_t bytes = file_.size();
  if (bytes == 0) throw unusable(path, "it is empty");
  if (bytes < sizeof(LlmcHeader))
    throw unusable(path, format("{} bytes are too few for the header of {}", bytes, sizeof(LlmcHeader)));
  LlmcHeader header;
  file_.read(0, header.data(), sizeof header);
  const bool is_wide = header[0] == wide_llmc.magic;
  const LlmcFormat& expected = is_wide ? wide_llmc : narrow_llmc;
  if (header[0] != expected.magic) throw of_another_kind(path, file_, header[0]);
  if (header[1] != expected.version)
    throw unusable(path, format("it is of version {}, only version {} with tokens of {} bits is read", header[1],
                                expected.version, 8 * expected.token_bytes));
  token_bytes_ = expected.token_bytes;
  const std::uint64_t stored = (bytes - sizeof header) / token_bytes_;
  if (header[2] < 0 || stored < static_cast<std::uint64_t>(header[2]))
    throw unusable(path, format("it is truncated: its header says {} tokens, {} are there", header[2], stored));
  tokens_ = static_cast<std::size_t>(header[2]);
  if (const std::uint64_t end = sizeof header + token_bytes_ * tokens_; bytes != end)
    throw unusable(path, format("its header says {} tokens, but {} bytes follow them", tokens_, bytes - end));
}

void TokenFile::read_tokens(std::size_t begin, std::span<std::uint32_t> out) const {
  auto* const bytes = reinterpret_cast<std::byte*>(out.data());
  // Narrow ones are read into the upper half, from where each is widened before another is written over it.
  const std::byte* const stored = bytes + out.size() * (sizeof(std::uint32_t) - token_bytes_);
  file_.read(sizeof(LlmcHeader) + begin * token_bytes_, bytes + (stored - bytes), out.size() * token_bytes_);
  if (token_bytes_ == sizeof(std::uint32_t)) return;
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t token;
    std::memcpy(&token, stored + i * sizeof token, sizeof token);
    out[i] = token;
  }
}

void TokenFile::refuse_token(std::size_t position, std::uint32_t token, std::size_t vocab_size) const {
  throw UserError(format(
      "token {} at position {} of '{}' is outside the vocabulary of {} (the file was made with another tokenizer, or the "
      "model is another one); tokenize again or set `vocabulary size`",
      token, position, path().string(), vocab_size));
}

void TokenFile::check_vocabulary(std::size_t vocab_size, std::size_t part, std::size_t parts) const {
  const Range mine = share(tokens(), parts, part);
  std::vector<std::uint32_t> piece(std::min(mine.size(), std::size_t{1} << 19));
  for (std::size_t begin = mine.begin; begin < mine.end; begin += piece.size()) {
    const auto tokens = std::span(piece).first(std::min(piece.size(), mine.end - begin));
    read_tokens(begin, tokens);
    const auto largest = std::max_element(tokens.begin(), tokens.end());
    if (*largest >= vocab_size) refuse_token(begin + static_cast<std::size_t>(largest - tokens.begin()), *largest, vocab_size);
  }
}

void TokenFile::read(std::size_t k, std::size_t T, std::size_t vocab_size, std::int32_t* inputs, std::int32_t* targets) const {
  const std::size_t begin = std::min(k * T, tokens());
  const std::size_t present = std::min(T + 1, tokens() - begin), targets_present = present == 0 ? 0 : present - 1;
  std::array<std::uint32_t, 4096> piece;
  for (std::size_t first = 0; first < present; first += piece.size()) {
    const auto tokens = std::span(piece).first(std::min(piece.size(), present - first));
    read_tokens(begin + first, tokens);
    for (std::size_t i = 0, t = first; i < tokens.size(); ++i, ++t) {
      if (tokens[i] >= vocab_size) [[unlikely]]
        refuse_token(begin + t, tokens[i], vocab_size);
      const auto token = static_cast<std::int32_t>(tokens[i]);
      if (t < targets_present) inputs[t] = token;
      if (t > 0) targets[t - 1] = token;
    }
  }
  std::fill(inputs + targets_present, inputs + T, 0);
  std::fill(targets + targets_present, targets + T, -1);
}

}  // namespace fsdp
