// The dynamic loss scale of fp16 training, with fairseq's rules: gradients are computed of the loss times a power of 2, so that
// small ones do not become 0; when they overflow, the update is skipped and the scale halved; after a while without overflow
// it is doubled. (Micikevicius et al. 2018, "Mixed precision training", section 3.2.) Every rank computes the same, since all
// know whether an update was finite.
#pragma once

#include <cstdint>
#include <optional>

namespace fsdp {

struct LossScalerOptions {
  double init_scale = 128;
  std::uint64_t scale_window = 1024;     // updates without overflow after which the scale doubles
  double tolerance = 0;                  // share of overflows since the last change that is borne before the scale is halved
  double min_scale = 1e-4;               // below it there is no hope
  std::optional<double> threshold = {};  // the scale is not halved below this
};

/// What a checkpoint holds.
struct LossScalerState {
  double scale = 1;
  std::int64_t updates = 0;  // seen, skipped ones included
  std::int64_t last_overflow = -1, last_change = -1;
  std::int64_t overflows = 0;  // since the last change
  std::int64_t in_a_row = 0;   // overflows without a finite update between them
  bool operator==(const LossScalerState&) const = default;
};

class LossScaler {
 public:
  explicit LossScaler(const LossScalerOptions& options) : options_(options) { state_.scale = options.init_scale; }

  double scale() const { return state_.scale; }
  /// After each update. False: it was not finite, and lowering the scale further would not help, as it is at its minimum, or
  /// nothing has helped for so long that no scale will.
  [[nodiscard]] bool update(bool finite);

  const LossScalerState& state() const { return state_; }
  void restore(const LossScalerState& state) { state_ = state; }

 private:
  LossScalerOptions options_;
  LossScalerState state_;
};

}  // namespace fsdp
