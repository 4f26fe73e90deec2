// Counts the calls of operator new in this program, including libfsdp: link count_allocations.cpp to a test that must not
// allocate.
#pragma once

#include <cstddef>

namespace fsdp::test {
std::size_t allocations();
/// Returns the number of calls for more than 4 KiB.
std::size_t large_allocations();
}  // namespace fsdp::test
