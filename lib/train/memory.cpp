#include "train/memory.hpp"

#include <algorithm>

#include "base/format.hpp"
#include "comm/nccl.hpp"
#include "kernels/threads.hpp"

namespace fsdp {

std::size_t gemm_bytes(const Transformer& model, BatchShape batch, DType type) {
  const TransformerConfig& config = model.config();
  const std::size_t R = batch.rows(), C = config.width, F = std::max(config.ffn_width, 3 * C);
  const std::size_t chunk = model.head_rows(batch), piece = model.head_columns();
  const kernels::ProductShape products[] = {{R, C, F}, {R, F, C}, {C, R, F}, {chunk, C, piece}, {piece, chunk, C}};
  return kernels::gemm_workspace_bytes(type, products, model.device());
}

std::size_t staging_on_gpu(const CommOptions& comm, MeshShape mesh) {
  return comm.kind == "auto" || comm.kind == "nccl" ? nccl_staging_bytes(mesh.shard, mesh.replicate) : 0;
}

MemoryAccount memory_account(const TrainOptions& options, const Transformer& model, const Layout& layout, const Plan& plan,
                             int rank, int world_size, std::size_t staging) {
  const ShardingOptions& sharding = options.sharding;
  return {.by_role = memory_by_role(plan),
          .plan = plan.peak_bytes,
          .staging = staging,
          .gemm = gemm_bytes(model, sharding.batch, sharding.types.parameter),
          .context = model.device().context_bytes,
          .offloaded = plan.host_bytes,
          .batch = 2 * sharding.plan.micro_batches * sharding.batch.rows() * sizeof(std::int32_t),
          .snapshot = options.save.meanwhile() ? snapshot_bytes(layout, sharding.optimizer.state_type, rank, world_size) : 0,
          .trace = options.trace.file.empty() ? 0 : Recorder::bytes(plan, options.trace.updates),
          .device = model.device().kind};
}

std::string describe_beside_plan(const MemoryAccount& m) {
  const auto bytes = [](std::size_t n) { return format_bytes(static_cast<double>(n)); };
  const std::string host =
      format("{}{} of tokens read ahead{}{}", m.offloaded == 0 ? "" : format("{} offloaded, ", bytes(m.offloaded)),
             bytes(m.batch), m.snapshot == 0 ? "" : format(", {} that a save writes from", bytes(m.snapshot)),
             m.trace == 0 ? "" : format(", {} of the trace", bytes(m.trace)));
  if (m.device == DeviceKind::cpu)
    return format("  and beside it: {} communication staging, about {} for matrix products to work in, {}\n", bytes(m.staging),
                  bytes(m.gemm), host);
  return format(
      "  and beside it: {} for matrix products to work in, {} of staging for sums by NCCL\n"
      "  allowed for the driver's context, libraries and NCCL's own buffers, not measured: {}\n"
      "  of the GPU in all: {}\n"
      "  in the host's memory: {}\n",
      bytes(m.gemm), bytes(m.staging), bytes(m.context), bytes(m.total()), host);
}

}  // namespace fsdp
