// Finds the options that change results and whose values differ between a resumed run and the run that wrote its checkpoint.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "train/options.hpp"

namespace fsdp {

/// The options that are not compared with those in the checkpoint: they change no result except the rounding of sums, or other
/// code compares their effect. All other options are compared, so a new option is compared unless it is added here.
std::span<const std::string_view> options_that_keep_results();

/// Returns a warning that lists every compared option whose value differs from its value in `before`; "" if there is none.
/// `before` is the to_json() of the run that wrote the checkpoint after `update`; options that it does not have are not
/// compared.
std::string describe_changed_options(const nlohmann::json& before, const TrainOptions& now, std::uint64_t update);

}  // namespace fsdp
