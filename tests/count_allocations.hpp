// How often operator new has run in this program, libfsdp included: link count_allocations.cpp to a test that must not
// allocate.
#pragma once

#include <cstddef>

namespace fsdp::test {
std::size_t allocations();
/// Of those, the ones of more than 4 KiB.
std::size_t large_allocations();
}  // namespace fsdp::test
