#include "api/proof.hpp"

#include <cstring>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

constexpr std::uint16_t unwritten[] = {0xfff1, 0xfff1};

std::byte* element(const Tensor& tensor, std::size_t i) {
  return static_cast<std::byte*>(tensor.data) + i * size_of(tensor.type);
}

}  // namespace

void make_unwritten(const Tensor& result) {
  for (std::size_t i = 0; i < result.numel(); ++i) std::memcpy(element(result, i), unwritten, size_of(result.type));
}

void require_written(const Tensor& result, const char* name, const std::string& who) {
  std::size_t left = 0, first = 0;
  for (std::size_t i = result.numel(); i-- > 0;)
    if (std::memcmp(element(result, i), unwritten, size_of(result.type)) == 0) ++left, first = i;
  if (left > 0)
    throw UserError(format("{} does not write {} of {} numbers of {} (the first is in row {}, column {}); write all of {}", who,
                           left, result.numel(), name, first / result.columns, first % result.columns, name));
}

}  // namespace fsdp
