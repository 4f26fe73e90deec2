// Training with groups that communicate by nodes, with two or three consecutive ranks as a node: the same bits as on threads,
// and the bytes that fsdp-plan predicts, within nodes and between them.
#include "mpi_main.hpp"

#include <array>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/nodes/nodes_communicator.hpp"
#include "comm/threads/threads.hpp"
#include "kernels/threads.hpp"
#include "plan/traffic.hpp"
#include "run/sharded_model.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

TransformerConfig small_model() {
  TransformerConfig config;
  config.vocab_size = 101, config.max_positions = 12, config.width = 24, config.layers = 3, config.heads = config.kv_heads = 3;
  config.head_size = 8, config.ffn_width = 37;
  return config;
}

constexpr std::size_t B = 2, T = 12, micro_batches = 3;

ShardingOptions options_of(const char* strategy, int group_size) {
  return {.strategy = strategy, .shard_group_size = group_size, .batch = {B, T}, .plan = {.micro_batches = micro_batches}};
}

struct Sent {
  std::array<std::uint64_t, collective_kinds> by_kind{};
  std::uint64_t inter_node = 0;  // sent between nodes by groups that communicate by nodes
  void add(const Communicator& comm) {
    for (std::size_t k = 0; k < collective_kinds; ++k) by_kind[k] += comm.traffic().bytes_sent[k];
    if (const auto* const parts = dynamic_cast<const NodesCommunicator*>(&comm)) {
      const auto& bytes = parts->inter_node().traffic().bytes_sent;
      inter_node = std::accumulate(bytes.begin(), bytes.end(), inter_node);
    }
  }
};

struct Result {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> weights;  // this rank's shards, by unit
  bool operator==(const Result&) const = default;
};

/// Runs two updates. Returns this rank's results; *sent_by_update is the traffic of the second update.
Result train(Communicator& world, const ShardingOptions& options, CpuDeviceOptions how, Sent* sent_by_update,
             RankTraffic* predicted, Cluster cluster) {
  kernels::set_threads(1);
  const auto device = make_cpu_device(how);
  ShardedModel sharded(small_model(), options, world);
  Executor& executor = sharded.allocate(*device);
  executor.initialize_parameters(3);
  executor.publish_parameters();
  const auto sent = [&] {
    Sent all;
    all.add(world);
    all.add(sharded.mesh().shard());
    all.add(sharded.mesh().replicate());
    return all;
  };
  Result result;
  Sent before;
  for (std::uint64_t update = 1; update <= 2; ++update) {
    if (sent_by_update) before = sent();
    const UpdateResult done = executor.run_update(
        [&](std::size_t micro, std::int32_t* inputs, std::int32_t* targets) {
          for (std::int32_t i = 0; i < static_cast<std::int32_t>(B * T); ++i) {
            inputs[i] = (i * i + 3 * static_cast<std::int32_t>(micro) + world.rank()) % 101;
            targets[i] = (7 * i + static_cast<std::int32_t>(micro) + 5 * world.rank()) % 101;
          }
        },
        {.update = update,
         .learning_rate = 1e-2,
         .clip_norm = 1,
         .tokens = static_cast<double>(B * T * micro_batches * static_cast<std::size_t>(world.size()))});
    result.losses.push_back(done.loss);
    result.norms.push_back(done.gradient_norm);
  }
  for (std::size_t u = 0; u < sharded.layout().units().size(); ++u) result.weights.push_back(executor.parameters().values(u));
  if (sent_by_update) {
    *sent_by_update = sent();
    for (std::size_t k = 0; k < collective_kinds; ++k) sent_by_update->by_kind[k] -= before.by_kind[k];
    sent_by_update->inter_node -= before.inter_node;
    *predicted = traffic_of_rank(collectives_of_update(sharded.plan().update, micro_batches), sharded.mesh().shape, cluster,
                                 world.rank());
  }
  return result;
}

}  // namespace

BOOST_AUTO_TEST_CASE(training_gives_the_same_bits_and_sends_what_is_predicted) {
  const int size = world().size();
  for (const int per_node : {2, 3})
    for (const char* strategy : {"full", "grad-op", "optim", "none", "hybrid", "hybrid-grad-op"})
      for (const bool comm_thread : {false, true})
        BOOST_TEST_CONTEXT(strategy << ", " << per_node << " ranks of each node" << (comm_thread ? ", two threads" : "")) {
          if (size % per_node != 0) continue;
          const bool hybrid = std::string_view(strategy).starts_with("hybrid");
          const ShardingOptions options = options_of(strategy, hybrid ? per_node : 0);
          const auto nodes = session().world({.kind = "shm", .ranks_per_node = per_node});
          Sent sent;
          RankTraffic predicted;
          const Cluster cluster = {size / per_node, per_node};
          const Result ours = train(*nodes, options, {.communication_thread = comm_thread}, &sent, &predicted, cluster);
          Result theirs;
          run_ranks(size, [&](Communicator& threads) {
            Result result = train(threads, options, {}, nullptr, nullptr, cluster);
            if (threads.rank() == world().rank()) theirs = std::move(result);
          });
          BOOST_TEST((ours == theirs));
          BOOST_TEST(sent.by_kind == predicted.bytes_sent, boost::test_tools::per_element());
          // Here every sum and gather between nodes is done by nodes.
          if (!hybrid && per_node == 2) BOOST_TEST(sent.inter_node == predicted.between_nodes);
        }
}
