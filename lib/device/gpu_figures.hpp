// GPU figures from the vendor's datasheets and from published measurements: for predictions without a GPU, and for comparing
// measurements with the peak.
#pragma once

#include <span>
#include <string_view>

#include "base/dtype.hpp"

namespace fsdp {

enum class GpuArchitecture { volta, ampere, ada, hopper, blackwell };

/// The figures are in bytes, bytes per second or operations per second, where giga is 10^9 as in datasheets. Rates of matrix
/// products are for dense matrices; datasheets also give doubled rates for sparse ones.
struct GpuFigures {
  std::string_view name;     // the name for options: "h100"
  std::string_view product;  // the driver's name: "NVIDIA H100 80GB HBM3"
  GpuArchitecture architecture;
  double flops_16bit;  // for bf16 (on a V100 for fp16), on tensor cores with fp32 sums
  double flops_fp32;   // without tensor cores, because fp32 products do not use TF32
  int multiprocessors;
  double watts;         // the highest power limit
  double memory_bytes;  // as the driver reports it, less than the datasheet's figure
  double memory_bandwidth;
  double link_bandwidth;      // to the other GPUs of its node, in one direction, by NVLink or else by PCIe
  double host_bandwidth;      // to host memory by PCIe or NVLink-C2C, in one direction while the other one is also busy
  double product_share;       // the share of the peak that a product with a large K reaches
  std::string_view share_by;  // the source of product_share
  double ring_bandwidth;      // NCCL's ring in a node with several GPUs: the bus bandwidth of nccl-tests
  std::string_view ring_by;   // the source of ring_bandwidth
  std::string_view network;   // the network of NVIDIA's own system with this GPU (known_networks()); empty if there is none
  std::string_view source;    // of the other figures

  /// False for GPUs that only predictions know, to compare with other programs: fsdp needs compute capability 8.0.
  bool runs_fsdp() const { return architecture != GpuArchitecture::volta; }
  double flops(DType type) const { return type == DType::f32 ? flops_fp32 : flops_16bit; }
};

std::span<const GpuFigures> known_gpus();
/// Returns the figures of a GPU by its Device::description(), which begins with `product`; null if the GPU is unknown.
const GpuFigures* figures_of(std::string_view description);

}  // namespace fsdp
