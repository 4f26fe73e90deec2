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
#include "kernels/rows/squares.hpp"
#include "kernels/silent.hpp"

namespace fsdp::test {

/// Two blocks for each multiprocessor of the largest GPU in lib/device/traits.hpp.
inline constexpr std::size_t enough_blocks = 2 * 188;

/// The numbers of blocks in all launches of a kernel.
struct Blocks {
  std::size_t fewest = static_cast<std::size_t>(-1), most = 0;
  void add(std::size_t blocks) { fewest = std::min(fewest, blocks), most = std::max(most, blocks); }
};
/// The key is the kernel's name.
using Launches = std::map<std::string, Blocks>;

class LaunchRecorder final : public kernels::SilentKernels {
 public:
  explicit LaunchRecorder(Launches& launches) : launches_(&launches) {}
  void rows(Stream&, const std::type_info& type, const void* body, std::size_t rows) const override {
    (*launches_)[name_of(type)].add(rows);
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
