#include "fsdp/shard_state.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace fsdp {

void ShardState::read(std::size_t unit, std::size_t begin, std::span<float> out) const {
  expect(begin + out.size() <= numel(unit), "elements of the unit");
  expect(type != DType::f16, "states are fp32 or bf16");
  if (type == DType::f32)
    std::copy_n(reinterpret_cast<const float*>(units[unit].data()) + begin, out.size(), out.begin());
  else
    std::transform(reinterpret_cast<const std::uint16_t*>(units[unit].data()) + begin,
                   reinterpret_cast<const std::uint16_t*>(units[unit].data()) + begin + out.size(), out.begin(), bf16_to_float);
}

void ShardState::write(std::size_t unit, std::size_t begin, std::span<const float> values) const {
  expect(begin + values.size() <= numel(unit), "elements of the unit");
  expect(type != DType::f16, "states are fp32 or bf16");
  if (type == DType::f32)
    std::copy(values.begin(), values.end(), reinterpret_cast<float*>(units[unit].data()) + begin);
  else
    std::transform(values.begin(), values.end(), reinterpret_cast<std::uint16_t*>(units[unit].data()) + begin, float_to_bf16);
}

}  // namespace fsdp
