// Memory of the device and pinned memory of the host, and copies between them.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <map>
#include <new>
#include <shared_mutex>
#include <vector>

#include "double.hpp"

namespace fsdp::cuda_double {

namespace {

constexpr int poison = 0xff;
constexpr std::size_t alignment = 256;  // of every allocation, as CUDA promises

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

/// The protection key of all device memory. Threads start without access to it, and the thread that makes it also has none.
int memory_key() {
  static const int key = ::pkey_alloc(0, PKEY_DISABLE_ACCESS);
  return key;
}

struct Allocation {
  GuardedPages pages;
  std::size_t bytes;
  Place place;
  int device;
};

struct Memory {
  std::shared_mutex mutex;
  std::map<const std::byte*, Allocation> allocations;  // by their first address
  std::array<std::size_t, 8> used{};                   // of each device
};

Memory& memory() {
  static Memory& all = *new Memory;  // streams may still run when the process ends
  return all;
}

/// Of a device. `memory().mutex` is held. The context's memory is always taken.
std::size_t free_memory(int device) {
  static const std::size_t context = environment_number("FSDP_CUDA_DOUBLE_CONTEXT_MEMORY", std::size_t{1} << 20);
  const std::size_t used = memory().used[static_cast<std::size_t>(device)] + context;
  return used < total_memory() ? total_memory() - used : 0;
}

cudaError_t allocate(void** to, std::size_t bytes, Place place) {
  if (!to) return cudaErrorInvalidValue;
  *to = nullptr;
  if (bytes == 0) return cudaSuccess;
  const int device = current_device();
  const std::unique_lock lock(memory().mutex);
  if (place == Place::device && (bytes > total_memory() || round_up(bytes, alignment) > free_memory(device)))
    return cudaErrorMemoryAllocation;
  GuardedPages pages;
  try {
    pages = map_guarded(round_up(bytes, alignment));
  } catch (const std::bad_alloc&) {
    return cudaErrorMemoryAllocation;
  }
  std::byte* const readable = pages.mapping + ::sysconf(_SC_PAGESIZE);
  const auto readable_bytes = static_cast<std::size_t>(pages.end - readable);
  std::memset(readable, poison, readable_bytes);
  if (place == Place::device) {
    if (guards_memory() && ::pkey_mprotect(readable, readable_bytes, PROT_READ | PROT_WRITE, memory_key()) != 0)
      die("memory could not be guarded (pkey_mprotect fails)");
    memory().used[static_cast<std::size_t>(device)] += round_up(bytes, alignment);
  }
  memory().allocations.emplace(pages.begin, Allocation{pages, bytes, place, device});
  *to = pages.begin;
  return cudaSuccess;
}

/// Ends the process if bytes next to the allocation have changed.
void check_edges(const Allocation& allocation) {
  std::byte* const readable = allocation.pages.mapping + ::sysconf(_SC_PAGESIZE);
  if (allocation.place == Place::device && guards_memory())
    ::pkey_mprotect(readable, static_cast<std::size_t>(allocation.pages.end - readable), PROT_READ, 0);
  const auto check = [&](const std::byte* begin, const std::byte* end, const char* side) {
    for (const std::byte* at = begin; at < end; ++at)
      if (*at != std::byte{poison})
        die(std::to_string(allocation.bytes) + " bytes were written to beyond their " + side + ", at byte " +
            std::to_string(at - allocation.pages.begin));
  };
  check(readable, allocation.pages.begin, "begin");
  check(allocation.pages.begin + allocation.bytes, allocation.pages.end, "end");
}

cudaError_t release(void* begin, Place place) {
  if (!begin) return cudaSuccess;
  const std::unique_lock lock(memory().mutex);
  const auto found = memory().allocations.find(static_cast<const std::byte*>(begin));
  if (found == memory().allocations.end() || found->second.place != place) return cudaErrorInvalidValue;
  const Allocation allocation = found->second;
  memory().allocations.erase(found);
  check_edges(allocation);
  unmap(allocation.pages);
  if (place == Place::device)
    memory().used[static_cast<std::size_t>(allocation.device)] -= round_up(allocation.bytes, alignment);
  return cudaSuccess;
}

/// Returns true if the copy's kind matches its memory.
bool agrees(cudaMemcpyKind kind, bool from_device, bool to_device) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !from_device && !to_device;
    case cudaMemcpyHostToDevice:
      return !from_device && to_device;
    case cudaMemcpyDeviceToHost:
      return from_device && !to_device;
    case cudaMemcpyDeviceToDevice:
      return from_device && to_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

/// `waits`: whether the call is cudaMemcpy, which returns when host memory is free to use.
cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t handle, bool waits) {
  const std::shared_ptr<CUstream_st> stream = find_stream(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  if (!to || !from) return cudaErrorInvalidValue;
  const Place source = place_of(from, bytes), target = place_of(to, bytes);
  if (source == Place::broken || target == Place::broken) return cudaErrorInvalidValue;
  const bool from_device = source == Place::device, to_device = target == Place::device;
  if (!agrees(kind, from_device, to_device)) return cudaErrorInvalidMemcpyDirection;

  if (source == Place::pageable && to_device) {  // read now, written when its turn comes
    const auto* begin = static_cast<const std::byte*>(from);
    give(stream, [to, staging = std::make_shared<std::vector<std::byte>>(begin, begin + bytes)](std::minstd_rand&) {
      std::memcpy(to, staging->data(), staging->size());
    });
    return cudaSuccess;
  }
  const std::uint64_t number = give(stream, [=](std::minstd_rand&) { std::memmove(to, from, bytes); });
  const bool on_host = !from_device && !to_device, to_pageable = target == Place::pageable;
  if (on_host || to_pageable || (waits && !(from_device && to_device))) wait(*stream, number);
  return cudaSuccess;
}

cudaError_t fill(void* to, int value, std::size_t bytes, cudaStream_t handle) {
  const std::shared_ptr<CUstream_st> stream = find_stream(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  const Place place = place_of(to, bytes);
  if (place != Place::device && place != Place::pinned) return cudaErrorInvalidValue;
  give(stream, [=](std::minstd_rand&) { std::memset(to, value, bytes); });
  return cudaSuccess;
}

}  // namespace

bool guards_memory() { return memory_key() >= 0; }

void allow_device_memory(bool allowed) {
  if (guards_memory()) ::pkey_set(memory_key(), allowed ? 0 : PKEY_DISABLE_ACCESS);
}

std::size_t total_memory() {
  static const std::size_t total = environment_number("FSDP_CUDA_DOUBLE_MEMORY", std::size_t{4} << 30);
  return total;
}

bool take_memory(int device, std::size_t bytes) {
  const std::unique_lock lock(memory().mutex);
  if (bytes > free_memory(device)) return false;
  memory().used[static_cast<std::size_t>(device)] += bytes;
  return true;
}

void return_memory(int device, std::size_t bytes) {
  const std::unique_lock lock(memory().mutex);
  memory().used[static_cast<std::size_t>(device)] -= bytes;
}

Place place_of(const void* begin, std::size_t bytes) {
  const auto* first = static_cast<const std::byte*>(begin);
  const std::shared_lock lock(memory().mutex);
  auto found = memory().allocations.upper_bound(first);
  if (found == memory().allocations.begin()) return Place::pageable;
  const Allocation& allocation = (--found)->second;
  if (first >= allocation.pages.begin + allocation.bytes) return Place::pageable;
  return bytes <= static_cast<std::size_t>(allocation.pages.begin + allocation.bytes - first) ? allocation.place
                                                                                              : Place::broken;
}

GuardedPages map_guarded(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  GuardedPages pages;
  pages.mapped = round_up(bytes, page) + 2 * page;
  void* mapping = ::mmap(nullptr, pages.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  pages.mapping = static_cast<std::byte*>(mapping);
  pages.end = pages.mapping + pages.mapped - page;
  pages.begin = pages.end - bytes;
  if (::mprotect(pages.mapping + page, pages.mapped - 2 * page, PROT_READ | PROT_WRITE) != 0) {
    ::munmap(mapping, pages.mapped);
    throw std::bad_alloc();
  }
  return pages;
}

void unmap(const GuardedPages& pages) {
  // The addresses remain reserved and are never used again.
  void* mapping =
      ::mmap(pages.mapping, pages.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (mapping == MAP_FAILED) die("memory could not be given back (mmap fails)");
}

}  // namespace fsdp::cuda_double

using namespace fsdp::cuda_double;

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return call([=] {
    const std::shared_lock lock(memory().mutex);
    *total = total_memory();
    *free = free_memory(current_device());
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** to, std::size_t bytes) {
  return call([=] { return allocate(to, bytes, Place::device); });
}

cudaError_t cudaFree(void* begin) {
  return call([=] {
    if (begin) synchronize_device(current_device());
    return release(begin, Place::device);
  });
}

cudaError_t cudaMallocHost(void** to, std::size_t bytes) {
  return call([=] { return allocate(to, bytes, Place::pinned); });
}

cudaError_t cudaFreeHost(void* begin) {
  return call([=] { return release(begin, Place::pinned); });
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return call([=] { return copy(to, from, bytes, kind, nullptr, true); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return call([=] { return copy(to, from, bytes, kind, stream, false); });
}

cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return call([=] { return fill(to, value, bytes, nullptr); });
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return call([=] { return fill(to, value, bytes, stream); });
}
