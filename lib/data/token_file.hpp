// Token files, as llm.c has them: 256 little-endian int32, then the tokens. The first three numbers of the header are 20240520,
// 1 and the count of tokens, which are uint16 then; or 20240801, 7 and their count, and they are uint32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "files/input_file.hpp"

namespace fsdp {

/// A token file. What is read of it is read when it is asked for: a file that somebody cuts meanwhile is an error then, which a
/// mapped one would not be. Sequence k of length T is tokens [kT, kT + T]: T inputs and the T targets one further on.
class TokenFile {
 public:
  /// Throws UserError for a file that is missing, empty, truncated or of another format, saying which.
  explicit TokenFile(const std::filesystem::path& path);

  std::size_t tokens() const { return tokens_; }
  std::size_t targets() const { return tokens() == 0 ? 0 : tokens() - 1; }
  /// Sequences of length T that have all targets of the file; the last one may be shorter.
  std::size_t sequences(std::size_t T) const { return (targets() + T - 1) / T; }
  /// Copies sequence k: inputs[T], targets[T]. Past the end of the file inputs are 0 and targets -1, which do not count. Throws
  /// UserError if a token is not below vocab_size, with its position and value; RunError if the file has become shorter, and
  /// CallError if the disk fails. Does not allocate.
  void read(std::size_t k, std::size_t T, std::size_t vocab_size, std::int32_t* inputs, std::int32_t* targets) const;
  /// Throws UserError if some token of part `part` of `parts` is not below vocab_size: ranks share the file, so that a wrong
  /// one is found before training, and once.
  void check_vocabulary(std::size_t vocab_size, std::size_t part, std::size_t parts) const;
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void read_tokens(std::size_t begin, std::span<std::uint32_t> out) const;
  [[noreturn]] void refuse_token(std::size_t position, std::uint32_t token, std::size_t vocab_size) const;

  InputFile file_;
  std::size_t tokens_ = 0, token_bytes_ = 2;
};

}  // namespace fsdp
