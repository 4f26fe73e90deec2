// The plan as data: what is in it, in which order, and what the memory of a run follows from.
#define BOOST_TEST_MODULE fsdp.plan
#include <map>

#include <boost/test/unit_test.hpp>

#include "base/error.hpp"
#include "fsdp/plan.hpp"

using namespace fsdp;

namespace {

TransformerConfig tiny(std::size_t layers) {
  TransformerConfig config;
  config.vocab_size = 33, config.max_positions = 8, config.width = 12, config.layers = layers,
  config.heads = config.kv_heads = 3;
  config.head_size = 4, config.ffn_width = 20;
  return config;
}

struct Built {
  Transformer model;
  Layout layout;
  Plan plan;
};

Built build(const char* strategy, std::size_t layers, int ranks, PlanOptions options, std::size_t blocks_per_unit = 1) {
  const Placement& row = find_placement(strategy);
  Transformer model(tiny(layers));
  Layout layout(model.parameters(), {blocks_per_unit}, mesh_shape(row, ranks).shard);
  options.optimizer_states = {"m", "v"};
  Plan plan = build_plan(layout, row, model_sizes(model, {2, 8}), options);
  return {std::move(model), std::move(layout), std::move(plan)};
}

std::size_t count(const std::vector<Operation>& list, OperationKind kind) {
  std::size_t n = 0;
  for (const Operation& op : list) n += op.kind == kind;
  return n;
}

/// Walks a list and holds every stage to weights that are there, every slot to one unit at a time.
void check_gathers(const Built& b, const std::vector<Operation>& list) {
  std::map<BufferId, int> holds;  // slot -> unit
  const auto in = [&](const std::vector<BufferId>& ids, BufferId id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  for (const Operation& op : list) {
    if (op.kind == OperationKind::all_gather) {
      BOOST_TEST(!holds.contains(op.writes[0]));  // the unit before was released
      holds[op.writes[0]] = op.unit;
    }
    if (op.block >= 0) {
      const int unit = static_cast<int>(b.layout.unit_of_block(static_cast<std::size_t>(op.block)));
      const BufferId slot = b.plan.whole_parameters[static_cast<std::size_t>(unit)];
      BOOST_TEST(in(op.reads, slot));
      BOOST_TEST_REQUIRE(holds.contains(slot));
      BOOST_TEST(holds[slot] == unit);
    }
    if (op.kind == OperationKind::head || op.kind == OperationKind::embedding_forward ||
        op.kind == OperationKind::embedding_backward)
      BOOST_TEST(holds.contains(b.plan.whole_parameters[0]));
    if (op.kind == OperationKind::release)
      BOOST_TEST(holds.erase(b.plan.whole_parameters[static_cast<std::size_t>(op.unit)]) == 1u);
  }
  BOOST_TEST(holds.empty());  // every gathered unit is released
}

}  // namespace

BOOST_AUTO_TEST_CASE(two_blocks_full_recomputed) {
  const Built b = build("full", 2, 4, {.checkpoint_activations = true});
  const std::string text = describe_operations(b.plan, b.plan.update, b.layout);
  const std::string expected =
      "   #  stream   operation               reads                                            writes                          "
      "           waits\n"
      "   0  compute  read batch                                                               inputs targets\n";
  BOOST_TEST(text.substr(0, 20) == expected.substr(0, 20));
  std::vector<std::string> order;
  for (const Operation& op : b.plan.update) {
    std::string what(name_of(op.kind));
    if (op.block >= 0)
      what += " " + std::to_string(op.block);
    else if (op.unit >= 0)
      what += " u" + std::to_string(op.unit);
    order.push_back(what);
  }
  const std::vector<std::string> wanted = {"read batch",        "all-gather u0",     "all-gather u1",
                                           "forward embedding", "all-gather u2",     "forward 0",
                                           "release u1",        "forward 1",         "head and loss u0",
                                           "all-gather u1",     "backward 1",        "release u2",
                                           "reduce-scatter u2", "recompute 0",       "backward 0",
                                           "release u1",        "reduce-scatter u1", "backward embedding u0",
                                           "release u0",        "reduce-scatter u0", "gradient norm",
                                           "optimizer"};
  BOOST_TEST(order == wanted, boost::test_tools::per_element());
  // The forward pass of the embedding waits for the root's gather, a block for its own, the optimizer for the norm.
  BOOST_TEST(b.plan.update[3].waits == std::vector<int>{1}, boost::test_tools::per_element());
  BOOST_TEST(b.plan.update[5].waits == std::vector<int>{2}, boost::test_tools::per_element());
  BOOST_TEST(b.plan.update[9].waits == std::vector<int>{6}, boost::test_tools::per_element());
  BOOST_TEST(b.plan.update[12].waits == std::vector<int>{10}, boost::test_tools::per_element());
  BOOST_TEST(b.plan.update.back().waits == std::vector<int>{20}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(full_gathers_each_block_twice_and_none_never) {
  for (std::size_t layers : {1u, 2u, 5u})
    for (std::size_t micro : {1u, 3u})
      for (std::size_t per_unit : {1u, 2u, 7u}) {
        const std::size_t units = (layers + per_unit - 1) / per_unit;
        const Built full = build("full", layers, 3, {.micro_batches = micro}, per_unit);
        check_gathers(full, full.plan.update);
        check_gathers(full, full.plan.evaluation);
        BOOST_TEST(count(full.plan.update, OperationKind::all_gather) ==
                   micro * (2 * units));  // the last unit once, the root once
        BOOST_TEST(count(full.plan.update, OperationKind::reduce_scatter) == micro * (units + 1));
        const Built none = build("none", layers, 3, {.micro_batches = micro}, per_unit);
        BOOST_TEST(count(none.plan.update, OperationKind::all_gather) == 0u);
        BOOST_TEST(count(none.plan.update, OperationKind::all_reduce) == units + 1);  // once, after the last micro-batch
        BOOST_TEST(none.plan.slot_bytes == 0u);
      }
}

BOOST_AUTO_TEST_CASE(live_buffers_never_overlap) {
  for (const char* strategy : {"full", "none"})
    for (bool recompute : {false, true})
      for (std::size_t layers : {1u, 2u, 6u}) {
        const Built b = build(strategy, layers, 2, {.micro_batches = 2, .checkpoint_activations = recompute});
        for (const auto* list : {&b.plan.update, &b.plan.evaluation}) {
          std::vector<BufferId> live;
          for (std::size_t id = 0; id < b.plan.buffers.size(); ++id)
            if (!b.plan.buffers[id].transient) live.push_back(static_cast<BufferId>(id));
          std::size_t peak = 0;
          for (const Operation& op : *list) {
            live.insert(live.end(), op.acquires.begin(), op.acquires.end());
            std::size_t sum = 0;
            for (BufferId x : live) {
              const PlanBuffer& one = b.plan.buffers[static_cast<std::size_t>(x)];
              sum += one.bytes;
              BOOST_TEST(one.offset + one.bytes <= (is_slot(one.role) ? b.plan.slot_bytes : b.plan.arena_bytes));
              for (BufferId y : live) {
                const PlanBuffer& other = b.plan.buffers[static_cast<std::size_t>(y)];
                if (x < y && is_slot(one.role) == is_slot(other.role))
                  BOOST_TEST((one.offset + one.bytes <= other.offset || other.offset + other.bytes <= one.offset));
              }
            }
            peak = std::max(peak, sum);
            for (const auto* ids : {&op.reads, &op.writes})
              for (BufferId id : *ids) BOOST_TEST((std::find(live.begin(), live.end(), id) != live.end()));
            for (BufferId id : op.frees) live.erase(std::find(live.begin(), live.end(), id));
          }
          if (list == &b.plan.update)
            BOOST_TEST(peak == b.plan.peak_bytes);
          else
            BOOST_TEST(peak <= b.plan.peak_bytes);
        }
      }
}

BOOST_AUTO_TEST_CASE(recomputation_and_sharding_save_memory) {
  const auto peak = [](const char* strategy, int ranks, bool recompute) {
    return build(strategy, 6, ranks, {.checkpoint_activations = recompute}).plan.peak_bytes;
  };
  BOOST_TEST(peak("full", 4, true) < peak("full", 4, false));
  BOOST_TEST(peak("full", 4, false) < peak("full", 2, false));
  BOOST_TEST(peak("none", 4, false) == peak("none", 1, false));
}

BOOST_AUTO_TEST_CASE(evaluation_alone_has_no_gradients) {
  const Built b = build("full", 3, 2, {.training = false});
  BOOST_TEST(b.plan.update.empty());
  for (const PlanBuffer& buffer : b.plan.buffers)
    BOOST_TEST((buffer.role != BufferRole::gradients && buffer.role != BufferRole::optimizer_state &&
                buffer.role != BufferRole::unreduced_gradients));
}
