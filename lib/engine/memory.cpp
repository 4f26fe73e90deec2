#include "engine/memory.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "device/file_storage.hpp"
#include "kernels/threads.hpp"
#include "nn/transformer.hpp"

namespace fsdp {

namespace {

/// Returns the size of the staging buffers of a rank's communicators: of its node and of each axis. The groups of an axis may
/// be distributed over nodes in different ways; the group with the most staging counts.
std::size_t staging_of_communicators(MeshShape mesh, Cluster cluster, const Backend& backend) {
  std::size_t bytes = backend.staging_bytes(std::vector<int>(static_cast<std::size_t>(cluster.ranks_per_node)));
  for (const GroupAxis axis : group_axes) {
    std::size_t most = 0;
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(cluster.ranks()); ++rank) {
      const GroupMembers group = members_along(axis, mesh, rank);
      if (group.index > 0) continue;  // once for each group
      std::vector<int> nodes;
      for (std::size_t k = 0; k < group.size; ++k) nodes.push_back(static_cast<int>(group.member(k)) / cluster.ranks_per_node);
      most = std::max(most, backend.staging_bytes(nodes));
    }
    bytes += most;
  }
  return bytes;
}

}  // namespace

std::size_t gemm_bytes(const Model& model, BatchShape batch, DType type) {
  const std::size_t R = batch.rows();
  std::vector<kernels::ProductShape> products;
  if (const auto* const transformer = dynamic_cast<const Transformer*>(&model)) {
    const TransformerConfig& config = transformer->config();
    const std::size_t C = config.width, F = std::max(config.ffn_width, 3 * C);
    const std::size_t chunk = transformer->head_rows(batch), piece = transformer->head_columns();
    products = {{R, C, F}, {R, F, C}, {C, R, F}, {chunk, C, piece}, {piece, chunk, C}};
  } else {
    for (const Parameter& p : model.parameters())
      if (const std::size_t n = p.shape.front(), m = numel(p.shape) / n; p.shape.size() > 1)
        products.insert(products.end(), {{R, m, n}, {R, n, m}, {n, R, m}});
  }
  return kernels::gemm_workspace_bytes(type, products, model.device());
}

/// As in Mesh::use_device(): each axis has a communicator for sums. Gathers need no staging.
std::size_t staging_on_gpu(const CommOptions& comm, const Plan& plan, MeshShape mesh) {
  if (!find_backend(comm.kind).device_backend) return 0;
  const LargestSums largest = largest_sums(plan, mesh);
  std::size_t bytes = 0;
  for (const GroupAxis axis : group_axes)
    bytes += staging_of_sums(comm, largest[static_cast<std::size_t>(axis)], members_along(axis, mesh).size);
  return bytes;
}

std::size_t staging_through_host(const Plan& plan, MeshShape mesh) {
  std::array<std::size_t, group_axes.size() + 1> most{};  // bytes by axis, then of gathers, which have a group of their own
  for (const Operation& op : plan.update) {
    const auto use = collective_of(op);
    if (!use) continue;
    std::size_t& largest = op.stream == StreamId::gather ? most.back() : most[static_cast<std::size_t>(op.group)];
    largest = std::max(largest, use->staging_bytes(members_along(op.group, mesh).size));
  }
  return std::accumulate(most.begin(), most.end(), std::size_t{0});
}

namespace {

/// The account of rank `rank`. `staging` is the sum of the communicators' staging_bytes(), or staging_on_gpu() on a GPU. The
/// kind of device is that of `model`.
MemoryAccount memory_account(const EngineOptions& options, const Model& model, const Layout& layout, const Plan& plan, int rank,
                             int world_size, std::size_t staging, ProgramMemory program) {
  const ShardingOptions& sharding = options.sharding;
  const DeviceBackend* const backend = find_backend(options.comm.kind).device_backend;
  const auto on_host = offloaded_by_role(plan, Tier::host);
  return {.by_role = memory_by_role(plan),
          .plan = plan.peak_bytes,
          .staging = staging,
          .gemm = std::max(gemm_bytes(model, sharding.batch, sharding.types.parameter),
                           gemm_bytes(model, sharding.evaluated(), sharding.types.parameter)),
          .context = model.device().context_bytes,
          .offloaded = std::accumulate(on_host.begin(), on_host.end(), std::size_t{0}),
          .file = plan.bytes_in(spaces::nvme) > 0 ? file_staging_bytes : 0,
          .through_host = !is_host(model.device().kind) && !backend
                              ? staging_through_host(plan, {layout.shards(), world_size / layout.shards()})
                              : 0,
          .batch = plan.batch_bytes(),
          .snapshot = program.snapshot && !sharding.plan.places.on_disk()
                          ? snapshot_bytes(layout, sharding.optimizer.state_type, rank, world_size, !plan.averages.empty())
                          : 0,
          .trace = program.trace_bytes,
          .on_disk = plan.bytes_on_disk(),
          .device = model.device().kind,
          .backend = backend};
}

}  // namespace

