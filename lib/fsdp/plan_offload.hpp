// What a rank keeps on the host: operations of the device find it in memory of the device that units take in turn, into which
// it is loaded, and from which it is unloaded once they have changed it. Private to the builder of plans.
//
// The builder writes its lists as if everything were on the device. Then this walks over each list: from the first operation
// that works on what is kept on the host to the last one before other units need the same memory, it stays on the device.
// Loads go through the stream for gathers and unloads through that for reductions, so that both directions are at work at once.
#pragma once

#include <vector>

#include "fsdp/plan.hpp"

namespace fsdp {

/// A buffer that is kept on the host: PlanBuffer::near says where it is loaded, all of it each time.
struct Home {
  BufferId buffer = -1;
  int unit = -1;
  DType type = DType::f32;
};

/// Puts loads and unloads into all lists of the plan, and moves what operations read and write to where it is loaded. Every
/// list begins and ends with nothing on the device.
void add_loads(Plan& plan, const std::vector<Home>& homes);

}  // namespace fsdp
