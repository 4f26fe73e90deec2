#include "optim/loss_scaler.hpp"

#include <algorithm>

namespace fsdp {

bool LossScaler::update(bool finite) {
  LossScalerState& s = state_;
  constexpr std::int64_t hopeless = 200;  // training ends after so many overflows in a row; from 2^64 to 2^-64 are 128 halvings
  if (finite) {
    s.in_a_row = 0;
    if (static_cast<std::uint64_t>(s.updates - s.last_overflow) % options_.scale_window == 0) {
      s.scale *= 2;
      s.last_change = s.updates;
    }
    ++s.updates;
    return true;
  }
  const double since_change = static_cast<double>(s.updates - s.last_change);
  s.last_overflow = s.updates++;
  ++s.overflows;
  if (++s.in_a_row == hopeless) return false;
  if (static_cast<double>(s.overflows) >= options_.tolerance * since_change) {
    const double halved = options_.threshold ? std::max(s.scale / 2, *options_.threshold) : s.scale / 2;
    if (halved <= options_.min_scale) return false;
    s.scale = halved;
    s.last_change = s.last_overflow;
    s.overflows = 0;
  }
  return true;
}

}  // namespace fsdp
