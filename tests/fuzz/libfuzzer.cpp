// The same targets for libFuzzer, which looks for inputs that reach new code: FSDP_FUZZ_TARGET=marker fuzz_libfuzzer FOLDER,
// where FOLDER may have the files that `fuzz -- marker --corpus FOLDER` writes.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "fuzz/targets.hpp"

namespace {

struct Running {
  fsdp::fuzz::WorkingFolder folder;
  fsdp::fuzz::Target target;
};

Running& running() {
  static Running* const one = [] {
    const char* name = std::getenv("FSDP_FUZZ_TARGET");
    const fsdp::fuzz::NamedTarget* named = name ? fsdp::fuzz::find_target(name) : nullptr;
    if (!named) {
      std::fprintf(stderr, "FSDP_FUZZ_TARGET names none of the targets\n");
      std::exit(2);
    }
    auto* made = new Running;
    made->target = named->make(made->folder.path());
    std::atexit([] { delete &running(); });
    return made;
  }();
  return *one;
}

}  // namespace

/// An exception of a target ends the process, and libFuzzer stores the input.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  running().target.accepts({reinterpret_cast<const char*>(data), size});
  return 0;
}
