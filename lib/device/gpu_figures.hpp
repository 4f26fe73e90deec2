// GPU figures from the vendor's datasheets: for predictions without a GPU, and for comparing measurements with the peak.
#pragma once

#include <span>
#include <string_view>

#include "base/dtype.hpp"

namespace fsdp {

/// The figures are in bytes, bytes per second or operations per second, where giga is 10^9 as in datasheets. Rates of matrix
/// products are for dense matrices; datasheets also give doubled rates for sparse ones.
struct GpuFigures {
  std::string_view name;     // the name for options: "h100"
  std::string_view product;  // the driver's name: "NVIDIA H100 80GB HBM3"
  double flops_16bit;        // for bf16 and for fp16, on tensor cores with fp32 sums
  double flops_fp32;         // without tensor cores, because fp32 products do not use TF32
  double memory_bytes, memory_bandwidth;
  double link_bandwidth;     // to the other GPUs of its node, in one direction, by NVLink or else by PCIe
  double host_bandwidth;     // to host memory by PCIe, in one direction while the other direction is also busy
  double network_bandwidth;  // the GPU's share of its node's network, in one direction; 0 if no NVIDIA system contains it
  std::string_view source;

  double flops(DType type) const { return type == DType::f32 ? flops_fp32 : flops_16bit; }
};

std::span<const GpuFigures> known_gpus();
/// Returns the figures of a GPU by its Device::description(), which begins with `product`; null if the GPU is unknown.
const GpuFigures* figures_of(std::string_view description);

}  // namespace fsdp
