#include "text/byte_alphabet.hpp"

#include "text/utf8.hpp"

namespace fsdp {

ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool shows = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const char32_t character = shows ? static_cast<char32_t>(byte) : next++;
    characters_[static_cast<std::size_t>(byte)] = character;
    bytes_[character] = byte;
  }
}

std::string ByteAlphabet::written(std::string_view bytes) const {
  std::string text;
  for (const char byte : bytes) append_utf8(text, characters_[static_cast<unsigned char>(byte)]);
  return text;
}

std::optional<std::string> ByteAlphabet::bytes_of(std::string_view written) const {
  std::string bytes;
  for (std::size_t at = 0; at < written.size();) {
    const char32_t character = next_character(written, at);
    if (character >= bytes_.size() || bytes_[character] < 0) return std::nullopt;
    bytes += static_cast<char>(bytes_[character]);
  }
  return bytes;
}

}  // namespace fsdp
