// What a checkpoint of a program contains besides the model, and which steps stay in its folder.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

namespace fsdp {

/// Options of FullyShardedDataParallel::save(), the same on all ranks. docs/api-options.md explains each option.
struct CheckpointOptions {
  std::size_t keep_last = 0;                   // after the save, older steps than the newest keep_last are removed; 0: none
  std::size_t keep_every = 0;                  // with keep_last: the steps of every keep_every-th update are kept
  std::optional<double> validation_loss = {};  // of this step; the link "best" names the step with the smallest, which is kept
  std::map<std::string, std::string> data = {};  // the program's own bytes, by name
  std::string files_per_checkpoint = {};         // the number of files for the tensors, or "node"; empty: one for each rank
};

}  // namespace fsdp
