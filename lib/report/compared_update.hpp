// Compares the updates of a run with the prediction in its start line.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "report/run.hpp"

namespace fsdp {

/// Milliseconds of one update of rank 0. Parts that are unknown are not_known.
struct UpdateParts {
  double total = not_known;
  double products = not_known, attention = not_known;  // with what is computed again
  double other_kernels = not_known;                    // of a GPU's measurement with products and attention
  double optimizer = not_known, waiting = not_known;
  double host = not_known;    // the rest
  double slowed = not_known;  // of a prediction: what collectives add to the first three; a measurement has it in these
};

/// The prediction of a start line; its `total` is not_known if there is none.
UpdateParts predicted_update(const nlohmann::json& start);
/// The median update of the newest start. Its first update does not count if there are others. If only some updates have parts
/// (on a GPU those that --trace records), it is the median of these.
UpdateParts measured_update(const Run& run);

/// Says in one sentence whether updates of the newest start are slower than predicted, which part of them is, and why it may
/// be so; empty without a prediction or without updates. Pure function.
std::string compare_with_prediction(const Run& run);

}  // namespace fsdp
