#include "device/gpu_figures.hpp"

#include <array>

namespace fsdp {

namespace {

constexpr double tera = 1e12, giga = 1e9, gibi = 1 << 30;

// Bandwidths of links (NVLink, and PCIe 3.0, 4.0 or 5.0 x16) are half of the datasheets' figures, which add both directions.
// NVLink bridges connect a PCIe card of the A100 or H100 to only one other card, an H200 NVL to at most three. A node may have
// more cards, or no bridges, so the link bandwidth of PCIe cards is that of PCIe. Figures of the B200 are one eighth of those
// of an HGX B200, and its bandwidth is that of its memory's data rate. Memory is the total that PyTorch reports in its
// messages, in users' bug reports.
constexpr std::string_view fitted_ampere = "fitted to ten updates of other programs (docs/simulator.md)",
                           fitted_hopper =
                               "fitted to ten updates of other programs (docs/simulator.md); it agrees with our "
                               "measurements on an H200",
                           best_published = "0.9 times the best published product (Bekman, ml-engineering, table of MAMF)",
                           law_of_power = "scaled by the power limit from another card of the same GPU; not measured",
                           assumed = "assumed; not measured",
                           measured_ada = "a product measured by a user (tinygrad, pull request 11390)",
                           allreduce_a100 = "all-reduces on 8 A100, published with vTrain (Bang et al. 2024)",
                           allreduce_v100 = "all-reduces on 8 V100, published with vTrain (Bang et al. 2024)",
                           allreduce_h100 = "all-reduces on 8 H100 (a maintainer in nccl-tests, issue 212)",
                           as_h100 = "assumed to be that of the H100";

constexpr std::array gpus = {
    GpuFigures{"a100", "NVIDIA A100-SXM4-80GB", GpuArchitecture::ampere, 312 * tera, 19.5 * tera, 108, 400, 79.25 * gibi,
               2039 * giga, 300 * giga, 32 * giga, 0.791, fitted_ampere, 229 * giga, allreduce_a100, "dgx-a100",
               "NVIDIA A100 Tensor Core GPU datasheet, A100 80GB SXM; NVIDIA DGX A100 datasheet"},
    GpuFigures{"a100-40gb", "NVIDIA A100-SXM4-40GB", GpuArchitecture::ampere, 312 * tera, 19.5 * tera, 108, 400, 39.5 * gibi,
               1555 * giga, 300 * giga, 32 * giga, 0.791, fitted_ampere, 229 * giga, allreduce_a100, "dgx-a100",
               "NVIDIA A100 Tensor Core GPU Architecture white paper, A100 40GB SXM; NVIDIA DGX A100 datasheet"},
    GpuFigures{"a100-pcie", "NVIDIA A100 80GB PCIe", GpuArchitecture::ampere, 312 * tera, 19.5 * tera, 108, 300, 79.25 * gibi,
               1935 * giga, 32 * giga, 32 * giga, 0.73, best_published, 20 * giga, assumed, "",
               "NVIDIA A100 Tensor Core GPU datasheet, A100 80GB PCIe; PCIe 4.0 x16"},
    GpuFigures{"a100-pcie-40gb", "NVIDIA A100-PCIE-40GB", GpuArchitecture::ampere, 312 * tera, 19.5 * tera, 108, 250,
               39.5 * gibi, 1555 * giga, 32 * giga, 32 * giga, 0.67, law_of_power, 20 * giga, assumed, "",
               "NVIDIA A100 40GB PCIe product brief; PCIe 4.0 x16"},
    GpuFigures{"h100", "NVIDIA H100 80GB HBM3", GpuArchitecture::hopper, 989.5 * tera, 67 * tera, 132, 700, 79.2 * gibi,
               3350 * giga, 450 * giga, 64 * giga, 0.706, fitted_hopper, 370 * giga, allreduce_h100, "dgx-h100",
               "NVIDIA H100 Tensor Core GPU datasheet, H100 SXM; NVIDIA DGX H100 datasheet"},
    GpuFigures{"h100-pcie", "NVIDIA H100 PCIe", GpuArchitecture::hopper, 756.5 * tera, 51 * tera, 114, 350, 79.2 * gibi,
               2000 * giga, 64 * giga, 64 * giga, 0.65, law_of_power, 40 * giga, assumed, "",
               "NVIDIA H100 Tensor Core GPU datasheet, H100 PCIe; PCIe 5.0 x16"},
    GpuFigures{"h100-nvl", "NVIDIA H100 NVL", GpuArchitecture::hopper, 835.5 * tera, 60 * tera, 132, 400, 93.0 * gibi,
               3900 * giga, 64 * giga, 64 * giga, 0.63, law_of_power, 40 * giga, assumed, "",
               "NVIDIA H100 Tensor Core GPU datasheet, H100 NVL; PCIe 5.0 x16"},
    GpuFigures{"h200", "NVIDIA H200", GpuArchitecture::hopper, 989.5 * tera, 67 * tera, 132, 700, 139.8 * gibi, 4800 * giga,
               450 * giga, 64 * giga, 0.706, fitted_hopper, 370 * giga, as_h100, "dgx-h200",
               "NVIDIA H200 Tensor Core GPU datasheet, H200 SXM; NVIDIA DGX H200 datasheet"},
    GpuFigures{"h200-nvl", "NVIDIA H200 NVL", GpuArchitecture::hopper, 835.5 * tera, 60 * tera, 132, 600, 139.8 * gibi,
               4800 * giga, 64 * giga, 64 * giga, 0.77, law_of_power, 40 * giga, assumed, "",
               "NVIDIA H200 Tensor Core GPU datasheet, H200 NVL; PCIe 5.0 x16"},
    GpuFigures{"gh200", "NVIDIA GH200 120GB", GpuArchitecture::hopper, 989.5 * tera, 67 * tera, 132, 900, 94.5 * gibi,
               4000 * giga, 450 * giga, 450 * giga, 0.75, best_published, 100 * giga, assumed, "alps",
               "NVIDIA GH200 Grace Hopper Superchip datasheet, HBM3; a node with four of them"},
    GpuFigures{"b200", "NVIDIA B200", GpuArchitecture::blackwell, 2250 * tera, 75 * tera, 148, 1000, 178.35 * gibi, 7670 * giga,
               900 * giga, 64 * giga, 0.70, best_published, 700 * giga, assumed, "dgx-b200",
               "NVIDIA Blackwell datasheet, HGX B200; NVIDIA DGX B200 datasheet"},
    GpuFigures{"v100", "Tesla V100-SXM2-32GB", GpuArchitecture::volta, 125 * tera, 15.7 * tera, 80, 300, 31.74 * gibi,
               900 * giga, 150 * giga, 16 * giga, 0.75, assumed, 134 * giga, allreduce_v100, "",
               "NVIDIA V100 Tensor Core GPU datasheet, V100 SXM2; PCIe 3.0 x16"},
    GpuFigures{"l40s", "NVIDIA L40S", GpuArchitecture::ada, 362.05 * tera, 91.6 * tera, 142, 350, 44.4 * gibi, 864 * giga,
               32 * giga, 32 * giga, 0.60, assumed, 20 * giga, assumed, "", "NVIDIA L40S datasheet; PCIe 4.0 x16"},
    GpuFigures{"rtx4090", "NVIDIA GeForce RTX 4090", GpuArchitecture::ada, 165.2 * tera, 82.6 * tera, 128, 450, 23.6 * gibi,
               1008 * giga, 32 * giga, 32 * giga, 1.0, measured_ada, 20 * giga, assumed, "",
               "NVIDIA Ada GPU Architecture white paper, appendix A; PCIe 4.0 x16"},
    GpuFigures{"rtx5090", "NVIDIA GeForce RTX 5090", GpuArchitecture::blackwell, 209.5 * tera, 104.8 * tera, 170, 575,
               31.4 * gibi, 1792 * giga, 64 * giga, 64 * giga, 1.0, assumed, 20 * giga, assumed, "",
               "NVIDIA RTX Blackwell GPU Architecture white paper, appendix A; PCIe 5.0 x16"}};

}  // namespace

std::span<const GpuFigures> known_gpus() { return gpus; }

const GpuFigures* figures_of(std::string_view description) {
  for (const GpuFigures& gpu : gpus)
    if (description.starts_with(gpu.product) && description.substr(gpu.product.size()).starts_with(" (")) return &gpu;
  return nullptr;
}

}  // namespace fsdp
