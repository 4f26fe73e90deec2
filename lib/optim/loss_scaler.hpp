// The dynamic loss scale of fp16 training, with fairseq's rules. The loss is multiplied by a power of 2 before the backward
// pass, so that small gradients do not become 0. If gradients overflow, the update is skipped and the scale halved; after a
// number of updates without overflow it is doubled. (Micikevicius et al. 2018, "Mixed precision training", section 3.2.) Every
// rank computes the same scale, since all ranks know whether an update was finite.
#pragma once

#include <cstdint>
#include <optional>

namespace fsdp {

struct LossScalerOptions {
  double init_scale = 128;
  std::uint64_t scale_window = 1024;  // updates without overflow after which the scale doubles
  double tolerance = 0;     // the scale is halved if at least this share of the updates since its last change overflowed
  double min_scale = 1e-4;  // training ends if the scale would fall to this value or below
  std::optional<double> threshold = {};  // the scale is not halved below this value
};

/// The state in a checkpoint.
struct LossScalerState {
  double scale = 1;
  std::int64_t updates = 0;  // the number of updates so far, including skipped ones
  std::int64_t last_overflow = -1, last_change = -1;
  std::int64_t overflows = 0;  // the number of overflows since the last change of the scale
  std::int64_t in_a_row = 0;   // the number of overflows since the last finite update
  bool operator==(const LossScalerState&) const = default;
};

class LossScaler {
 public:
  explicit LossScaler(const LossScalerOptions& options) : options_(options) { state_.scale = options.init_scale; }

  double scale() const { return state_.scale; }
  /// Call this after each update. Returns false if training must end, because the scale would fall to its minimum or because
  /// too many updates in a row have overflowed.
  [[nodiscard]] bool update(bool finite);

  const LossScalerState& state() const { return state_; }
  void restore(const LossScalerState& state) { state_ = state; }

 private:
  LossScalerOptions options_;
  LossScalerState state_;
};

}  // namespace fsdp
