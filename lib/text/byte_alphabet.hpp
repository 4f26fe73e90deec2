// The characters that byte-level tokenizers write for bytes, so that a token is a text that can be seen: printable bytes stand
// for themselves, the others follow from U+0100 on (Radford et al. 2019, GPT-2's encoder.py).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp {

class ByteAlphabet {
 public:
  ByteAlphabet();
  /// What is written for bytes.
  std::string written(std::string_view bytes) const;
  /// The bytes of what is written; nothing if some character stands for none.
  std::optional<std::string> bytes_of(std::string_view written) const;

 private:
  std::array<char32_t, 256> characters_{};
  std::array<int, 0x144> bytes_{};  // by character; -1: none
};

}  // namespace fsdp
