// Finds the options that change results and whose values differ between a resumed run and the run that wrote its checkpoint.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "options/options.hpp"

namespace fsdp {

/// The options that are not compared with those in the checkpoint. Either they change no result except the rounding of sums, or
/// other code compares their effect. All options that are not in this list are compared, new ones included.
std::span<const std::string_view> options_that_keep_results();

/// Returns a warning that lists every compared option whose value differs from its value in `before`; "" if there is none.
/// `before` has the options, from to_json(), of the run that wrote the checkpoint after `update`. Options that are missing in
/// `before` are not compared.
std::string describe_changed_options(const nlohmann::json& before, const TrainOptions& now, std::uint64_t update);

/// Returns a warning if the decay of the learning rate ends at another update than before because its end follows from the
/// data, the batch and the number of ranks; "" if the end is the same, if it is unknown, or if describe_changed_options()
/// compares it. `end` is Progress::schedule_end of the checkpoint; `now` is the schedule with its end.
std::string describe_moved_end(const nlohmann::json& before, std::uint64_t end, const TrainOptions& options,
                               const Schedule& now, std::uint64_t update);

}  // namespace fsdp
