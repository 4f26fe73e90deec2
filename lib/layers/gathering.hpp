// What Pass::gather() needs. Internal.
#pragma once

#include <cstddef>

namespace fsdp {

class Collectives;

/// The gathers of one pass.
struct Gathering {
  Collectives* group;              // null: one rank, which has nothing to gather
  float* memory;                   // [ranks * declared]
  std::size_t declared, done = 0;  // numbers of a rank
};

}  // namespace fsdp
