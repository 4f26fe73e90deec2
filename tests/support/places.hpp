// Where the state of a test's plan is at rest.
#pragma once

#include "plan/plan.hpp"

namespace fsdp::test {

/// A place of plans that do not run: a file on a disk.
inline const Space planned_on_disk = {.name = "disk", .tier = Tier::disk, .collective = false, .open = nullptr};

/// The optimizer's state and the gradients are in `space` if `optimizer` or `parameters`; the parameters are there, too, if
/// `parameters`.
inline StatePlaces offloaded(bool optimizer, bool parameters, const Space* space = &spaces::host) {
  const Space* const state = optimizer || parameters ? space : nullptr;
  return {parameters ? space : nullptr, state, state};
}

/// The optimizer's state and, if `parameters`, the parameters are in a file; the gradients are on the host.
inline StatePlaces in_a_file(bool parameters) {
  StatePlaces places = offloaded(true, parameters, &spaces::nvme);
  places.gradients = &spaces::host;
  return places;
}

}  // namespace fsdp::test
