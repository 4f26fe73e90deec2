// Disables single barriers for tests: the tests of kernels must notice each missing barrier.
#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>

#include "double.hpp"

namespace fsdp::cuda_double {

namespace {

/// FSDP_CUDA_DOUBLE_BARRIERS: a file that gets a line for each barrier that lanes come to: its place in the program, what it
/// is, and the kernel. FSDP_CUDA_DOUBLE_WITHOUT: the places, with commas between them, of those that are left out.
class Barriers {
 public:
  Barriers() {
    if (const char* const text = std::getenv("FSDP_CUDA_DOUBLE_WITHOUT")) {
      for (const char* at = text;; ++at) {
        char* end = nullptr;
        without_.insert(std::strtoull(at, &end, 16));
        if (end == at || (*end && *end != ','))
          die(std::string("FSDP_CUDA_DOUBLE_WITHOUT=") + text + " are no places of barriers");
        at = end;
        if (!*at) break;
      }
    }
    if (const char* const path = std::getenv("FSDP_CUDA_DOUBLE_BARRIERS")) {
      list_ = std::fopen(path, "w");
      if (!list_) die(std::string(path) + " could not be opened");
    }
  }
  bool is_watched() const { return !without_.empty() || list_; }

  bool is_left_out(const void* caller, const char* name, const std::type_info& kernel) {
    const std::lock_guard lock(mutex_);
    auto [known, is_new] = places_.try_emplace(caller, 0);
    std::uintptr_t& place = known->second;
    if (is_new) {
      Dl_info program{};
      if (!dladdr(caller, &program)) die("a barrier is in no program");
      place = reinterpret_cast<std::uintptr_t>(caller) - reinterpret_cast<std::uintptr_t>(program.dli_fbase);
    }
    if (is_new && list_) {
      char* const readable = abi::__cxa_demangle(kernel.name(), nullptr, nullptr, nullptr);
      std::fprintf(list_, "%lx %s %s\n", static_cast<unsigned long>(place), name, readable ? readable : kernel.name());
      std::fflush(list_);
      std::free(readable);
    }
    return without_.contains(place);
  }

 private:
  std::set<std::uintptr_t> without_;
  std::FILE* list_ = nullptr;
  std::mutex mutex_;
  std::map<const void*, std::uintptr_t> places_;  // of barriers by their callers' addresses
};

}  // namespace

bool is_left_out(const void* caller, const char* name, const std::type_info& kernel) {
  static Barriers barriers;
  static const bool watched = barriers.is_watched();
  return watched && barriers.is_left_out(caller, name, kernel);
}

}  // namespace fsdp::cuda_double
