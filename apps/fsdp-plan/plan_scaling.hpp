// fsdp-plan --scaling: predicts the chosen strategy on several numbers of ranks, as a table, as JSON and as a page.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "fsdp-plan/plan_table.hpp"

namespace fsdp {

/// Reads numbers of ranks: items such as "8", or "4..64", which doubles from 4 to 64. Throws UserError, which names the item,
/// unless the numbers ascend from at least 1 to at most `most`.
std::vector<int> numbers_of_ranks(const std::vector<std::string>& items, int most);

/// Predicts each number of ranks in the options, with nodes of --ranks-per-node ranks; fewer ranks are one node. If the user
/// asked for no recomputation, a point has it if the update is then faster, or if it does not fit without. Throws UserError,
/// which names the number, if the strategy is impossible on this number of ranks.
std::vector<PredictedPoint> predict_scaling(const PlanTable& table);
/// Tokens per second and rank, against the first point that fits. Empty if this point does not fit.
std::optional<double> efficiency(const PlanTable& table, const PredictedPoint& point);

/// Empty without --scaling. At most 100 columns wide.
std::string describe_scaling(const PlanTable& table);
std::string scaling_csv(const PlanTable& table);
/// One HTML file, which needs no network.
std::string scaling_page(const PlanTable& table);
/// The point without its prediction.
nlohmann::json to_json(const PlanTable& table, const PredictedPoint& point);

}  // namespace fsdp
