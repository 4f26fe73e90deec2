// A GPU that computes nothing and records the number of blocks of each launch: a block for each row of a row kernel
// (lib/kernels/rows/cuda.cu), and attention_blocks() for attention. Its memory is host memory filled with zeros.
#pragma once

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "device/device.hpp"
#include "kernels/cuda/attention_blocks.hpp"
#include "kernels/rows/bodies.hpp"
#include "kernels/silent.hpp"

namespace fsdp::test {

/// Two blocks for each multiprocessor of the largest GPU in lib/device/traits.hpp.
inline constexpr std::size_t enough_blocks = 2 * 188;

/// A multiprocessor of an H200: it runs at most so many blocks and warps at a time.
inline constexpr std::size_t multiprocessors = 132, most_resident_blocks = 32, most_resident_warps = 64;

/// The warps that a multiprocessor runs at a time, as far as registers allow.
inline std::size_t resident_warps(std::size_t blocks, std::size_t threads) {
  const std::size_t warps = threads / 32;
  return std::min({blocks / multiprocessors, most_resident_blocks, most_resident_warps / warps}) * warps;
}

/// The numbers of blocks in all launches of a kernel, and the fewest warps of a multiprocessor in launches of a row kernel
/// whose number of threads depends on the width.
struct Blocks {
  std::size_t fewest = static_cast<std::size_t>(-1), most = 0, fewest_warps = static_cast<std::size_t>(-1);
  void add(std::size_t blocks) { fewest = std::min(fewest, blocks), most = std::max(most, blocks); }
};
/// The key is the kernel's name.
using Launches = std::map<std::string, Blocks>;

class LaunchRecorder final : public kernels::SilentKernels {
 public:
  explicit LaunchRecorder(Launches& launches) : launches_(&launches) {}
  void rows(Stream&, const std::type_info& type, const void* body, std::size_t rows) const override {
    Blocks& blocks = (*launches_)[name_of(type)];
    blocks.add(rows);
    if (const std::size_t threads = threads_by_width(type, body); threads > 0)
      blocks.fewest_warps = std::min(blocks.fewest_warps, resident_warps(rows, threads));
    // Without this result the host would conclude at the end of the update that it was skipped.
    if (type == typeid(kernels::FinishNorm)) (*static_cast<const kernels::FinishNorm*>(body))(kernels::CpuLanes<2>{}, 0);
  }
  void attention_forward(Stream&, const kernels::AttentionForwardCall& call) const override {
    (*launches_)["attention"].add(kernels::attention_blocks(call.type, call.shape).forward);
  }
  void attention_backward(Stream&, const kernels::AttentionBackwardCall& call) const override {
    const kernels::AttentionBlocks blocks = kernels::attention_blocks(call.type, call.shape);
    (*launches_)["gradients of keys and values"].add(blocks.keys);
    (*launches_)["gradients of queries"].add(blocks.queries);
  }

 private:
  /// The number of threads of a block that runs `body`, or 0 if it does not depend on a width.
  template <class Body>
  static std::size_t threads_if_by_width(const void* body) {
    if constexpr (kernels::HasWidth<Body>)
      return kernels::threads_of(*static_cast<const Body*>(body));
    else
      return 0;
  }
  static std::size_t threads_by_width(const std::type_info& type, const void* body) {
    using namespace kernels;
#define FSDP_THREADS(...) \
  if (type == typeid(__VA_ARGS__)) return threads_if_by_width<__VA_ARGS__>(body);
    FSDP_ROW_BODIES(FSDP_THREADS)
#undef FSDP_THREADS
    return 0;
  }
  static std::string name_of(const std::type_info& type) {
    char* const name = abi::__cxa_demangle(type.name(), nullptr, nullptr, nullptr);
    std::string text = name;
    std::free(name);
    for (const std::string scope : {"kernels::", "fsdp::"})
      while (text.find(scope) != std::string::npos) text.erase(text.find(scope), scope.size());
    return text;
  }

  Launches* launches_;
};

class RecordingStream final : public kernels::SilentStream {
 public:
  using SilentStream::SilentStream;
  void copy(void* to, const void* from, std::size_t bytes) override { Stream::copy(to, from, bytes); }
};

class RecordingDevice final : public Device {
 public:
  explicit RecordingDevice(Launches& launches) : kernels_(launches) {}
  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string description() const override { return "a GPU that computes nothing"; }
  Buffer allocate(std::size_t bytes) override {
    return {static_cast<std::byte*>(std::calloc(bytes, 1)), bytes, [](std::byte* data, std::size_t) { std::free(data); }};
  }
  std::shared_ptr<Stream> make_stream(StreamUse) override { return std::make_shared<RecordingStream>(kernels_); }

 private:
  LaunchRecorder kernels_;
};

}  // namespace fsdp::test
