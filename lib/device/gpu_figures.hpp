// GPU figures from the vendor's datasheets: for predictions without a GPU, and for comparing measurements with the peak.
#pragma once

#include <span>
#include <string_view>

#include "base/dtype.hpp"

namespace fsdp {

/// Per second, or in bytes, in powers of ten as in datasheets. Rates of matrix products are for dense matrices; datasheets also
/// give doubled rates for sparse ones.
struct GpuFigures {
  std::string_view name;     // the name for options: "h100"
  std::string_view product;  // the driver's name: "NVIDIA H100 80GB HBM3"
  double flops_16bit;        // bf16 and fp16 alike, with sums in fp32, on tensor cores
  double flops_fp32;         // without tensor cores: products in fp32 do not use TF32
  double memory_bytes, memory_bandwidth;
  double link_bandwidth;     // to the other GPUs of its node, in one direction: NVLink, or PCIe without it
  double host_bandwidth;     // to host memory, in one direction while the other direction is busy, too: PCIe
  double network_bandwidth;  // the GPU's share of its node's network, in one direction; 0: not part of an NVIDIA system
  std::string_view source;

  double flops(DType type) const { return type == DType::f32 ? flops_fp32 : flops_16bit; }
};

std::span<const GpuFigures> known_gpus();
/// The figures for a Device::description(), which begins with the driver's name of the GPU; null if it is unknown.
const GpuFigures* figures_of(std::string_view description);

}  // namespace fsdp
