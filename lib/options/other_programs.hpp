// Option names of other programs, with the option of fsdp-train to use instead.
#pragma once

#include <string>

#include "base/options.hpp"

namespace fsdp {

/// Adds the option names of other programs to the table. When the user gives one of these names, or a configuration file of
/// another program, parsing fails with an error that names the replacement.
void add_options_of_other_programs(OptionTable& table);

/// The option names of other programs as a table for docs/options.md.
std::string names_of_other_programs();

}  // namespace fsdp
