#include "layers/proof.hpp"

#include <cstring>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

constexpr std::uint16_t unwritten[] = {0xfff1, 0xfff1};

std::byte* element(const Tensor& tensor, std::size_t i) {
  return static_cast<std::byte*>(tensor.data) + i * size_of(tensor.type);
}

bool is_unwritten(const Tensor& tensor, std::size_t i) {
  return std::memcmp(element(tensor, i), unwritten, size_of(tensor.type)) == 0;
}

}  // namespace

void make_unwritten(const Tensor& result) {
  for (std::size_t i = 0; i < result.numel(); ++i) std::memcpy(element(result, i), unwritten, size_of(result.type));
}

void require_written(const Tensor& result, const char* name, const std::string& who) {
  std::size_t left = 0, first = 0;
  for (std::size_t i = result.numel(); i-- > 0;)
    if (is_unwritten(result, i)) ++left, first = i;
  if (left > 0)
    throw UserError(format("{} does not write {} of {} numbers of {} (the first is in row {}, column {}); write all of {}", who,
                           left, result.numel(), name, first / result.columns, first % result.columns, name));
}

bool clear_unwritten(const Tensor& result) {
  std::size_t written = 0;
  while (written < result.numel() && is_unwritten(result, written)) ++written;
  for (std::size_t i = 0; written < result.numel() && i < result.numel(); ++i)
    if (is_unwritten(result, i)) std::memset(element(result, i), 0, size_of(result.type));
  return written < result.numel();
}

}  // namespace fsdp
