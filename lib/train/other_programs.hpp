// Option names of other programs, with the option of fsdp-train to use instead.
#pragma once

#include <string>

#include "base/options.hpp"

namespace fsdp {

/// Adds these names to the table: parsing one of them, or a configuration file of another program, gives an error that names
/// the replacement.
void add_options_of_other_programs(OptionTable& table);

/// The same names as a table for docs/options.md.
std::string names_of_other_programs();

}  // namespace fsdp
