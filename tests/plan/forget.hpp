// For tests that leave an operation out of a plan.
#pragma once

#include "plan/kind.hpp"
#include "plan/plan.hpp"

namespace fsdp::test {

/// Makes an operation do nothing. It stays in the list, so that the indices of others do not change.
inline void forget(Operation& op) {
  static const Kind nothing = {.name = "nothing",
                               .part = UpdatePart::other,
                               .subject = Subject::nothing,
                               .operands = {},
                               .run = nullptr,
                               .cost = nullptr};
  op = {.kind = &nothing,
        .stream = op.stream,
        .micro_batch = op.micro_batch,
        .operands = {},
        .waits = op.waits,
        .acquires = op.acquires,
        .frees = op.frees};
}

}  // namespace fsdp::test
