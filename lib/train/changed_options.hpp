// Finds the options that change results and whose values differ between a resumed run and the run that wrote its checkpoint.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "train/options.hpp"

namespace fsdp {

/// The options that are not compared with those in the checkpoint. Either they change no result except the rounding of sums, or
/// other code compares their effect. All options that are not in this list are compared, new ones included.
std::span<const std::string_view> options_that_keep_results();

/// Returns a warning that lists every compared option whose value differs from its value in `before`; "" if there is none.
/// `before` has the options, from to_json(), of the run that wrote the checkpoint after `update`. Options that are missing in
/// `before` are not compared.
std::string describe_changed_options(const nlohmann::json& before, const TrainOptions& now, std::uint64_t update);

}  // namespace fsdp
