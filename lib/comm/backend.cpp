#include "comm/backend.hpp"

#include <algorithm>
#include <utility>

#include "base/registry.hpp"
#include "comm/agree.hpp"
#include "comm/nccl/nccl.hpp"
#include "comm/nodes/nodes_communicator.hpp"
#include "comm/shm/meeting_place.hpp"
#include "comm/shm/shm_communicator.hpp"

namespace fsdp {

namespace {

// Returns a group of the same ranks that communicates through shared memory. All ranks must be on one node. If they cannot
// share memory, throws if `required` is true, else returns `group`. The outcome is the same on all ranks.
std::unique_ptr<Communicator> share_node(std::unique_ptr<MessageGroup> group, bool required, double timeout_s) {
  try {
    return share_memory(*group, {.timeout_s = timeout_s, .host = group->host(), .world_ranks = group->world_ranks()});
  } catch (const SharedMemoryUnavailable&) {  // thrown on all ranks
    if (required) throw;
    return group;
  }
}

// Ranks of one node share memory. If a group spans nodes with the same number of consecutive ranks on each, its ranks share
// memory within nodes and send messages between them. All other groups send messages.
std::unique_ptr<Communicator> share_nodes(std::unique_ptr<MessageGroup> group, bool required) {
  const int of_each = ranks_of_each_node(group->nodes());
  const double timeout_s = group->options().timeout_s;
  if (of_each == group->size()) return share_node(std::move(group), required, timeout_s);
  if (of_each <= 1) return group;
  auto intra_node_by_messages = group->split_messages(group->rank() / of_each, group->rank());
  auto inter_node = group->split_messages(group->rank() % of_each, group->rank());
  // share_node() can fail on one node only.
  auto intra_node = agree(*group, [&] {
    return share_node(std::move(intra_node_by_messages), required, NodesCommunicator::limit_within_a_node(timeout_s));
  });
  return std::make_unique<NodesCommunicator>(std::move(group), std::move(intra_node), std::move(inter_node), timeout_s);
}

std::size_t staging_of_shared_nodes(std::span<const int> nodes) {
  const auto of_each = static_cast<std::size_t>(ranks_of_each_node(nodes));
  if (of_each == nodes.size()) return MeetingPlace::planned_bytes_per_rank(of_each);
  const std::size_t flat = staging_of_messages(nodes.size());
  return of_each <= 1 ? flat
                      : flat + MeetingPlace::planned_bytes_per_rank(of_each) + staging_of_messages(nodes.size() / of_each);
}

const Backend shared_memory = {
    .name = "shm",
    .about = "through shared memory within a node, by MPI between nodes",
    .connect = [](std::unique_ptr<MessageGroup> group) { return share_nodes(std::move(group), true); },
    .staging_bytes = staging_of_shared_nodes,
    .between = Between::nodes};

const Backend messages = {.name = "mpi",
                          .about = "only MPI",
                          .connect = [](std::unique_ptr<MessageGroup> group) -> std::unique_ptr<Communicator> { return group; },
                          .staging_bytes = [](std::span<const int> nodes) { return staging_of_messages(nodes.size()); }};

Registry<Backend>& table() {
  static Registry<Backend> rows({&automatic_backend, &nccl_backend, &shared_memory, &messages},
                                "\"{}\" is no known way to connect ranks");
  return rows;
}

}  // namespace

constinit const Backend automatic_backend = {
    .name = "auto",
    .about =
        "shm if the ranks of a node can share memory, else mpi; for GPU memory nccl if each rank has its own GPU, else through "
        "host memory",
    .connect = [](std::unique_ptr<MessageGroup> group) { return share_nodes(std::move(group), false); },
    .staging_bytes = staging_of_shared_nodes,
    .between = Between::nodes,
    .device_backend = &nccl_device_backend};

std::size_t staging_of_sums(const CommOptions& options, std::size_t largest, std::size_t ranks) {
  if (ranks == 1) return 0;
  const std::size_t least = ranks * 1024;  // 64 doubles to each rank and from it
  return std::max(least, std::min(options.sum_staging_bytes, options.sum_order == SumOrder::canonical ? largest : 0));
}

const std::vector<const Backend*>& backends() { return table().rows(); }

const Backend& find_backend(std::string_view name) { return table().find(name); }

void add_backend(const Backend& backend) {
  expect(backend.connect && backend.staging_bytes,
         "a backend has functions that connect, and that return the bytes of staging");
  table().add(backend);
}

std::unique_ptr<Communicator> connect(std::unique_ptr<MessageGroup> group) {
  return find_backend(group->options().kind).connect(std::move(group));
}

}  // namespace fsdp
