// What the maker's datasheets say of GPUs: for predictions without one, and for the share of its peak that a measurement
// reached.
#pragma once

#include <span>
#include <string_view>

#include "base/dtype.hpp"

namespace fsdp {

/// Per second, or in bytes; powers of ten, as datasheets have them. Rates of products are dense: datasheets also give twice as
/// much for matrices of which half are zeros.
struct GpuFigures {
  std::string_view name;     // "h100": what users type
  std::string_view product;  // what the driver calls it: "NVIDIA H100 80GB HBM3"
  double flops_16bit;        // bf16 and fp16 alike, with sums in fp32, on tensor cores
  double flops_fp32;         // without tensor cores: products in fp32 do not use TF32
  double memory_bytes, memory_bandwidth;
  double link_bandwidth;     // to the other GPUs of its node, in one direction: NVLink, or PCIe where there is none
  double host_bandwidth;     // to its host's memory, in one direction, while the other one is at work, too: PCIe
  double network_bandwidth;  // its part of its node's network, in one direction; 0: no system of NVIDIA's has one
  std::string_view source;

  double flops(DType type) const { return type == DType::f32 ? flops_fp32 : flops_16bit; }
};

std::span<const GpuFigures> known_gpus();
/// The one of a Device::description(), which begins with what the driver calls it; null if it is not known.
const GpuFigures* figures_of(std::string_view description);

}  // namespace fsdp
