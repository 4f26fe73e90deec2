#include "train/memory.hpp"

#include <algorithm>

#include "base/format.hpp"
#include "kernels/threads.hpp"

namespace fsdp {

std::size_t gemm_bytes(const TransformerConfig& config, BatchShape batch, DType type) {
  const std::size_t R = batch.rows(), C = config.width, F = std::max(config.ffn_width, 3 * C);
  const std::size_t chunk = Transformer::head_rows(batch, config.vocab_size),
                    piece = Transformer::head_columns(config.vocab_size);
  const kernels::ProductShape products[] = {{R, C, F}, {R, F, C}, {C, R, F}, {chunk, C, piece}, {piece, chunk, C}};
  return kernels::gemm_workspace_bytes(type, products);
}

MemoryAccount memory_account(const TrainOptions& options, const Transformer& model, const Layout& layout, const Plan& plan,
                             int rank, int world_size, std::size_t staging) {
  const ShardingOptions& sharding = options.sharding;
  return {.plan = plan.peak_bytes,
          .staging = staging,
          .gemm = gemm_bytes(model.config(), sharding.batch, sharding.types.parameter),
          .batch = 2 * sharding.plan.micro_batches * sharding.batch.rows() * sizeof(std::int32_t),
          .snapshot = options.save.meanwhile() ? snapshot_bytes(layout, sharding.optimizer.state_type, rank, world_size) : 0,
          .trace = options.trace.file.empty() ? 0 : Recorder::bytes(plan, options.trace.updates)};
}

std::string describe_beside_plan(const MemoryAccount& m) {
  const auto bytes = [](std::size_t n) { return format_bytes(static_cast<double>(n)); };
  return format(
      "  and beside it: {} communication staging, about {} for matrix products to work in, {} of tokens read ahead{}{}\n",
      bytes(m.staging), bytes(m.gemm), bytes(m.batch),
      m.snapshot == 0 ? "" : format(", {} that a save writes from", bytes(m.snapshot)),
      m.trace == 0 ? "" : format(", {} of the trace", bytes(m.trace)));
}

}  // namespace fsdp
