#include "run/sharded_model.hpp"

#include <map>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "comm/agree.hpp"
#include "device/memory_view.hpp"
#include "plan/kind.hpp"
#include "plan/traffic.hpp"
#include "run/gemm_algorithms.hpp"

namespace fsdp {

namespace {

/// The number of ranks per node according to MPI. The ranks of a node must be consecutive, and each node must have the same
/// number of them, so that a node can be a shard group. Collective.
int ranks_of_a_node(Communicator& world) {
  const auto node = world.split_by_node();
  const std::int64_t size = node->size(), first = world.rank() - node->rank();
  const std::int64_t sizes = world.sum(size);
  agree(world, [&] {
    if (size * world.size() != sizes || first % size != 0)
      throw UserError(
          "the ranks of a node cannot be a shard group (the nodes have different numbers of ranks, or their ranks are not "
          "consecutive); give `shard group size`, or start the same number of consecutive ranks on every node");
  });
  return static_cast<int>(size);
}

/// Checks that each thread has scratch memory. Without this check a stage would fail in the middle of an update.
void require_scratch_of_threads(const DeviceTraits& device) {
  const auto threads = static_cast<std::size_t>(kernels::threads());
  if (is_host(device.kind) && threads > device.threads)
    throw UserError(
        format("the model would run with {} threads, but it was made for {} (each thread needs its own scratch memory); call "
               "kernels::set_threads() before you make the model, or make it with cpu_traits({})",
               threads, device.threads, threads));
}

Mesh make_mesh_for(const Placement& placement, int group_size, Communicator& world) {
  if (placement.axis == ShardAxis::group && group_size == 0) group_size = ranks_of_a_node(world);
  const MeshShape shape = mesh_shape(placement, world.size(), group_size);
  return make_mesh(world, shape.shard, shape.replicate);
}

/// Runs the largest collective of each kind and group of the plan once, on memory that is released afterwards: NCCL connects
/// the ranks, and takes device memory for each connection, when they first use it. If the device backend names a network, runs
/// the one that sends the most between nodes once more, and returns the bytes per second that a node sends then; else 0.
/// Collective over world.
double use_collectives_once(const Plan& plan, const Mesh& mesh, Device& device) {
  const auto ranks_of = [&](const Operation& op) { return static_cast<std::size_t>(mesh.along(op.group).size()); };
  const auto bytes_of = [&](const Operation& op) { return collective_of(op)->buffer_bytes(ranks_of(op)); };
  // By group, stream (on which its communicator depends) and kind; the order is the same on all ranks.
  std::map<std::tuple<GroupAxis, StreamId, Collective>, const Operation*> largest;
  for (const Operation* const op : collectives_of_plan(plan)) {
    const Operation*& kept = largest[{op->group, op->stream, *op->kind->collective}];
    if (!kept || bytes_of(*op) > bytes_of(*kept)) kept = op;
  }
  const auto stream = device.make_stream(StreamUse::communication);
  Cluster cluster{.nodes = 1, .ranks_per_node = mesh.world->size()};  // unless the network is known and all nodes are alike
  if (!mesh.device_groups->network.empty()) {
    const std::int64_t on_node = mesh.world->split_by_node()->size(), ranks = mesh.world->size();
    if (mesh.world->all(on_node * ranks == mesh.world->sum(on_node)))
      cluster.ranks_per_node = static_cast<int>(on_node), cluster.nodes = static_cast<int>(ranks / on_node);
  }
  double most_sent = 0, rate = 0;
  for (const auto& [which, op] : largest) {
    if (ranks_of(*op) == 1) continue;
    const Buffer memory = agree(*mesh.world, [&] { return device.allocate(bytes_of(*op)); });
    std::byte* const mine =
        memory.data() + static_cast<std::size_t>(mesh.along(op->group).rank()) * op->count * size_of(op->type);
    const auto run = [&] { on_stream(*stream, [&] { queue_collective(*op, mesh, memory.data(), mine, *stream); }); };
    run();
    const double sent = static_cast<double>(traffic_of_cluster({*collective_of(*op)}, mesh.shape, cluster).ring_out_of_node);
    if (sent <= most_sent) continue;
    most_sent = sent;
    mesh.world->barrier();
    const Timer timer;
    run();
    rate = sent / (1e-9 * static_cast<double>(mesh.world->max(static_cast<std::size_t>(1 + 1e9 * timer.seconds()))));
  }
  return rate;
}

ShardingOptions checked(ShardingOptions options, const Model& model, int world_size) {
  check_sharding(model, options, world_size);
  return options;
}

}  // namespace

void queue_collective(const Operation& op, const Mesh& mesh, std::byte* whole, std::byte* mine, Stream& stream) {
  Collectives& group = group_of(op, mesh);
  if (*op.kind->collective == Collective::all_gather)
    group.all_gather(stream, mine, whole, op.count, op.type);
  else if (*op.kind->collective == Collective::reduce_scatter)
    group.reduce_scatter(stream, reinterpret_cast<float*>(whole), reinterpret_cast<float*>(mine), op.count, Into::overwrite,
                         op.reduce_dtype);
  else
    group.all_reduce(stream, whole, op.count, op.type, op.reduce_dtype);
}

ShardedModel::ShardedModel(TransformerConfig config, const ShardingOptions& options, Communicator& world,
                           const DeviceTraits& device)
    : ShardedModel(std::make_shared<Transformer>(std::move(config), device), options, world) {}

ShardedModel::ShardedModel(std::shared_ptr<const Model> model, const ShardingOptions& options, Communicator& world)
    : options_(checked(options, *model, world.size())),
      placement_(find_placement(options.strategy)),
      world_(world),
      model_(std::move(model)),
      transformer_(dynamic_cast<const Transformer*>(model_.get())),
      mesh_(make_mesh_for(placement_, options.shard_group_size, world)),
      planned_(plan_sharding(*model_, options_, mesh_.shape, &warnings_)) {
  // The plan does not depend on the rank, but the options and files given to each rank can differ.
  require_same(world, format("{}", collective_fingerprint(plan())), [](const std::string&) {
    throw UserError(
        "this rank's plan differs from that of rank 0 (the two ranks received different options or files); start all ranks "
        "with the same options and files");
  });
}

const Transformer& ShardedModel::transformer() const {
  expect(transformer_ != nullptr, "the model is a transformer");
  return *transformer_;
}

Executor& ShardedModel::allocate(Device& device, ExecutorOptions options, const CommOptions& comm) {
  expect(device.kind() == model_->device().kind, "the device is of the kind that the plan was made for");
  std::vector<std::unique_ptr<Storage>> memory;
  const auto open = [&](bool collective) {
    open_spaces(plan().spaces, {device, mesh_.data_along(GroupAxis::shard), options.nvme_path}, collective, memory);
  };
  agree(world_, [&] {
    check_gemm_algorithms(options.gemm_algorithms, device.kind());
    require_scratch_of_threads(model_->device());
    const auto prepare = [&](BatchShape shape, bool backward) {
      prepare_attention(transformer_->config(), *device.make_stream(StreamUse::communication), shape, options_.types.parameter,
                        model_->device(), backward);
    };
    if (transformer_) prepare(options_.batch, !plan().update.empty());
    if (transformer_ && options_.evaluated().B != options_.batch.B) prepare(options_.evaluated(), false);
  });
  mesh_.use_device(device, comm, largest_sums(plan(), mesh_.shape), plan().in_layers >= 0);
  if (mesh_.device_groups) network_rate_ = use_collectives_once(plan(), mesh_, device);
  agree(world_, [&] {  // before the collective allocations
    std::size_t bytes = model_->device().gemm_bytes;
    for (const SpaceUse& use : plan().spaces)
      if (use.space->tier == Tier::device) bytes += use.bytes;
    device.require_free(bytes);
    open(false);
  });
  agree(world_, [&] { open(true); });  // one shard group can fail while others succeed
  agree(world_, [&] {
    executor_.emplace(*model_, layout(), plan(), options_.batch, options_.optimizer, device, std::move(memory), mesh_, options,
                      options_.evaluated_sequences);
  });
  if (!options.gemm_algorithms.empty())
    gemm_algorithms_ =
        use_gemm_algorithms(options.gemm_algorithms, executor_->products(), executor_->compute_stream(), device, world_);
  return *executor_;
}

}  // namespace fsdp
