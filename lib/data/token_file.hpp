// Token files. llm.c's version 1: 256 little-endian int32 (20240520, 1, token count,
// zeros), then uint16 tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace fsdp {

/// A token file, mapped read-only. Sequence k of length T is tokens [kT, kT + T]: T inputs and the T targets one further on.
class TokenFile {
 public:
  /// Throws UserError for a file that is missing, empty, truncated or of another format, saying which.
  explicit TokenFile(const std::filesystem::path& path);
  TokenFile(TokenFile&&) noexcept;
  ~TokenFile();

  std::size_t tokens() const { return tokens_.size(); }
  std::size_t targets() const { return tokens() == 0 ? 0 : tokens() - 1; }
  /// Sequences of length T that have all targets of the file; the last one may be shorter.
  std::size_t sequences(std::size_t T) const { return (targets() + T - 1) / T; }
  /// Copies sequence k: inputs[T], targets[T]. Past the end of the file inputs are 0 and targets -1, which do not count. Throws
  /// UserError if a token is not below vocab_size, with its position and value.
  void read(std::size_t k, std::size_t T, std::size_t vocab_size, std::int32_t* inputs, std::int32_t* targets) const;
  /// Throws UserError if some token of part `part` of `parts` is not below vocab_size: ranks share the file, so that a wrong
  /// one is found before training, and once.
  void check_vocabulary(std::size_t vocab_size, std::size_t part, std::size_t parts) const;
  const std::filesystem::path& path() const { return path_; }

 private:
  [[noreturn]] void refuse_token(std::size_t position, std::size_t vocab_size) const;

  std::filesystem::path path_;
  void* map_ = nullptr;
  std::size_t map_bytes_ = 0;
  std::span<const std::uint16_t> tokens_;
};

/// Writes a token file under a temporary name, syncs it and renames it. Throws UserError or CallError.
void write_token_file(const std::filesystem::path& path, std::span<const std::uint16_t> tokens);

}  // namespace fsdp
