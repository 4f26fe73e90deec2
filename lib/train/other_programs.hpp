// Options that other programs have under another name or in another form, and what to give fsdp-train instead.
#pragma once

#include <string>

#include "base/options.hpp"

namespace fsdp {

/// Whoever gives one of them, or a configuration file of another program, is told what to give instead.
void add_options_of_other_programs(OptionTable& table);

/// The same as a table for docs/options.md.
std::string names_of_other_programs();

}  // namespace fsdp
