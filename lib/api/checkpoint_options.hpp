// What a checkpoint of a program keeps and contains besides the model.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

namespace fsdp {

/// Options of FullyShardedDataParallel::save(), the same on all ranks. docs/api.md explains each option.
struct CheckpointOptions {
  std::size_t keep_last = 0, keep_every = 0;     // steps in the folder that are not removed; 0: all, and none of the older
  std::optional<double> validation_loss = {};    // of the model that is saved; the link "best" names the smallest one's step
  std::map<std::string, std::string> data = {};  // the program's own bytes, by name
};

}  // namespace fsdp
