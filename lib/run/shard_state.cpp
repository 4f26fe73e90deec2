#include "run/shard_state.hpp"

#include <algorithm>
#include <type_traits>

#include "base/element.hpp"
#include "base/error.hpp"

namespace fsdp {

void ShardState::read(std::size_t unit, std::size_t begin, std::span<float> out) const {
  expect(begin + out.size() <= numel(unit), "the range is within the unit");
  with_element(types[unit], [&]<class E>() {
    if constexpr (std::is_same_v<E, float>) return units[unit].read(begin * sizeof(float), std::as_writable_bytes(out));
    auto to = out.begin();
    units[unit].template visit<E>(begin * sizeof(E), out.size(),
                                  [&](const E* from, std::size_t n) { to = std::copy(from, from + n, to); });
  });
}

void ShardState::write(std::size_t unit, std::size_t begin, std::span<const float> values) const {
  expect(begin + values.size() <= numel(unit), "the range is within the unit");
  with_element(types[unit], [&]<class E>() {
    if constexpr (std::is_same_v<E, float>) return units[unit].write(begin * sizeof(float), std::as_bytes(values));
    const std::vector<E> rounded(values.begin(), values.end());
    units[unit].write(begin * sizeof(E), std::as_bytes(std::span(rounded)));
  });
}

std::vector<float> ShardState::values(std::size_t unit) const {
  std::vector<float> all(numel(unit));
  read(unit, 0, all);
  return all;
}

}  // namespace fsdp
