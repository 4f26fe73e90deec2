// What the other parts of the API use of a FullyShardedDataParallel. Internal.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "api/fully_sharded.hpp"
#include "api/job_parts.hpp"
#include "engine/engine.hpp"
#include "nn/model.hpp"
#include "options/options.hpp"

namespace fsdp {

/// The number of tokens that the model has; the largest possible number if it is not known.
inline std::size_t vocabulary_of(const RowSizes& rows) {
  return rows.vocabulary > 0 ? rows.vocabulary : std::numeric_limits<std::int32_t>::max();
}

/// Valid as long as the object exists.
struct FullyShardedDataParallel::Inside {
  Job::Parts& job;
  const TrainOptions& options;
  const RowSizes& rows;
  Engine& engine;
  double last_step_s, last_tokens;  // of the last step(): its duration, and how many rows counted in the loss on all ranks
  std::size_t last_positions;       // the rows that this rank computed in it
};

}  // namespace fsdp
