// Parameter groups: settings of the optimizer that only some parameters have, like the param_groups of torch.optim.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace fsdp {

/// The settings of the parameters whose names match `patterns`. If several groups match a parameter, the last one that has a
/// value decides. A parameter that no group matches has the optimizer's settings, and a vector then has no weight decay.
struct ParameterGroup {
  std::vector<std::string> patterns = {};          // shell globs over names
  std::optional<double> weight_decay = {};         // also for vectors
  std::optional<double> learning_rate_scale = {};  // a factor of the learning rate
};

}  // namespace fsdp
