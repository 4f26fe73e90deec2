// TensorSource::read_to_use(): reads parameters for a computation, so they must be finite.
#include "checkpoint/tensor_source.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

constexpr std::size_t checked_at_once = std::size_t{1}
                                        << 20;  // elements; few enough to be still in the cache when they are checked

bool is_finite(std::span<const float> values) {
  std::int32_t largest = 0;  // the largest exponent bits; compilers vectorize this loop
  for (const float value : values) largest = std::max(largest, std::bit_cast<std::int32_t>(value) & 0x7f800000);
  return largest < 0x7f800000;
}

}  // namespace

void TensorSource::read_to_use(const std::string& state, const std::string& name, Range range, float* out) const {
  if (state != parameters_state) return read_state(state, name, range, out);
  for (std::size_t at = 0; at < range.size(); at += checked_at_once) {
    const Range piece{range.begin + at, std::min(range.end, range.begin + at + checked_at_once)};
    read_state(state, name, piece, out + at);
    const auto values = std::span(out + at, piece.size());
    if (is_finite(values)) continue;
    const auto bad = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
    throw UserError(
        format("{} holds weights that are not finite (element {} of {} is {}); use another copy of the model, or an earlier "
               "checkpoint",
               holder_of(name), piece.begin + static_cast<std::size_t>(bad - values.begin()), name, *bad));
  }
}

}  // namespace fsdp
