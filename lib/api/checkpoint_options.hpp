// What a checkpoint of a program contains besides the model, and which steps stay in its folder.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

namespace fsdp {

/// Options of FullyShardedDataParallel::save(), the same on all ranks. docs/api.md explains each option.
struct CheckpointOptions {
  std::size_t keep_last = 0;                     // after the save, only the newest keep_last steps are kept; 0: all
  std::size_t keep_every = 0;                    // with keep_last: the steps of every keep_every-th update are kept, too
  std::optional<double> validation_loss = {};    // of this step; the link "best" names the step with the smallest
  std::map<std::string, std::string> data = {};  // the program's own bytes, by name
};

}  // namespace fsdp
