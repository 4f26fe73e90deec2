#include "count_allocations.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<std::size_t> count = 0, large = 0;
}

std::size_t fsdp::test::allocations() { return count; }
std::size_t fsdp::test::large_allocations() { return large; }

void* operator new(std::size_t bytes) {
  ++count;
  if (bytes > 4096) ++large;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
