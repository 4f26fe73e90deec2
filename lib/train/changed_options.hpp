// Which options of a resumed run differ from those of the run that wrote its checkpoint, and change what it computes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "train/options.hpp"

namespace fsdp {

/// The options that are not compared: they change no result of a resumed run but by the rounding of sums, or something else
/// compares what they decide. All other options of the table are compared, so that a new one is unless it is added here.
std::span<const std::string_view> options_that_keep_results();

/// A warning with every compared option whose value is not that in `before`, which is to_json() of the run that wrote the
/// checkpoint after `update`. Empty if there is none. What `before` does not have is not compared.
std::string describe_changed_options(const nlohmann::json& before, const TrainOptions& now, std::uint64_t update);

}  // namespace fsdp
