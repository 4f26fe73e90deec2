// Where the time of a predicted update goes, and what would shorten it: the work on the critical path, and predictions with
// changed rates.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "plan/prediction.hpp"

namespace fsdp {

struct PathShare {
  std::string work;  // "products", "all-gathers between nodes"
  double share = 0;  // of the time of an update
};
struct WhatIf {
  std::string change;  // "network x 2"
  double gain = 0;     // 0.03: 3 % more tokens per second
};
struct Bottlenecks {
  std::vector<PathShare> path;  // the largest share first; they add up to 1
  std::vector<WhatIf> changes;  // the largest gain first
};

/// The arguments are those of UpdateSimulation and of its predict(). Pure function.
Bottlenecks find_bottlenecks(const Transformer& model, const ShardingOptions& options, MeshShape mesh, const Cluster& cluster,
                             const Rates& rates, const DiskRates& disk, SlowRank slow);
/// Returns lines of text.
std::string describe(const Bottlenecks& bottlenecks);
nlohmann::json to_json(const Bottlenecks& bottlenecks);

}  // namespace fsdp
