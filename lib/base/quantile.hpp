// Quantiles of measurements.
#pragma once

#include <vector>

namespace fsdp {

/// The value at place `share` x (n - 1) of the n sorted finite values, interpolated between two of them; NaN if there are none.
double quantile(std::vector<double> values, double share);

}  // namespace fsdp
