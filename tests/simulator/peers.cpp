#include "simulator/peers.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.hpp"
#include "base/format.hpp"
#include "plan/kind.hpp"

namespace fsdp::simulator {

const Constants fitted = {0.7762, 0.7909, 0.7059, 1.168, 2.108, 0.4510, 0.04460, 1.507e-5};

namespace {

using enum AttentionKernel;
constexpr double fitted_update = -1;

// The bytes follow from the programs' sources: which kernels run, and what they read and write in 16 and 32 bits.
constexpr RowBytes gpt_forward{20, 0, 0, 4, 0}, gpt_backward{54, 0, 18, 8, 0};  // eager
// Gathers queries, keys and values before attention, and scatters its output.
constexpr RowBytes unpadded_forward{36, 0, 0, 4, 0}, unpadded_backward{70, 0, 18, 8, 0};
constexpr RowBytes fused_gpt_forward{16, 0, 0, 4, 0}, fused_gpt_backward{38, 0, 0, 8, 0};
constexpr RowBytes with_scores_forward{16, 0, 0, 4, 14}, with_scores_backward{38, 0, 0, 8, 20};
constexpr RowBytes fused_llama_forward{16, 4, 0, 6, 0}, fused_llama_backward{28, 4, 0, 10, 0};
constexpr RowBytes llama_forward{84, 20, 0, 10, 0}, llama_backward{180, 28, 0, 16, 0};  // eager
constexpr RowBytes fused_norm_forward{20, 20, 0, 10, 0}, fused_norm_backward{32, 28, 0, 16, 0};
constexpr RowBytes torchtune_forward{84, 48, 0, 10, 0}, torchtune_backward{180, 60, 0, 16, 0};

constexpr std::array programs = {
    // cuBLAS, attention, bytes of blocks, head, optimizer, copies, s per update
    Kernels{"mosaic-2023-05", 11, triton, gpt_forward, gpt_backward, 38, 84, 8, fitted_update},
    Kernels{"mosaic-2023-10", 12, triton, gpt_forward, gpt_backward, 38, 84, 18, fitted_update},
    Kernels{"mosaic-2024-01", 12, flash_2, unpadded_forward, unpadded_backward, 38, 84, 18, fitted_update},
    Kernels{"torchtitan-eager", 12, flash_2, llama_forward, llama_backward, 30, 32, 16, 0.01},
    Kernels{"torchtitan-2024-04", 12, flash_2, fused_norm_forward, fused_norm_backward, 30, 32, 16, 0.01},
    Kernels{"torchtitan-compile", 12, flash_2, fused_llama_forward, fused_llama_backward, 14, 32, 16, 0.01},
    Kernels{"fms-eager", 12, flash_2, llama_forward, llama_backward, 30, 40, 8, 0.02},
    Kernels{"fms-compile", 12, flash_2, fused_llama_forward, fused_llama_backward, 14, 32, 8, 0.02},
    Kernels{"tinyllama", 12, flash_2, fused_llama_forward, fused_llama_backward, 14, 32, 8, 0.02},
    Kernels{"torchtune-eager", 12, flash_2, torchtune_forward, torchtune_backward, 40, 20, 0, 0.01},
    Kernels{"torchtune-compile", 12, flash_2, fused_llama_forward, fused_llama_backward, 14, 20, 0, 0.01, {2, 6}, {3, 6}},
    Kernels{"automodel-lora", 12, cudnn, fused_llama_forward, fused_llama_backward, 14, 0, 0, 0.02, {7, 12}, {8, 10}},
    Kernels{"llmq", 12, cudnn, fused_llama_forward, fused_llama_backward, 8, 18, 0, 0.002},
    Kernels{"llm.c", 12, cudnn, fused_gpt_forward, fused_gpt_backward, 6, 30, 0, 0.002},
    Kernels{"deepspeed", 11, unfused, with_scores_forward, with_scores_backward, 30, 0, 4, 0.1},
    Kernels{"vtrain", 11, unfused, with_scores_forward, with_scores_backward, 30, 44, 0, 0.01, {}, {}, 55, 110}};

constexpr double giga = 1e9, tera = 1e12, gibi = 1 << 30;
// The RTX cards are of rows that are kept apart.
constexpr std::array gpus = {
    GpuFigures{"h100-hbm2e", "NVIDIA H100 SXM, HBM2e", GpuArchitecture::hopper, 989.5 * tera, 67 * tera, 132, 700, 95 * gibi,
               2400 * giga, 450 * giga, 64 * giga, 0.706, "as the H100", 370 * giga, "as the H100", "",
               "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"},
    GpuFigures{"pro6000", "NVIDIA RTX PRO 6000", GpuArchitecture::blackwell, 503.8 * tera, 126 * tera, 188, 600, 95 * gibi,
               1792 * giga, 64 * giga, 64 * giga, 0.791, "as the A100", 40 * giga, "assumed", "",
               "NVIDIA RTX PRO 6000 Blackwell datasheet"},
    GpuFigures{"rtx5060ti", "NVIDIA GeForce RTX 5060 Ti", GpuArchitecture::blackwell, 47.4 * tera, 23.7 * tera, 36, 180,
               15.5 * gibi, 448 * giga, 32 * giga, 32 * giga, 1.0, "a product measured by a user (BLACKWALL)", 20 * giga,
               "assumed", "", "NVIDIA GeForce RTX 5060 Ti specifications"}};

/// A part of a forward pass that backward repeats.
Cost part(const Cost& forward, double products, double attention, double bytes) {
  return {.product_flops = products * forward.product_flops,
          .product_outputs = products * forward.product_outputs,
          .attention_forward_flops = attention * forward.attention_forward_flops,
          .memory_bytes = bytes * forward.memory_bytes,
          .launches = forward.launches};
}

/// What the program computes again of a block, if our plan has no operation for it. "ffn+att" and "ffn+qkv" are of rows that
/// are kept apart.
Cost again(const Row& row, const Cost& forward, double rows) {
  const auto F = static_cast<double>(row.ffn_width), d = static_cast<double>(row.width);
  const std::string& what = row.recompute;
  if (what == "none") return {};
  if (what == "block") return part(forward, 1, 1, 1);
  if (what == "half-layers") return part(forward, 0.5, 0.5, 0.5);
  if (what == "half-products") return part(forward, 0.37, 0, 1);  // half of the products, without attention
  if (what == "some") return part(forward, 0.35, 0.35, 0.35);
  if (what == "gelu") return {.memory_bytes = 4 * rows * F};
  if (what == "ffn+att") return part(forward, 0.8, 0.8, 0.8);
  if (what == "ffn+qkv") return part(forward, 0.75, 0.75, 0.75);
  if (what == "ffn") {
    const double outputs = (row.gated ? 2 : 1) * F;
    return {.product_flops = 2 * rows * outputs * d,
            .product_outputs = 2 * rows * outputs,
            .memory_bytes = 0.5 * forward.memory_bytes};
  }
  throw UserError(format("row {} recomputes '{}', which is unknown; correct it", row.id, what));
}

}  // namespace

std::span<const Kernels> known_kernels() { return programs; }
std::span<const GpuFigures> other_gpus() { return gpus; }

const Kernels& kernels_of(const Row& row) {
  const auto found = std::ranges::find(programs, row.program, &Kernels::program);
  if (found == programs.end()) throw UserError(format("row {} has the unknown program {}; correct it", row.id, row.program));
  return *found;
}

const GpuFigures& gpu_of(const Row& row) {
  for (const auto& known : {known_gpus(), other_gpus()})
    if (const auto found = std::ranges::find(known, row.gpu, &GpuFigures::name); found != known.end()) return *found;
  throw UserError(format("row {} has the unknown GPU {}; correct it", row.id, row.gpu));
}

AttentionRates attention_rates(AttentionKernel kernel, GpuArchitecture architecture, const Constants& constants) {
  const bool hopper = architecture == GpuArchitecture::hopper;
  if (kernel == triton)
    return AttentionRates{{59, 75, 79, 76, 79, 80}, {50, 61, 68, 74, 78, 80}, 1.45}.scaled(
        tera * constants[hopper ? triton_hopper : triton_ampere]);
  const double faster = kernel == cudnn && hopper ? 1.65 : 1;
  if (hopper) return AttentionRates{{141, 192, 232, 257, 273, 284}, {163, 221, 265, 294, 308, 328}, 1.3}.scaled(tera * faster);
  return AttentionRates{{88, 119, 140, 156, 165, 171}, {99, 133, 155, 173, 182, 189}, 1.3}.scaled(tera * faster);
}

Rates rates_of_peer(const Row& row, const Transformer& model, const Kernels& kernels, const Constants& constants) {
  const GpuFigures& gpu = gpu_of(row);
  const double peak = gpu.flops_16bit, power = std::sqrt(std::min(1.0, row.watts / gpu.watts));
  double share = gpu.product_share;
  if (gpu.architecture == GpuArchitecture::hopper)
    share = constants[products_hopper];
  else if (share < 1)
    share = constants[kernels.cublas == 11 ? products_cu11 : products_cu12];
  AttentionRates attention = attention_rates(kernels.attention, gpu.architecture, constants);
  if (kernels.attention == unfused) {
    // Products over the whole square of scores at half of the peak: 4 R T q FLOPs forward, 8 R T q backward.
    attention = {equal_rates(0.875 / 3 * peak), equal_rates(0.875 / 3 * peak), 0.8};
  }
  attention = attention.scaled(power);
  Network network;
  if (row.nodes() > 1) {
    network.ports = row.per_node;
    network.port_bandwidth = row.gbit * giga / 8;
  }
  // What is not set here is as in predictions of fsdp.
  Rates rates = rates_of(gpu, model, DType::bf16, network, row.watts);
  rates.products = {share * peak * power};
  rates.fp32_products = {gpu.flops_fp32};
  rates.attention = attention;
  rates.memory = {0.80 * gpu.memory_bandwidth};
  rates.optimizer = {0.75 * gpu.memory_bandwidth};
  rates.host_link = {gpu.host_bandwidth};
  rates.launch = {constants[launch]};
  rates.update = {kernels.update < 0 ? constants[update] : kernels.update};
  rates.hop = {3.4e-6};  // also without NVLink
  rates.interference = {constants[interference]};
  rates.copies = {kernels.copies};
  rates.all_reduce_bytes = static_cast<double>(row.reduce_bytes);
  return rates;
}

UpdateSimulation::CostOf costs_of_peer(const Row& row, const Kernels& kernels) {
  return [row, kernels](const Operation& op, const Costing& costing) -> Cost {
    const auto real = [](std::size_t n) { return static_cast<double>(n); };
    const double rows = real(row.micro_batch * row.tokens), d = real(row.width), q = real(row.heads * row.head_size),
                 k = real(row.kv_heads * row.head_size), F = real(row.ffn_width);
    const auto bytes_of = [&](const RowBytes& bytes, const AdapterBytes& adapters) {
      double sum = bytes.width * d + bytes.queries_keys * (q + k) + bytes.queries * q + bytes.ffn * F +
                   bytes.scores * real(row.heads * row.tokens);
      if (row.lora_rank > 0) sum += adapters.inputs * (5 * d + q + F) + adapters.outputs * (q + 2 * k + 2 * d + 2 * F);
      return rows * sum;
    };
    const auto forward = [&] {
      Cost cost = costing.stages.forward(static_cast<std::size_t>(op.block));
      cost.memory_bytes = bytes_of(kernels.forward, kernels.adapters_forward);
      cost.launches = kernels.launches_forward;
      return cost;
    };
    if (op.kind == &kinds::block_forward || op.kind == &kinds::recompute) return forward();
    if (op.kind == &kinds::block_backward) {
      Cost cost = costing.stages.backward(static_cast<std::size_t>(op.block), false);
      cost.memory_bytes = bytes_of(kernels.backward, kernels.adapters_backward);
      cost.launches = kernels.launches_backward;
      // Our plan recomputes whole blocks, but not the last one.
      if (row.recompute == "block" && op.block + 1 < static_cast<int>(row.layers)) return cost;
      const Cost more = again(row, forward(), rows);
      cost.product_flops += more.product_flops, cost.product_outputs += more.product_outputs;
      cost.attention_forward_flops += more.attention_forward_flops, cost.memory_bytes += more.memory_bytes;
      cost.launches += more.launches;
      return cost;
    }
    if (op.kind == &kinds::head) {
      Cost cost = costing.stages.head();
      cost.memory_bytes = rows * kernels.head * real(row.vocab);
      return cost;
    }
    if (op.kind == &kinds::optimizer && row.lora_rank == 0)
      return {.memory_bytes = kernels.optimizer * real(costing.layout.shard_numel(static_cast<std::size_t>(op.unit)))};
    return {};
  };
}

}  // namespace fsdp::simulator
