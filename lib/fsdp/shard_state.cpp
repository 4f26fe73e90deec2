#include "fsdp/shard_state.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace fsdp {

void ShardState::read(std::size_t unit, std::size_t begin, std::span<float> out) const {
  expect(begin + out.size() <= numel(unit), "elements of the unit");
  expect(type != DType::f16, "states are fp32 or bf16");
  if (type == DType::f32) return units[unit].read(begin * sizeof(float), std::as_writable_bytes(out));
  auto to = out.begin();
  units[unit].visit<std::uint16_t>(begin * sizeof(std::uint16_t), out.size(), [&](const std::uint16_t* from, std::size_t n) {
    to = std::transform(from, from + n, to, bf16_to_float);
  });
}

void ShardState::write(std::size_t unit, std::size_t begin, std::span<const float> values) const {
  expect(begin + values.size() <= numel(unit), "elements of the unit");
  expect(type != DType::f16, "states are fp32 or bf16");
  if (type == DType::f32) return units[unit].write(begin * sizeof(float), std::as_bytes(values));
  std::vector<std::uint16_t> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), float_to_bf16);
  units[unit].write(begin * sizeof(std::uint16_t), std::as_bytes(std::span(rounded)));
}

std::vector<float> ShardState::values(std::size_t unit) const {
  std::vector<float> all(numel(unit));
  read(unit, 0, all);
  return all;
}

}  // namespace fsdp