MemoryAccount memory_account(const EngineOptions& options, const Model& model, const ShardedPlan& planned, MeshShape mesh,
                             Cluster cluster, ProgramMemory program) {
  const std::size_t staging = is_host(model.device().kind)
                                  ? staging_of_communicators(mesh, cluster, find_backend(options.comm.kind))
                                  : staging_on_gpu(options.comm, planned.plan, mesh);
  return memory_account(options, model, planned.layout, planned.plan, 0, cluster.ranks(), staging, program);
}

MemoryAccount memory_account(const EngineOptions& options, const ShardedModel& sharded, const Communicator& world,
                             const Communicator& node, ProgramMemory program) {
  const Mesh& mesh = sharded.mesh();
  const bool on_gpu = !is_host(sharded.model().device().kind);
  std::size_t staging = on_gpu ? staging_on_gpu(options.comm, sharded.plan(), mesh.shape) : node.staging_bytes();
  for (const GroupAxis axis : group_axes) staging += on_gpu ? 0 : mesh.along(axis).staging_bytes();
  return memory_account(options, sharded.model(), sharded.layout(), sharded.plan(), world.rank(), world.size(), staging,
                        program);
}

ShardedPlan plan_two_micro_batches(const Model& model, ShardingOptions options, MeshShape mesh,
                                   std::vector<std::string>* warnings) {
  options.plan.sums_for = options.plan.micro_batches;
  options.plan.micro_batches = std::min<std::size_t>(options.plan.micro_batches, 2);
  return plan_sharding(model, options, mesh, warnings);
}

FittedPlan fit_plan(std::shared_ptr<const Model> model, const EngineOptions& options, MeshShape mesh, Cluster cluster,
                    ProgramMemory program) {
  const std::size_t limit = options.memory_limit > 0 ? options.memory_limit : options.recompute_to_fit,
                    given = options.sharding.plan.recomputed_blocks;
  std::size_t inputs = options.sharding.plan.offloaded_inputs;
  const auto plan = [&](std::size_t blocks, const std::shared_ptr<const Model>& with) {
    EngineOptions tried = options;
    tried.sharding.plan.recomputed_blocks = blocks, tried.sharding.plan.offloaded_inputs = inputs;
    const MemoryAccount memory =
        memory_account(tried, *with, plan_two_micro_batches(*with, tried.sharding, mesh), mesh, cluster, program);
    return FittedPlan{with, blocks, inputs, memory, limit == 0 || memory.total() <= limit};
  };
  FittedPlan best = plan(given, model);
  if (best.fits) return best;
  std::vector<std::shared_ptr<const Model>> models = {model};  // with smaller and smaller pieces
  const TransformerConfig* const config = model->transformer_config;
  if (config && options.memory_limit > 0 && !options.sharding.plan.invariant) {
    constexpr std::size_t least = std::size_t{1} << 20;
    DeviceTraits device = model->device();
    while (device.logits_bytes > least) {
      device.logits_bytes /= 2;
      models.push_back(std::make_shared<const Transformer>(*config, device));
    }
  }
  std::size_t blocks = given;
  best = plan(blocks, models.back());
  // Binary search: if `number` fits, lowers it to the smallest above `too_few` that does. A larger number needs less memory.
  const auto find_fewest = [&](std::size_t& number, std::size_t too_few) {
    best = plan(blocks, models.back());
    for (std::size_t most = number; best.fits && too_few + 1 < most; number = most) {
      number = (too_few + most) / 2;
      if (FittedPlan fewer = plan(blocks, models.back()); fewer.fits)
        most = number, best = std::move(fewer);
      else
        too_few = number;
    }
  };
  if (!best.fits && options.recompute_to_fit > 0) {
    const ShardingOptions& sharding = options.sharding;
    const bool in_pieces =
        !models.back()->sizes(sharding.batch, sharding.types.parameter, sharding.plan.cache).saved_in_pieces.empty();
    blocks = model->blocks.size() - (in_pieces ? 0 : 1);  // of the last block, only an MLP in pieces is recomputed
    find_fewest(blocks, given);
    if (!best.fits && inputs == 0 && !is_host(model->device().kind)) {
      inputs = model->blocks.size() - 1;
      find_fewest(inputs, 0);
    }
  }
  for (std::size_t i = 0; best.fits && i + 1 < models.size(); ++i)
    if (FittedPlan larger = plan(blocks, models[i]); larger.fits) return larger;
  return best;
}

std::string describe_choice(const PlanOptions& plan) {
  const std::size_t n = plan.recomputed_blocks, m = plan.offloaded_inputs;
  return format("`number of recomputed blocks` {}{}{}", n, n > 0 && m > 0 ? " `inputs of blocks on the host`" : "",
                n > m && m > 0 ? format(" `number of offloaded inputs` {}", m) : "");
}

std::string describe_beside_plan(const MemoryAccount& m) {
  const auto bytes = [](std::size_t n) { return format_bytes(static_cast<double>(n)); };
  const auto part = [&](std::size_t n, const char* what) { return n == 0 ? "" : format("    {} {}\n", bytes(n), what); };
  const std::string host = part(m.offloaded, "offloaded") + part(m.file, "of staging for the file of state") +
                           part(m.through_host, "of staging for collectives") +
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
