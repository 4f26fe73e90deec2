// The characters that byte-level tokenizers write for bytes, so that each token is a visible text. Printable bytes are written
// as themselves, the others as U+0100 and the following characters (Radford et al. 2019, GPT-2's encoder.py).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp {

class ByteAlphabet {
 public:
  ByteAlphabet();
  /// The characters for `bytes`.
  std::string written(std::string_view bytes) const;
  /// The bytes for the characters `written`; nullopt if a character stands for no byte.
  std::optional<std::string> bytes_of(std::string_view written) const;

 private:
  std::array<char32_t, 256> characters_{};
  std::array<int, 0x144> bytes_{};  // indexed by character: the byte that it stands for, or -1
};

}  // namespace fsdp
