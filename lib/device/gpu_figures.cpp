#include "device/gpu_figures.hpp"

#include <array>

namespace fsdp {

namespace {

constexpr double tera = 1e12, giga = 1e9, gibi = 1 << 30;

// Bandwidths of links (NVLink, and PCIe 4.0 or 5.0 x16) are half of the datasheets' figures, which add both directions. Network
// bandwidths are those of one ConnectX adapter per GPU of a DGX: 200 Gbit/s in a DGX A100, 400 Gbit/s in DGX H100, H200 and
// B200. The memory of the cards with A100, H100, H200 and RTX 4090 is what the driver reports as total, which is less than the
// datasheets' figures; that of the others is the datasheets'. Figures of the B200 are one eighth of those of an HGX B200.
// NVLink bridges connect a PCIe card of the A100 or H100 to only one other card, an H200 NVL to at most three. A node may have
// more cards, or no bridges, so the link bandwidth of PCIe cards is that of PCIe.
constexpr std::array gpus = {
    GpuFigures{"a100", "NVIDIA A100-SXM4-80GB", 312 * tera, 19.5 * tera, 79.2 * gibi, 2039 * giga, 300 * giga, 32 * giga,
               25 * giga, "NVIDIA A100 Tensor Core GPU datasheet, A100 80GB SXM; NVIDIA DGX A100 datasheet"},
    GpuFigures{"a100-40gb", "NVIDIA A100-SXM4-40GB", 312 * tera, 19.5 * tera, 39.5 * gibi, 1555 * giga, 300 * giga, 32 * giga,
               25 * giga, "NVIDIA A100 Tensor Core GPU Architecture white paper, A100 40GB SXM; NVIDIA DGX A100 datasheet"},
    GpuFigures{"a100-pcie", "NVIDIA A100 80GB PCIe", 312 * tera, 19.5 * tera, 79.2 * gibi, 1935 * giga, 32 * giga, 32 * giga, 0,
               "NVIDIA A100 Tensor Core GPU datasheet, A100 80GB PCIe; PCIe 4.0 x16"},
    GpuFigures{"a100-pcie-40gb", "NVIDIA A100-PCIE-40GB", 312 * tera, 19.5 * tera, 39.5 * gibi, 1555 * giga, 32 * giga,
               32 * giga, 0, "NVIDIA A100 40GB PCIe product brief; PCIe 4.0 x16"},
    GpuFigures{"h100", "NVIDIA H100 80GB HBM3", 989.5 * tera, 67 * tera, 79.2 * gibi, 3350 * giga, 450 * giga, 64 * giga,
               50 * giga, "NVIDIA H100 Tensor Core GPU datasheet, H100 SXM; NVIDIA DGX H100 datasheet"},
    GpuFigures{"h100-pcie", "NVIDIA H100 PCIe", 756.5 * tera, 51 * tera, 79.2 * gibi, 2000 * giga, 64 * giga, 64 * giga, 0,
               "NVIDIA H100 Tensor Core GPU datasheet, H100 PCIe; PCIe 5.0 x16"},
    GpuFigures{"h100-nvl", "NVIDIA H100 NVL", 835.5 * tera, 60 * tera, 93.0 * gibi, 3900 * giga, 64 * giga, 64 * giga, 0,
               "NVIDIA H100 Tensor Core GPU datasheet, H100 NVL; PCIe 5.0 x16"},
    GpuFigures{"h200", "NVIDIA H200", 989.5 * tera, 67 * tera, 139.8 * gibi, 4800 * giga, 450 * giga, 64 * giga, 50 * giga,
               "NVIDIA H200 Tensor Core GPU datasheet, H200 SXM; NVIDIA DGX H200 datasheet"},
    GpuFigures{"h200-nvl", "NVIDIA H200 NVL", 835.5 * tera, 60 * tera, 139.8 * gibi, 4800 * giga, 64 * giga, 64 * giga, 0,
               "NVIDIA H200 Tensor Core GPU datasheet, H200 NVL; PCIe 5.0 x16"},
    GpuFigures{"b200", "NVIDIA B200", 2250 * tera, 75 * tera, 180 * giga, 7700 * giga, 900 * giga, 64 * giga, 50 * giga,
               "NVIDIA Blackwell datasheet, HGX B200; NVIDIA DGX B200 datasheet"},
    GpuFigures{"l40s", "NVIDIA L40S", 362.05 * tera, 91.6 * tera, 48 * giga, 864 * giga, 32 * giga, 32 * giga, 0,
               "NVIDIA L40S datasheet; PCIe 4.0 x16"},
    GpuFigures{"rtx4090", "NVIDIA GeForce RTX 4090", 165.2 * tera, 82.6 * tera, 23.7 * gibi, 1008 * giga, 32 * giga, 32 * giga,
               0, "NVIDIA Ada GPU Architecture white paper, appendix A; PCIe 4.0 x16"},
    GpuFigures{"rtx5090", "NVIDIA GeForce RTX 5090", 209.5 * tera, 104.8 * tera, 32 * giga, 1792 * giga, 64 * giga, 64 * giga,
               0, "NVIDIA RTX Blackwell GPU Architecture white paper, appendix A; PCIe 5.0 x16"}};

}  // namespace

std::span<const GpuFigures> known_gpus() { return gpus; }

const GpuFigures* figures_of(std::string_view description) {
  for (const GpuFigures& gpu : gpus)
    if (description.starts_with(gpu.product) && description.substr(gpu.product.size()).starts_with(" (")) return &gpu;
  return nullptr;
}

}  // namespace fsdp
