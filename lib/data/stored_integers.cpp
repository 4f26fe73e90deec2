#include "data/stored_integers.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace fsdp {

namespace {

template <class Stored>
std::uint32_t token_of(const std::byte* at) {
  Stored value;
  std::memcpy(&value, at, sizeof value);
  if constexpr (sizeof value > 4) {
    if (value > static_cast<Stored>(no_token)) return no_token;
  }
  if constexpr (std::is_signed_v<Stored>) {
    if (value < 0) return no_token;
  }
  return static_cast<std::uint32_t>(value);
}

template <class Stored>
void convert(const std::byte* from, std::span<std::uint32_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = token_of<Stored>(from + i * sizeof(Stored));
}

void convert(const std::byte* from, IntegerType type, std::span<std::uint32_t> out) {
  switch (type.bytes) {
    case 1:
      return type.is_signed ? convert<std::int8_t>(from, out) : convert<std::uint8_t>(from, out);
    case 2:
      return type.is_signed ? convert<std::int16_t>(from, out) : convert<std::uint16_t>(from, out);
    case 4:
      return type.is_signed ? convert<std::int32_t>(from, out) : convert<std::uint32_t>(from, out);
    default:
      return type.is_signed ? convert<std::int64_t>(from, out) : convert<std::uint64_t>(from, out);
  }
}

}  // namespace

void StoredIntegers::read(std::uint64_t begin, std::span<std::uint32_t> out) const {
  std::array<std::byte, 16384> piece;
  const std::size_t most = piece.size() / type_.bytes;
  for (std::size_t done = 0; done < out.size();) {
    const std::size_t n = std::min(most, out.size() - done);
    file_.read(offset_ + (begin + done) * type_.bytes, piece.data(), n * type_.bytes);
    convert(piece.data(), type_, out.subspan(done, n));
    done += n;
  }
}

}  // namespace fsdp
