// A stream of a GPU that computes nothing: its kernels see the calls of the operations that run on it.
#pragma once

#include <string>

#include "base/error.hpp"
#include "kernels/device_kernels.hpp"

namespace fsdp::kernels {

class SilentKernels : public DeviceKernels {
 public:
  void rows(Stream&, const std::type_info&, const void*, std::size_t) const override {}
  void gemm(Stream&, const Product&) const override {}
  bool takes(Stream&, const Product&) const override { return false; }
  Cudnn load_cudnn() const override { throw UserError("a GPU that computes nothing has no cuDNN"); }
  void prepare_attention(DType, const AttentionShape&, bool) const override {}
  void attention_forward(Stream&, const AttentionForwardCall&) const override {}
  void attention_backward(Stream&, const AttentionBackwardCall&) const override {}
  std::string gemm_description() const override { return "none"; }
  GemmAlgorithm fastest_algorithm(Stream&, const Product&) const override { return {}; }
  void use_algorithm(Stream&, const Product&, const GemmAlgorithm&) const override {}
};

class SilentStream : public Stream {
 public:
  /// `kernels` must outlive the stream.
  explicit SilentStream(const DeviceKernels& kernels) : kernels_(kernels) {}
  DeviceKind kind() const override { return DeviceKind::cuda; }
  const DeviceKernels* kernels() const override { return &kernels_; }
  void submit(Work work) override { work.run(work.context, work.index); }
  Event record() override { return {this, 0}; }
  void wait(Event) override {}
  void synchronize() override {}
  void cancel() noexcept override {}
  bool is_asynchronous() const override { return false; }
  void copy(void*, const void*, std::size_t) override {}

 private:
  const DeviceKernels& kernels_;
};

}  // namespace fsdp::kernels
