#include "train/memory.hpp"

#include <algorithm>

#include "base/format.hpp"
#include "fsdp/traffic.hpp"
#include "kernels/threads.hpp"

namespace fsdp {

std::size_t gemm_bytes(const Transformer& model, BatchShape batch, DType type) {
  const TransformerConfig& config = model.config();
  const std::size_t R = batch.rows(), C = config.width, F = std::max(config.ffn_width, 3 * C);
  const std::size_t chunk = model.head_rows(batch), piece = model.head_columns();
  const kernels::ProductShape products[] = {{R, C, F}, {R, F, C}, {C, R, F}, {chunk, C, piece}, {piece, chunk, C}};
  return kernels::gemm_workspace_bytes(type, products, model.device());
}

/// As in Mesh::use_device(): each axis has a communicator for sums. Gathers need no staging.
std::size_t staging_on_gpu(const CommOptions& comm, const Plan& plan, MeshShape mesh) {
  if (!find_backend(comm.kind).device_backend) return 0;
  const std::array<int, 3> ranks = {mesh.shard, mesh.replicate, mesh.shard * mesh.replicate};
  const LargestSums largest = largest_sums(plan, mesh);
  std::size_t bytes = 0;
  for (std::size_t axis = 0; axis < ranks.size(); ++axis)
    bytes += staging_of_sums(comm, largest[axis], static_cast<std::size_t>(ranks[axis]));
  return bytes;
}

std::size_t staging_through_host(const Plan& plan, MeshShape mesh) {
  std::array<std::size_t, 4> most{};  // bytes by axis; most[3] is for gathers, which have a group of their own
  for (const Operation& op : plan.update) {
    const auto use = collective_of(op);
    if (!use) continue;
    const int of_axis[] = {mesh.shard, mesh.replicate, mesh.shard * mesh.replicate};
    const auto axis = static_cast<std::size_t>(op.group);
    const std::size_t bytes = use->staging_bytes(static_cast<std::size_t>(of_axis[axis]));
    std::size_t& largest = most[op.stream == StreamId::gather ? 3 : axis];
    largest = std::max(largest, bytes);
  }
  return most[0] + most[1] + most[2] + most[3];
}

MemoryAccount memory_account(const TrainOptions& options, const Transformer& model, const Layout& layout, const Plan& plan,
                             int rank, int world_size, std::size_t staging) {
  const ShardingOptions& sharding = options.sharding;
  const DeviceBackend* const backend = find_backend(options.comm.kind).device_backend;
  return {.by_role = memory_by_role(plan),
          .plan = plan.peak_bytes,
          .staging = staging,
          .gemm = gemm_bytes(model, sharding.batch, sharding.types.parameter),
          .context = model.device().context_bytes,
          .offloaded = plan.offloaded_bytes(),
          .through_host = !is_host(model.device().kind) && !backend
                              ? staging_through_host(plan, {layout.shards(), world_size / layout.shards()})
                              : 0,
          .batch = plan.batch_bytes(),
          .snapshot = options.save.meanwhile()
                          ? snapshot_bytes(layout, sharding.optimizer.state_type, rank, world_size, !plan.averages.empty())
                          : 0,
          .trace = options.trace.file.empty() ? 0 : Recorder::bytes(plan, options.trace.updates),
          .device = model.device().kind,
          .backend = backend};
}

MemoryAccount memory_account(const TrainOptions& options, const ShardedModel& sharded, const Communicator& world,
                             const Communicator& node) {
  const Mesh& mesh = sharded.mesh();
  const bool on_gpu = !is_host(sharded.transformer().device().kind);
  const std::size_t staging =
      on_gpu ? staging_on_gpu(options.comm, sharded.plan(), {mesh.shard->size(), mesh.replicate->size()})
             : world.staging_bytes() + node.staging_bytes() + mesh.shard->staging_bytes() + mesh.replicate->staging_bytes();
  return memory_account(options, sharded.transformer(), sharded.layout(), sharded.plan(), world.rank(), world.size(), staging);
}

std::string describe_beside_plan(const MemoryAccount& m) {
  const auto bytes = [](std::size_t n) { return format_bytes(static_cast<double>(n)); };
  const auto part = [&](std::size_t n, const char* what) { return n == 0 ? "" : format("    {} {}\n", bytes(n), what); };
  const std::string host = part(m.offloaded, "offloaded") + part(m.through_host, "of staging for collectives") +
                           part(m.snapshot, "for the copy that a save writes") + part(m.trace, "for the trace") +
                           format("    {} for tokens that are read ahead\n", bytes(m.batch));
  if (is_host(m.device))
    return format(
        "  outside the plan:\n"
        "    {} of staging for communication\n"
        "    about {} of workspace for matrix products\n{}",
        bytes(m.staging), bytes(m.gemm), host);
  return format(
      "  outside the plan:\n"
      "    {0} of workspace for matrix products\n"
      "    {1} of staging for sums{5}\n"
      "    {2} for the driver's context, libraries{6}, an estimate\n"
      "  GPU memory in total: {3}\n"
      "  host memory:\n{4}",
      bytes(m.gemm), bytes(m.staging), bytes(m.context), bytes(m.total()), host,
      m.backend ? format(" by {}", m.backend->name) : "", m.backend ? format(" and {}'s own buffers", m.backend->name) : "");
}

}  // namespace fsdp
