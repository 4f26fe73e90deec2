// Options of programs that users come from, which fsdp-train does not have: why not, and what is there instead. Those that it
// has are rows of the options' table under the same names. docs/from-fairseq.md, from-pytorch.md, from-deepspeed.md and
// from-megatron.md hold both, and the test tools.other-programs holds those pages to both tables.
#pragma once

#include "base/options.hpp"

namespace fsdp {

/// What the program says to somebody who gives one of them, or a configuration file of theirs, instead of a guess.
void add_options_of_other_programs(OptionTable& table);

}  // namespace fsdp
