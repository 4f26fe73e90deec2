// What a prediction of another program needs that differs from fsdp: its kernels, its GPU, and the constants that were fitted.
// The engine is fsdp's own: the plan, the counts of products and attention, rings and events (lib/plan). docs/simulator.md has
// the sources of the figures.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "plan/prediction.hpp"
#include "simulator/rows.hpp"

namespace fsdp::simulator {

/// The constants that were fitted on ten rows, by their index.
enum Constant { products_cu11, products_cu12, products_hopper, triton_ampere, triton_hopper, interference, update, launch };
inline constexpr std::size_t constant_count = 8;
inline constexpr std::array<std::string_view, constant_count> constant_names = {
    "share of the peak of products, A100, cuBLAS 11",
    "share of the peak of products, A100, cuBLAS 12",
    "share of the peak of products, H100 and H200",
    "Triton's attention on an A100, times the published rate",
    "Triton's attention on an H100, times the rate on an A100",
    "part of its rate that computing loses (interference)",
    "s per update outside of the GPU, llm-foundry",
    "s for a kernel's launch, Megatron"};
using Constants = std::array<double, constant_count>;
/// The result of `validate-simulator fit`.
extern const Constants fitted;

enum class AttentionKernel { triton, flash_2, cudnn, unfused };

/// Bytes for a token and a block, as coefficients of the width, of heads x head size of queries and keys together and of
/// queries only, of the MLP's inner width, and of heads x sequence length (attention scores in memory).
struct RowBytes {
  double width, queries_keys, queries, ffn, scores;
};
/// The same for the adapters of all projections, as coefficients of the sums of their inputs and outputs.
struct AdapterBytes {
  double inputs, outputs;
};
/// The kernels of a program, other than products.
struct Kernels {
  std::string_view program;
  int cublas;  // the major version
  AttentionKernel attention;
  RowBytes forward, backward;
  double head;       // bytes for a token and a vocabulary entry, forward and backward
  double optimizer;  // bytes for a parameter of the shard
  double copies;     // bytes around a reduction, for an element
  double update;     // seconds per update outside of the GPU; negative: the fitted constant
  AdapterBytes adapters_forward = {}, adapters_backward = {};
  double launches_forward = 0, launches_backward = 0;  // of a block, if the host launches kernels one by one
};
std::span<const Kernels> known_kernels();
/// Throws UserError if the program is unknown.
const Kernels& kernels_of(const Row& row);

/// The GPUs that rows name: those of the library, another H100, and two for rows that are kept apart. Throws UserError if the
/// GPU is unknown.
const GpuFigures& gpu_of(const Row& row);
std::span<const GpuFigures> other_gpus();
AttentionRates attention_rates(AttentionKernel kernel, GpuArchitecture architecture, const Constants& constants);

/// The rates of a program on a row's machine. Model: that of the row.
Rates rates_of_peer(const Row& row, const Transformer& model, const Kernels& kernels, const Constants& constants);
/// The costs of a program's operations. Both arguments are copied.
UpdateSimulation::CostOf costs_of_peer(const Row& row, const Kernels& kernels);

}  // namespace fsdp::simulator
