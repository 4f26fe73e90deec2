// The plan as data: its operations, their order, and the buffers that determine the memory of a run.
#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <set>
#include <stdexcept>

#include <boost/test/unit_test.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "nn/transformer.hpp"
#include "plan/build/derive.hpp"
#include "plan/check/plan_check.hpp"
#include "plan/forget.hpp"
#include "plan/kind.hpp"
#include "plan/plan.hpp"
#include "support/places.hpp"

using namespace fsdp;
using test::offloaded;

namespace {

TransformerConfig tiny(std::size_t layers) {
  TransformerConfig config;
  config.vocab_size = 33, config.max_positions = 8, config.width = 12, config.layers = layers,
  config.heads = config.kv_heads = 3;
  config.head_size = 4, config.ffn_width = 20;
  return config;
}

struct Built {
  std::shared_ptr<const Transformer> model;
  Layout layout;
  Plan plan;
};

constexpr UnitTypes kept_in_bf16 = {DType::bf16, DType::f32, DType::bf16, DType::bf16};

Built build(const char* strategy, std::size_t layers, int ranks, PlanOptions options, WrapPolicy wrap = {},
            ParameterPatterns patterns = {}, const Optimizer& optimizer = adamw_optimizer(), UnitTypes types = {}) {
  patterns.rule_of = [&](const Parameter& parameter) -> const Rule& { return rule_of({.kind = &optimizer}, parameter); };
  const Placement& row = find_placement(strategy);
  const auto model = std::make_shared<const Transformer>(tiny(layers));
  Layout layout(model->parameters(), wrap_parameters(model->parameters(), wrap, patterns), mesh_shape(row, ranks, 2).shard,
                types);
  options.reduces = ranks > 1;
  Plan plan = build_plan(layout, row, model->sizes({2, 8}, types.parameter), options);
  check_plan(plan, layout, row, model->sizes({2, 8}, types.parameter), options.micro_batches);
  return {model, std::move(layout), std::move(plan)};
}

/// Returns true if check_plan() refuses the plan, which a test has changed.
bool refuses(const Built& b, const Placement& row, DType parameter, std::size_t micro_batches) {
  try {
    check_plan(b.plan, b.layout, row, b.model->sizes({2, 8}, parameter), micro_batches);
  } catch (const InternalError&) {
    return true;
  }
  return false;
}

std::size_t count(const std::vector<Operation>& list, const Kind& kind) {
  std::size_t n = 0;
  for (const Operation& op : list) n += op.kind == &kind;
  return n;
}

}  // namespace

BOOST_AUTO_TEST_CASE(two_blocks_full_recomputed) {
  const Built b = build("full", 2, 4, {.checkpoint_activations = true});
  std::vector<std::string> order;
  for (const Operation& op : b.plan.update) {
    std::string what(op.kind->name);
    if (op.block >= 0)
      what += " " + std::to_string(op.block);
    else if (op.unit >= 0)
      what += " u" + std::to_string(op.unit);
    order.push_back(what);
  }
  const std::vector<std::string> wanted = {
      "read batch",         "all-gather u0",     "all-gather u1", "forward embedding",  "all-gather u2",
      "forward 0",          "release u1",        "forward 1",     "head and loss",      "release u0",
      "all-gather u1",      "backward 1",        "release u2",    "reduce-scatter u2",  "squares u2",
      "recompute 0",        "backward 0",        "release u1",    "reduce-scatter u1",  "squares u1",
      "backward embedding", "reduce-scatter u0", "squares u0",    "all-reduce squares", "all-reduce loss",
      "gradient norm",      "optimizer u0",      "optimizer u1",  "optimizer u2"};
  BOOST_TEST(order == wanted, boost::test_tools::per_element());
  // The forward pass of the embedding waits for the root's gather, a block for its own, the optimizer for the norm.
  BOOST_TEST(b.plan.update[3].waits == std::vector<int>{1}, boost::test_tools::per_element());
  BOOST_TEST(b.plan.update[5].waits == std::vector<int>{2}, boost::test_tools::per_element());
  BOOST_TEST(b.plan.update[10].waits == std::vector<int>{6}, boost::test_tools::per_element());
  BOOST_TEST(b.plan.update[13].waits == std::vector<int>{11}, boost::test_tools::per_element());
  BOOST_TEST(b.plan.update[26].waits == std::vector<int>{25}, boost::test_tools::per_element());
}

// The sections of an update follow each other: the section of forward and backward has no operation of the optimizer.
BOOST_AUTO_TEST_CASE(an_update_has_three_sections) {
  for (const char* strategy : {"full", "optim", "none", "hybrid"})
    for (const Optimizer* rule : {&adamw_optimizer(), &find_optimizer("muon"), &find_optimizer("lamb")}) {
      const Plan plan = build(strategy, 3, 4, {.micro_batches = 2}, {}, {}, *rule).plan;
      const auto [forward_backward, norm] = plan.sections;
      BOOST_TEST_REQUIRE((0 < forward_backward && forward_backward < norm && norm < plan.update.size()));
      for (std::size_t i = 0; i < plan.update.size(); ++i) {
        const Operation& op = plan.update[i];
        const auto is_one_of = [&](std::initializer_list<const Kind*> some) {
          return std::find(some.begin(), some.end(), op.kind) != some.end();
        };
        const bool of_optimizer = is_one_of({&kinds::optimizer, &kinds::statistics, &kinds::all_reduce_statistics,
                                             &kinds::directions, &kinds::all_gather_directions, &kinds::whole_matrices,
                                             &kinds::reduce_scatter_directions, &kinds::all_reduce_directions});
        const bool of_norm = is_one_of({&kinds::gradient_norm, &kinds::all_reduce_squares, &kinds::all_reduce_loss});
        BOOST_TEST(of_norm == (i >= forward_backward && i < norm));
        if (of_optimizer) BOOST_TEST(i >= norm);
        if (i >= norm) BOOST_TEST((of_optimizer || op.kind == &kinds::all_gather_parameters));
      }
    }
}

BOOST_AUTO_TEST_CASE(full_gathers_each_block_twice_and_none_never) {
  for (std::size_t layers : {1u, 2u, 5u})
    for (std::size_t micro : {1u, 3u})
      for (std::size_t per_unit : {1u, 2u, 7u}) {
        const std::size_t units = (layers + per_unit - 1) / per_unit;
        const Built full = build("full", layers, 3, {.micro_batches = micro}, {per_unit});
        BOOST_TEST(count(full.plan.update, kinds::all_gather_parameters) ==
                   micro * (2 * units));  // the last unit and the root are gathered once
        BOOST_TEST(count(full.plan.update, kinds::reduce_scatter_gradient) == micro * (units + 1));
        const Built none = build("none", layers, 3, {.micro_batches = micro}, {per_unit});
        BOOST_TEST(count(none.plan.update, kinds::all_gather_parameters) == 0u);
        // One all-reduce for each unit's gradient, after the last micro-batch, one for the squares, and one for the loss.
        BOOST_TEST(count(none.plan.update, kinds::all_reduce_gradient) == units + 1);
        for (const Kind* kind : {&kinds::all_reduce_squares, &kinds::all_reduce_loss})
          BOOST_TEST(count(none.plan.update, *kind) == 1u);
        BOOST_TEST(none.plan.bytes_in(spaces::slots) == 0u);
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
              if (one.space->tier == Tier::device) sum += one.bytes;
              BOOST_TEST(one.offset + one.bytes <= b.plan.bytes_in(*one.space));
              for (BufferId y : live) {
                const PlanBuffer& other = b.plan.buffers[static_cast<std::size_t>(y)];
                if (x < y && one.space == other.space)
                  BOOST_TEST((one.offset + one.bytes <= other.offset || other.offset + other.bytes <= one.offset));
              }
            }
            peak = std::max(peak, sum);
            for (const Operand& operand : op.operands)
              BOOST_TEST((std::find(live.begin(), live.end(), operand.place.buffer) != live.end()));
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

// The first N blocks are recomputed, in one buffer for saved activations; each kept block but the first has its own. All but
// the last block are those of checkpoint_activations.
BOOST_AUTO_TEST_CASE(the_first_blocks_are_recomputed) {
  const auto recomputed = [](const Plan& plan) {
    std::vector<int> blocks;
    for (const Operation& op : plan.update)
      if (op.kind == &kinds::recompute) blocks.push_back(op.block);
    return blocks;
  };
  const auto saved = [](const Plan& plan) {
    return std::count_if(plan.buffers.begin(), plan.buffers.end(),
                         [](const PlanBuffer& buffer) { return buffer.name.starts_with("saved"); });
  };
  std::size_t before = build("full", 6, 4, {}).plan.peak_bytes;
  for (const std::size_t n : {1u, 2u, 4u, 5u, 6u}) {
    const Plan plan = build("full", 6, 4, {.recomputed_blocks = n}).plan;
    std::vector<int> wanted;  // backward begins with the last block, which is never recomputed
    for (int b = static_cast<int>(std::min<std::size_t>(n, 5)) - 1; b >= 0; --b) wanted.push_back(b);
    BOOST_TEST(recomputed(plan) == wanted, boost::test_tools::per_element());
    BOOST_TEST(saved(plan) == 6 - static_cast<int>(std::min<std::size_t>(n, 5)));
    BOOST_TEST((n == 6 ? plan.peak_bytes == before : plan.peak_bytes < before));
    before = plan.peak_bytes;
  }
  BOOST_TEST(before == build("full", 6, 4, {.checkpoint_activations = true}).plan.peak_bytes);
}

// One rank has no reductions. Its fp32 gradients have slots only if they are rounded: one slot if recomputation hides that.
BOOST_AUTO_TEST_CASE(one_rank_has_no_slots_for_reductions) {
  const auto slots = [](const char* strategy, int ranks, const UnitTypes& types, std::size_t recomputed = 3) {
    const Plan plan = build(strategy, 4, ranks, {.recomputed_blocks = recomputed}, {}, {}, adamw_optimizer(), types).plan;
    return std::count_if(plan.buffers.begin(), plan.buffers.end(),
                         [](const PlanBuffer& buffer) { return buffer.name == "Q0" || buffer.name == "Q1"; });
  };
  for (const char* strategy : {"full", "grad-op", "optim", "none"}) {
    BOOST_TEST(slots(strategy, 1, {}) == 0, strategy);
    BOOST_TEST(slots(strategy, 1, kept_in_bf16) == 1, strategy);
    BOOST_TEST(slots(strategy, 1, kept_in_bf16, 2) == 2, strategy);
    BOOST_TEST(slots(strategy, 2, kept_in_bf16) == 2, strategy);
  }
}

BOOST_AUTO_TEST_CASE(evaluation_alone_has_no_gradients) {
  const Built b = build("full", 3, 2, {.training = false});
  BOOST_TEST(b.plan.update.empty());
  for (const PlanBuffer& buffer : b.plan.buffers)
    BOOST_TEST((buffer.role != BufferRole::gradients && buffer.role != BufferRole::optimizer_state &&
                buffer.role != BufferRole::unreduced_gradients));
}

// Buffers that both use have the larger size; the sizes of an evaluation are checked.
BOOST_AUTO_TEST_CASE(an_evaluation_has_a_batch_of_its_own) {
  for (const char* strategy : {"full", "none"})
    for (const bool recomputes : {false, true})
      for (const std::size_t B : {1u, 5u}) {
        Built b = build(strategy, 3, 2, {.micro_batches = 2, .checkpoint_activations = recomputes});
        const Placement& row = find_placement(strategy);
        const ModelSizes sizes = b.model->sizes({2, 8}), evaluated = b.model->sizes({B, 8});
        const Plan same = std::exchange(
            b.plan, build_plan(b.layout, row, sizes, {.micro_batches = 2, .checkpoint_activations = recomputes}, &evaluated));
        check_plan(b.plan, b.layout, row, sizes, 2, &evaluated);
        const auto bytes = [&](const Plan& plan, BufferId id) { return plan.buffers[static_cast<std::size_t>(id)].bytes; };
        BOOST_TEST(bytes(b.plan, b.plan.inputs) >= std::max(sizes.inputs, evaluated.inputs));
        BOOST_TEST(bytes(b.plan, b.plan.tokens) ==
                   2 * std::max(2 * (sizes.inputs + sizes.targets), evaluated.inputs + evaluated.targets));
        BOOST_TEST((b.plan.peak_bytes > same.peak_bytes) == (B > 2));
        BOOST_TEST((b.plan.update.size() == same.update.size() && b.plan.evaluation.size() == same.evaluation.size()));
        if (B == 5u) BOOST_CHECK_THROW(check_plan(same, b.layout, row, sizes, 2, &evaluated), InternalError);
      }
}

namespace {

/// Returns the error of check_plan() for a plan that `worsen` has changed.
std::string complaint(const char* strategy, PlanOptions options, const std::function<void(Plan&)>& worsen,
                      const Optimizer& optimizer = adamw_optimizer(), UnitTypes types = {}) {
  Built b = build(strategy, 3, 4, options, {}, {}, optimizer, types);
  worsen(b.plan);
  try {
    check_plan(b.plan, b.layout, find_placement(strategy), b.model->sizes({2, 8}, types.parameter), options.micro_batches);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "sound";
}

std::size_t index_of(const Plan& plan, const Kind& kind, int which = 0) {
  for (std::size_t i = 0; i < plan.update.size(); ++i)
    if (plan.update[i].kind == &kind && which-- == 0) return i;
  throw std::logic_error("no such operation");
}

Operation& operation(Plan& plan, const Kind& kind, int which = 0) { return plan.update[index_of(plan, kind, which)]; }

Location& place_of(Operation& op, OperandName name) { return const_cast<Location&>(op.at(name)); }

using test::forget;
void forget(Plan& plan, const Kind& kind, int which = 0) { forget(operation(plan, kind, which)); }

/// Replaces the second operation of a kind by the first one.
void repeat_the_first(Plan& plan, const Kind& kind) {
  const Operation& first = operation(plan, kind);
  Operation& second = operation(plan, kind, 1);
  second.unit = first.unit, second.count = first.count, second.operands = first.operands;
}

/// What check_plan() says of a plan of two micro-batches that `worsen` has changed; "sound" if nothing.
std::string complaint_of(const Layout& layout, const Placement& placement, const ModelSizes& sizes, const PlanOptions& options,
                         const std::function<void(Plan&)>& worsen) {
  Plan plan = build_plan(layout, placement, sizes, options);
  worsen(plan);
  try {
    check_plan(plan, layout, placement, sizes, 2);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "sound";
}

// Checks that text says part, and that it says nothing else where part is "sound".
void check_complaint(const std::string& text, const std::string& part) {
  const bool says = part == "sound" ? text == part : text.find(part) != std::string::npos;
  BOOST_TEST(says, "\"" << text << "\" does not say \"" << part << "\"");
}

}  // namespace

// A loss that sees the rows of all ranks finds them, and the sum of their gradients is added, in each micro-batch.
BOOST_AUTO_TEST_CASE(rows_of_all_ranks_are_gathered_for_the_loss) {
  using namespace kinds;
  const auto model = std::make_shared<const Transformer>(tiny(2));
  const Placement& full = find_placement("full");
  const Layout layout(model->parameters(), wrap_parameters(model->parameters(), {}), 2);
  ModelSizes sizes = model->sizes({2, 8}, DType::f32);
  sizes.gathered_from = 2;
  const auto said = [&](const std::function<void(Plan&)>& worsen) {
    return complaint_of(layout, full, sizes, {.micro_batches = 2}, worsen);
  };
  BOOST_TEST(said([](Plan&) {}) == "sound");
  for (const int micro_batch : {0, 1}) {
    check_complaint(said([&](Plan& p) { forget(p, gather_outputs, micro_batch); }), "but needs the outputs of all ranks");
    check_complaint(said([&](Plan& p) { forget(p, gather_targets, micro_batch); }), "but needs the targets of all ranks");
    check_complaint(said([&](Plan& p) { forget(p, scatter_outputs, micro_batch); }), "but needs the gradient of activations");
  }
  check_complaint(said([](Plan& p) { operation(p, scatter_outputs).group = GroupAxis::shard; }), "another group of ranks");
  check_complaint(said([](Plan& p) { operation(p, gather_outputs).count /= 2; }), "elements instead of");
  check_complaint(said([](Plan& p) { operation(p, scatter_outputs).waits.clear(); }), "does not wait for operation");
  check_complaint(said([](Plan& p) { operation(p, head).waits.clear(); }), "does not wait for operation");
  check_complaint(said([](Plan& p) {  // the sum is added twice
                    Operation& next = p.update[index_of(p, scatter_outputs) + 1];
                    next.kind = &scatter_outputs, next.operands = operation(p, scatter_outputs).operands;
                    next.count = operation(p, scatter_outputs).count, next.group = GroupAxis::world;
                    next.unit = -1, next.block = -1, next.stage = operation(p, scatter_outputs).stage;
                    next.stream = StreamId::reduce;
                  }),
                  "but needs");
}

// A unit of state has no part in clipping and in the average of the parameters, and its layer's passes gather in updates only.
BOOST_AUTO_TEST_CASE(state_of_layers_and_what_layers_gather) {
  using namespace kinds;
  const auto model = std::make_shared<const Transformer>(tiny(2));
  std::vector<Parameter> parameters = model->parameters();
  const auto state = std::ranges::find_if(parameters, [](const Parameter& one) { return one.name.ends_with("h.1.ln_1.bias"); });
  state->momentum = 0.1f;
  const auto u_of_state = [&](const Layout& layout) {
    return layout.units_of_parameters()[static_cast<std::size_t>(state - parameters.begin())];
  };
  for (const char* const strategy : {"full", "grad-op", "optim"}) {
    const Placement& placement = find_placement(strategy);
    const Layout layout(parameters, wrap_parameters(parameters, {}), 2, {.parameter = DType::bf16, .gradient = DType::bf16});
    const std::size_t u = u_of_state(layout);
    BOOST_TEST((layout.units()[u].types == UnitTypes()));
    BOOST_TEST(layout.units()[u].parameters.size() == 1u);
    ModelSizes sizes = model->sizes({2, 8}, DType::bf16);
    sizes.gathers = {0, 6}, sizes.gathered_in_layers = 48;
    const PlanOptions options = {.micro_batches = 2, .checkpoint_activations = true, .average_weights = true};
    const auto said = [&](const std::function<void(Plan&)>& worsen) {
      return complaint_of(layout, placement, sizes, options, worsen);
    };
    BOOST_TEST(said([](Plan&) {}) == "sound");
    const Plan plan = build_plan(layout, placement, sizes, options);
    std::size_t gathers = 0;
    for (const auto* list : lists_of(plan))
      for (const Operation& op : *list) {
        if (op.unit == static_cast<int>(u)) BOOST_TEST((op.kind != &average && op.kind != &clip_values));
        if (op.find(OperandName::in_layers)) {
          BOOST_TEST((op.block == 1 && op.count == 6 && op.group == GroupAxis::world && list == &plan.update));
          ++gathers;
        }
      }
    BOOST_TEST(gathers == 4u);  // the last block is not recomputed
    check_complaint(said([](Plan& p) {
                      Operation& op = *std::ranges::find_if(p.update, [](const Operation& one) { return one.count == 6; });
                      std::erase_if(op.operands, [](const Operand& one) { return one.name == OperandName::in_layers; });
                    }),
                    "does not have memory for what its layer gathers");
    check_complaint(
        said([](Plan& p) { std::ranges::find_if(p.update, [](const Operation& one) { return one.count == 6; })->count = 3; }),
        "works on 3 elements instead of 6");
    check_complaint(said([&](Plan& p) {
                      for (Operation& op : p.update)
                        if (op.unit == static_cast<int>(u) && op.kind == &optimizer) op.kind = &average;
                    }),
                    "the plan is not sound");
    check_complaint(said([&](Plan& p) {  // the last micro-batch is not added
                      for (Operation& op : p.update)
                        if (op.unit == static_cast<int>(u) && op.kind == &reduce_scatter_gradient && op.micro_batch == 1)
                          forget(op);
                    }),
                    strategy == std::string("full") ? "lacks micro-batch" : "the plan is not sound");
  }
}

// The first stage of a tower is a block that reads the inputs of the batch. If it is an embedding, its backward pass reads no
// parameters.
BOOST_AUTO_TEST_CASE(blocks_that_read_inputs) {
  using namespace kinds;
  const auto model = std::make_shared<const Transformer>(tiny(3));
  const Placement& full = find_placement("full");
  const Layout layout(model->parameters(), wrap_parameters(model->parameters(), {}), 2);
  ModelSizes sizes = model->sizes({2, 8}, DType::f32);
  sizes.input_blocks = {1}, sizes.embedding_blocks = {1}, sizes.saved.at(1) = sizes.kept.at(1) = 0;  // it saves nothing
  const auto said = [&](const std::function<void(Plan&)>& worsen, std::size_t recomputed = 0) {
    return complaint_of(layout, full, sizes, {.micro_batches = 2, .recomputed_blocks = recomputed, .input_gradients = true},
                        worsen);
  };
  const auto of_block = [](Plan& p, const Kind& kind, int block) -> Operation& {
    return *std::ranges::find_if(p.update, [&](const Operation& op) { return op.kind == &kind && op.block == block; });
  };
  const auto count = [](const Plan& p, const Kind& kind) { return std::ranges::count(p.update, &kind, &Operation::kind); };
  const auto erase = [](Operation& op, OperandName name) {
    std::erase_if(op.operands, [&](const Operand& operand) { return operand.name == name; });
  };
  BOOST_TEST(said([&](Plan& p) {
               for (const Kind* const kind : {&block_forward, &block_backward})
                 for (const int b : {0, 1, 2})
                   BOOST_TEST((of_block(p, *kind, b).find(OperandName::inputs) != nullptr) == (b == 1));
               BOOST_TEST(!of_block(p, block_backward, 1).find(OperandName::weights));
             }) == "sound");
  // Alone in its segment, it has nothing to recompute.
  BOOST_TEST(said([&](Plan& p) { BOOST_TEST(count(p, recompute) == 2); }, 2) == "sound");
  check_complaint(said([&](Plan& p) { erase(of_block(p, block_forward, 1), OperandName::inputs); }),
                  "does not have the inputs");
  check_complaint(said([&](Plan& p) { erase(of_block(p, block_backward, 1), OperandName::inputs); }),
                  "does not have the inputs");
  check_complaint(said([&](Plan& p) {
                    Operation& other = of_block(p, block_forward, 0);
                    other.operands.insert(other.operands.begin(), {OperandName::inputs, p.inputs});
                  }),
                  "(forward block 0) does not have its input");
  check_complaint(said([&](Plan& p) { test::forget(of_block(p, block_forward, 1)); }), "but needs its output of stage 2");
  check_complaint(said([&](Plan& p) { test::forget(of_block(p, block_backward, 1)); }), "a gradient that does not exist");
  check_complaint(said([&](Plan& p) { std::swap(of_block(p, block_forward, 0), of_block(p, block_forward, 1)); }),
                  "but needs its output of stage 1");
}

// Backward reaches all blocks, also those before the first trained one, and contributes to no gradient.
BOOST_AUTO_TEST_CASE(a_list_for_gradients_of_inputs) {
  const auto frozen = [](std::size_t blocks) {
    ParameterPatterns patterns;
    for (std::size_t b = 0; b < blocks; ++b) patterns.freeze.push_back(format("*h.{}.*", b));
    if (blocks > 0) patterns.freeze.emplace_back("*wte*"), patterns.freeze.emplace_back("*wpe*");
    return patterns;
  };
  for (const char* strategy : {"full", "grad-op", "optim", "none", "hybrid"})
    for (const std::size_t recomputed : {0u, 2u, 9u})
      for (const std::size_t blocks : {0u, 2u, 4u}) {
        PlanOptions options = {.micro_batches = 2};
        (recomputed == 9 ? void(options.checkpoint_activations = true) : void(options.recomputed_blocks = recomputed));
        const Built before = build(strategy, 4, 4, options, {}, frozen(blocks));
        options.input_gradients = true;
        const Built b = build(strategy, 4, 4, options, {}, frozen(blocks));
        BOOST_TEST(before.plan.input_gradients.empty());
        BOOST_TEST(count(b.plan.input_gradients, kinds::block_backward_for_inputs) == 4u);
        for (const Operation& op : b.plan.input_gradients) BOOST_TEST(!op.find(OperandName::gradients));
        BOOST_TEST((b.plan.peak_bytes > before.plan.peak_bytes) == (blocks > 0));
        BOOST_TEST(b.plan.update.size() == before.plan.update.size());
      }
}

BOOST_AUTO_TEST_CASE(a_broken_plan_is_named) {
  using namespace kinds;
  using enum OperandName;
  const PlanOptions two = {.micro_batches = 2};
  check_complaint(complaint("full", two, [](Plan&) {}), "sound");
  const PlanOptions with_inputs = {.input_gradients = true};
  check_complaint(complaint("full", with_inputs,
                            [](Plan& p) {
                              std::erase_if(p.input_gradients, [](const Operation& op) {
                                return op.kind == &block_backward_for_inputs && op.block == 0;
                              });
                            }),
                  "does not leave the gradient of the inputs");
  check_complaint(complaint("full", with_inputs, [](Plan& p) { p.evaluation.push_back(operation(p, optimizer)); }), "changes ");
  // Order.
  check_complaint(complaint("full", two, [](Plan& p) { operation(p, block_forward).waits.clear(); }),
                  "does not wait for operation");
  check_complaint(complaint("full", two, [](Plan& p) { operation(p, reduce_scatter_gradient).waits.clear(); }),
                  "does not wait for operation");
  check_complaint(complaint("full", two, [](Plan& p) { operation(p, optimizer).waits.clear(); }), "does not wait for");
  check_complaint(complaint("full", two,
                            [](Plan& p) {
                              operation(p, block_backward).operands.push_back({gradients, p.whole_gradients[1]});
                            }),
                  "that its kind does not list at this position");
  check_complaint(complaint("full", two, [](Plan& p) { operation(p, all_gather_parameters, 4).waits.clear(); }),
                  "does not wait for operation");
  check_complaint(complaint("full", two, [](Plan& p) { operation(p, block_forward).waits = {400}; }),
                  "waits for a later operation");
  check_complaint(complaint("full", two,
                            [](Plan& p) {
                              Operation& op = operation(p, embedding_forward);
                              op.stream = StreamId::gather, op.waits = {0, 1, 2};
                            }),
                  "on another stream than compute");
  // Gathers.
  check_complaint(complaint("full", two, [](Plan& p) { forget(p, all_gather_parameters, 2); }),
                  "but needs the whole parameters of");
  check_complaint(complaint("full", two, [](Plan& p) { forget(p, release); }), "which is not released");
  check_complaint(complaint("grad-op", two, [](Plan& p) { forget(p, release, 7); }), "still gathered");
  check_complaint(
      complaint("full", two, [](Plan& p) { p.update.push_back(operation(p, release)), p.update.back().micro_batch = 1; }),
      "finds nothing, but needs");
  // Gradients.
  for (const char* strategy : {"full", "optim"}) {
    check_complaint(complaint(strategy, two, [](Plan& p) { forget(p, reduce_scatter_gradient, 1); }),
                    strategy == std::string("full") ? "not reduced" : "lacks micro-batch 0");
    check_complaint(complaint(strategy, two, [](Plan& p) { forget(p, block_backward, 1); }),
                    strategy == std::string("full") ? "reduces a gradient that does not exist" : "adds to the gradient");
  }
  check_complaint(complaint("full", two, [](Plan& p) { operation(p, reduce_scatter_gradient, 5).accumulate = false; }),
                  "overwrites a gradient that is reduced already");
  check_complaint(complaint("full", two, [](Plan& p) { operation(p, reduce_scatter_gradient).accumulate = true; }),
                  "does not exist");
  check_complaint(complaint("none", two, [](Plan& p) { operation(p, block_backward, 4).accumulate = false; }),
                  "which is not reduced");
  check_complaint(complaint("full", two, [](Plan& p) { operation(p, block_backward).accumulate = true; }),
                  "may hold another unit's gradient");
  check_complaint(complaint("none", two, [](Plan& p) { forget(p, all_reduce_gradient); }), "not summed over all ranks");
  check_complaint(complaint("hybrid", two, [](Plan& p) { forget(p, all_reduce_gradient, 2); }), "not summed over all ranks");
  check_complaint(complaint("none", two, [](Plan& p) { repeat_the_first(p, all_reduce_gradient); }), "twice");
  // Norm and optimizer.
  check_complaint(complaint("full", two, [](Plan& p) { forget(p, add_squares, 1); }), "does not include the gradient of");
  check_complaint(complaint("full", two, [](Plan& p) { repeat_the_first(p, add_squares); }), "counts a gradient twice");
  check_complaint(complaint("full", two, [](Plan& p) { forget(p, gradient_norm); }), "comes before the gradient norm");
  check_complaint(complaint("full", two, [](Plan& p) { forget(p, optimizer, 3); }), "is not updated");
  check_complaint(complaint("full", two, [](Plan& p) { repeat_the_first(p, optimizer); }), "updates parameters twice");
  for (const auto& [kind, wrong] :
       {std::pair(&all_reduce_gradient, GroupAxis::shard), std::pair(&all_reduce_gradient, GroupAxis::world),
        std::pair(&all_reduce_squares, GroupAxis::world), std::pair(&all_reduce_loss, GroupAxis::shard)})
    check_complaint(complaint("hybrid", two, [&](Plan& p) { operation(p, *kind).group = wrong; }),
                    "has another group of ranks");
  check_complaint(complaint("hybrid", two, [&](Plan& p) { operation(p, all_gather_parameters).group = GroupAxis::world; }),
                  "has another group of ranks");
  check_complaint(complaint("full", two, [](Plan& p) { p.whole_gradients[1] = p.gradients[1]; }), "the gradient of ");
  const PlanOptions clipping = {.micro_batches = 2, .clip_values = true};
  check_complaint(complaint("full", clipping, [](Plan&) {}), "sound");
  check_complaint(complaint("full", clipping, [](Plan& p) { forget(p, clip_values, 1); }),
                  "has no 'clip values', unlike other units");
  check_complaint(complaint("full", clipping, [](Plan& p) { repeat_the_first(p, clip_values); }), "runs twice on a gradient");
  check_complaint(complaint("full", clipping, [](Plan& p) { operation(p, clip_values).count -= 1; }), "elements instead of");
  check_complaint(complaint("full", clipping, [](Plan& p) { place_of(operation(p, clip_values), gradient) = p.gradients[1]; }),
                  "has the gradient in another place");
  check_complaint(complaint("full", clipping, [](Plan& p) { operation(p, clip_values).waits.clear(); }), "does not wait for");
  check_complaint(complaint("full", clipping, [](Plan& p) { p.update.push_back(operation(p, clip_values)); }),
                  "changes a gradient that the optimizer has read");
  check_complaint(complaint(
                      "full", clipping, [](Plan& p) { std::swap(operation(p, upcast_gradient), operation(p, clip_values)); },
                      adamw_optimizer(), kept_in_bf16),
                  "overwrites the result of 'clip values', which nothing has read");
  const PlanOptions averaging = {.micro_batches = 2, .average_weights = true};
  check_complaint(complaint("full", averaging, [](Plan&) {}), "sound");
  check_complaint(complaint("full", averaging, [](Plan& p) { forget(p, kinds::average); }), "has not moved");
  check_complaint(complaint("full", averaging, [](Plan& p) { repeat_the_first(p, kinds::average); }), "runs twice");
  check_complaint(complaint("full", averaging, [](Plan& p) { operation(p, kinds::average).count -= 1; }),
                  "elements instead of");
  check_complaint(
      complaint("full", averaging, [](Plan& p) { std::swap(operation(p, optimizer), operation(p, kinds::average)); }),
      "comes before the parameters are updated");
  check_complaint(complaint("full", averaging,
                            [](Plan& p) { place_of(operation(p, kinds::average), OperandName::average) = p.averages[1]; }),
                  "in another place");
  check_complaint(complaint(
                      "full", averaging, [](Plan& p) { std::swap(operation(p, round_master), operation(p, kinds::average)); },
                      adamw_optimizer(), kept_in_bf16),
                  "comes before the parameters are rounded");
  // Memory.
  check_complaint(complaint("full", two, [](Plan& p) { p.peak_bytes -= 64; }), "with a peak of");
  check_complaint(complaint("full", two, [](Plan& p) { p.buffers[static_cast<std::size_t>(p.scratch)].offset = 0; }),
                  "in the same memory");
  check_complaint(complaint("full", two, [](Plan& p) { p.spaces.front().bytes -= 64; }), "beyond the end of its space");
  check_complaint(
      complaint("full", two,
                [](Plan& p) { operation(p, block_forward, 1).frees.push_back(operation(p, block_forward).at(saved).buffer); }),
      "not acquired yet or already freed");
}

BOOST_AUTO_TEST_CASE(sums_in_another_order_are_named) {
  using namespace kinds;
  using enum OperandName;
  const PlanOptions seven = {.micro_batches = 7, .invariant = true};
  // The first unit that is reduced: in `full`, reductions of micro-batches 1, 3, 5 add to a sum, {2, 3} is added to {0, 1}, ...
  const Kind& of_gradients = reduce_scatter_gradient;
  for (const char* strategy : {"full", "hybrid", "none"}) check_complaint(complaint(strategy, seven, [](Plan&) {}), "sound");
  check_complaint(complaint("full", seven, [&](Plan& p) { operation(p, of_gradients, 4).accumulate = false; }),
                  "overwrites a sum that is not added yet");
  check_complaint(complaint("full", seven, [&](Plan& p) { operation(p, of_gradients).accumulate = true; }),
                  "adds to a gradient that does not exist");
  check_complaint(complaint("full", seven, [&](Plan& p) { place_of(operation(p, of_gradients), sum) = p.gradients[1]; }),
                  "has its sum in another place than the plan");
  check_complaint(complaint("full", seven,
                            [&](Plan& p) {  // micro-batch 2 is added to {0, 1} alone
                              Operation& op = operation(p, of_gradients, 8);
                              op.accumulate = true, place_of(op, sum) = p.gradients[static_cast<std::size_t>(op.unit)];
                            }),
                  "adds in another order than the canonical one");
  check_complaint(complaint("full", seven, [](Plan& p) { forget(p, sum_gradients); }),
                  "overwrites a sum that is not added yet");
  check_complaint(complaint("full", seven, [](Plan& p) { repeat_the_first(p, sum_gradients); }),
                  "adds a sum that does not exist");
  check_complaint(complaint("full", seven, [](Plan& p) { operation(p, sum_gradients).count -= 1; }), "elements instead of");
  check_complaint(complaint("full", seven, [](Plan& p) { operation(p, sum_gradients).operands.pop_back(); }),
                  "does not have its sum");
  check_complaint(complaint("full", seven, [](Plan& p) { operation(p, sum_gradients).accumulate = false; }),
                  "overwrites a sum that is not added yet");
  check_complaint(complaint("none", seven, [](Plan& p) { forget(p, all_reduce_gradient); }), "not summed over all ranks");
  check_complaint(complaint("hybrid", seven, [](Plan& p) { forget(p, all_reduce_gradient); }), "not summed over all ranks");
  check_complaint(complaint("hybrid", seven,
                            [](Plan& p) {  // for a sum of two micro-batches
                              Operation& op = operation(p, sum_gradients);
                              op.kind = &all_reduce_gradient, op.group = GroupAxis::replicate, op.accumulate = false;
                              op.operands = {{sum, op.at(to)}};
                            }),
                  "sums over the ranks twice, or after other micro-batches were added");
  check_complaint(complaint("full", {.micro_batches = 2},
                            [](Plan& p) {
                              Operation& op = operation(p, add_squares);
                              op.kind = &sum_gradients;
                              op.operands = {{from, op.at(gradient)}, {to, op.at(gradient)}};
                            }),
                  "in this plan the reductions do that");
  // The last sums of seven: {4, 5} and 6, then all.
  check_complaint(complaint("full", seven,
                            [](Plan& p) {
                              const auto last = std::find_if(p.update.rbegin(), p.update.rend(),
                                                             [](const Operation& op) { return op.kind == &sum_gradients; });
                              forget(*last);
                            }),
                  "lacks a micro-batch");
}

BOOST_AUTO_TEST_CASE(a_broken_update_is_named) {
  using namespace kinds;
  using enum OperandName;
  const auto check_named = [](const Optimizer& optimizer, const char* strategy, const std::function<void(Plan&)>& worsen,
                              const std::string& part) { check_complaint(complaint(strategy, {}, worsen, optimizer), part); };
  // Sums over whole tensors.
  for (const Optimizer* const kind : {&lamb_optimizer(), &adafactor_optimizer()}) {
    const auto check_sums = [&](const std::function<void(Plan&)>& worsen, const std::string& part) {
      for (const char* strategy : {"full", "none", "hybrid"}) check_named(*kind, strategy, worsen, part);
    };
    check_sums([](Plan&) {}, "sound");
    check_sums([](Plan& p) { forget(p, statistics, 1); }, "does not include the statistics of");
    check_sums([](Plan& p) { forget(p, all_reduce_statistics); },
               kind == &lamb_optimizer() ? "comes before its statistics" : "comes before round 0");
    check_sums([](Plan& p) { repeat_the_first(p, statistics); }, "computes a round twice");
    check_sums([](Plan& p) { operation(p, statistics).waits.clear(); }, "does not wait for operation");
    check_sums([](Plan& p) { operation(p, all_reduce_statistics).waits.clear(); }, "does not wait for operation");
    check_sums([](Plan& p) { operation(p, optimizer).waits.clear(); }, "does not wait for operation");
  }
  check_named(
      adafactor_optimizer(), "full", [](Plan& p) { forget(p, all_reduce_statistics, 1); }, "comes before its statistics");
  check_named(
      adafactor_optimizer(), "full", [](Plan& p) { operation(p, all_reduce_statistics, 1).round = 0; },
      "has the statistics of its round in another place than the plan");
  // Whole matrices.
  const auto check_matrices = [&](const char* strategy, const std::function<void(Plan&)>& worsen, const std::string& part) {
    check_named(muon_optimizer(), strategy, worsen, part);
  };
  for (const char* strategy : {"full", "optim", "none", "hybrid"}) {
    check_matrices(
        strategy, [](Plan&) {}, "sound");
    check_matrices(
        strategy, [](Plan& p) { forget(p, directions); },
        strategy == std::string("none") ? "not whole" : "gathers directions that are not computed");
    check_matrices(
        strategy, [](Plan& p) { forget(p, whole_matrices); },
        strategy == std::string("none") ? "sums directions that do not exist" : "returns matrices");
    check_matrices(
        strategy,
        [](Plan& p) {
          Operation again = operation(p, directions);
          again.waits.resize(p.update.size());
          std::iota(again.waits.begin(), again.waits.end(), 0);
          p.update.push_back(again);
        },
        "twice");
    check_matrices(
        strategy, [](Plan& p) { operation(p, whole_matrices).waits.clear(); },
        strategy == std::string("none") ? "sound" : "does not wait for operation");
  }
  for (const char* strategy : {"full", "optim", "hybrid"}) {
    check_matrices(
        strategy, [](Plan& p) { forget(p, all_gather_directions, 1); }, "not whole");
    check_matrices(
        strategy, [](Plan& p) { forget(p, reduce_scatter_directions); },
        strategy == std::string("hybrid") ? "sums directions that do not exist" : "before its directions have arrived");
    check_matrices(
        strategy, [](Plan& p) { operation(p, reduce_scatter_directions).waits.clear(); }, "does not wait for operation");
    check_matrices(
        strategy, [](Plan& p) { operation(p, all_gather_directions).waits.clear(); }, "does not wait for operation");
  }
  for (const char* strategy : {"none", "hybrid"}) {
    check_matrices(
        strategy, [](Plan& p) { forget(p, all_reduce_directions, 1); }, "before its directions have arrived from all ranks");
    check_matrices(
        strategy, [](Plan& p) { operation(p, all_reduce_directions, 1).unit = operation(p, all_reduce_directions).unit; },
        "sums directions that do not exist");
  }
  // Two units whose matrices share a slot.
  check_matrices(
      "full",
      [](Plan& p) {
        Operation &first = operation(p, all_gather_directions), &second = operation(p, all_gather_directions, 1);
        const Location there = first.at(matrices);
        p.whole_gradients[static_cast<std::size_t>(second.unit)] = there;
        for (Operation& op : p.update)
          for (Operand& operand : op.operands)
            if (op.unit == second.unit && operand.name == matrices) operand.place = there;
        for (std::size_t i = 1; i < p.update.size(); ++i) p.update[i].waits = {static_cast<int>(i) - 1};  // all in turn
      },
      "in another place than the plan");
}

// An operation whose operand is at another place than in the plan's tables is refused.
BOOST_AUTO_TEST_CASE(an_operand_elsewhere_is_named) {
  using namespace kinds;
  using enum OperandName;
  const PlanOptions two = {.micro_batches = 2};
  const auto check = [&](const char* strategy, const std::function<void(Plan&)>& worsen, const std::string& part) {
    check_complaint(complaint(strategy, two, worsen), part);
  };
  check(
      "full", [](Plan& p) { place_of(operation(p, all_gather_parameters, 1), weights) = p.whole_parameters[2]; },
      "has the whole parameters in another place");
  check(
      "full", [](Plan& p) { place_of(operation(p, all_gather_parameters), part) = p.parameters[1]; },
      "has this rank's shard in another place");
  check(
      "full", [](Plan& p) { operation(p, all_gather_parameters).count -= 1; }, "elements instead of");
  check(
      "full", [](Plan& p) { operation(p, all_gather_parameters).type = DType::bf16; }, "has another type or reduce_dtype");
  check(
      "full", [](Plan& p) { place_of(operation(p, reduce_scatter_gradient), whole_gradient) = p.whole_gradients[2]; },
      "has the whole gradient in another place");
  check(
      "full", [](Plan& p) { place_of(operation(p, reduce_scatter_gradient), sum) = p.gradients[2]; },
      "has its sum in another place");
  check(
      "full", [](Plan& p) { operation(p, all_reduce_squares).count += 100000; }, "elements instead of");
  check(
      "full", [](Plan& p) { operation(p, all_reduce_squares).reduce_dtype = DType::bf16; }, "has another type or reduce_dtype");
  check(
      "full", [](Plan& p) { forget(p, all_reduce_squares); }, "before loss and squares are summed over all ranks");
  check(
      "full", [](Plan& p) { forget(p, all_reduce_loss); }, "before loss and squares are summed over all ranks");
  check(
      "hybrid", [](Plan& p) { operation(p, all_reduce_loss).group = GroupAxis::shard; }, "has another group of ranks");
  check(
      "full", [](Plan& p) { place_of(operation(p, add_squares), gradient) = p.gradients[0]; },
      "has the gradient in another place");
  check(
      "full", [](Plan& p) { operation(p, add_squares).count -= 1; }, "elements instead of");
  check(
      "full", [](Plan& p) { place_of(operation(p, optimizer), gradient) = p.gradients[1]; },
      "has the gradient in another place");
  check(
      "full", [](Plan& p) { place_of(operation(p, optimizer), master) = p.master[1]; },
      "has the fp32 parameters in another place");
  check(
      "none", [](Plan& p) { place_of(operation(p, all_reduce_gradient), sum) = p.gradients[2]; },
      "has its sum in another place");
  check(
      "full", [](Plan& p) { place_of(operation(p, head), x) = Location(); }, "a buffer that does not exist");
  // Stages must name the operands that they access through the model's tables.
  check(
      "full", [](Plan& p) { operation(p, block_forward).operands.pop_back(); }, "does not have the whole parameters");
  check(
      "full", [](Plan& p) { operation(p, block_backward).operands.pop_back(); }, "does not have the gradient");
  check(
      "full",
      [](Plan& p) {
        std::vector<Operand>& operands = operation(p, optimizer).operands;
        std::swap(operands.rbegin()[0], operands.rbegin()[1]);
      },
      "has a state in another place");
}

// State in bf16 has additional operations. None may be missing, done twice, or for another unit.
BOOST_AUTO_TEST_CASE(what_is_kept_in_bf16_is_proved) {
  using namespace kinds;
  using enum OperandName;
  std::size_t operations = 0;
  for (const Placement& row : placements())
    for (const Optimizer* const optimizer : optimizers())
      for (const std::size_t micro_batches : {1u, 2u})
        for (const bool more : {false, true}) {
          const PlanOptions options = {.micro_batches = micro_batches, .accumulate_unsharded = more, .clip_values = more};
          Built b = build(row.name.data(), 3, 4, options, {}, {}, *optimizer, kept_in_bf16);
          const auto is_refused = [&] { return refuses(b, row, DType::bf16, micro_batches); };
          for (std::size_t i = 0; i < b.plan.update.size(); ++i) {
            const Operation right = b.plan.update[i];
            const auto& [rounds, widens] =
                std::pair(std::set{&round_whole_gradient, &round_gradient, &round_whole_gradient_and_square,
                                   &round_gradient_and_square, &round_master},
                          std::set{&upcast_gradient, &upcast_master});
            if (!rounds.contains(right.kind) && !widens.contains(right.kind)) continue;
            const std::string what =
                format("{}, {}, {} micro-batches: {}", row.name, optimizer->name, micro_batches, title_of(right, b.layout));
            Operation& op = b.plan.update[i];
            forget(op);
            // Its result may still be in memory from before the norm: then the operation is not needed.
            if (right.kind != &upcast_gradient) BOOST_CHECK_MESSAGE(is_refused(), what << " is missing");
            op = right, op.unit = (op.unit + 1) % static_cast<int>(b.layout.units().size());
            BOOST_CHECK_MESSAGE(is_refused(), what << " is about another unit");
            op = right, op.count -= 1;
            BOOST_CHECK_MESSAGE(is_refused(), what << " is about a part");
            op = right, op.type = DType::f16;
            BOOST_CHECK_MESSAGE(is_refused(), what << " is of another type");
            op = right, op.accumulate = !op.accumulate;
            if (rounds.contains(op.kind)) BOOST_CHECK_MESSAGE(is_refused(), what << " adds where it should not, or does not");
            op = right;
            ++operations;
          }
        }
  BOOST_TEST(operations > 1000u);
  const auto check = [](const char* strategy, const std::function<void(Plan&)>& worsen, const std::string& part) {
    check_complaint(complaint(strategy, {.micro_batches = 2}, worsen, adamw_optimizer(), kept_in_bf16), part);
  };
  check(
      "full", [](Plan&) {}, "sound");
  check(
      "full", [&](Plan& p) { forget(p, round_gradient); }, "adds to a gradient that does not exist");
  check(
      "none", [&](Plan& p) { forget(p, round_whole_gradient, 1); }, "which is not reduced");
  // The last rounding adds the squares, and leaves no fp32 gradient.
  const Built b = build("full", 3, 4, {.micro_batches = 2}, {}, {}, adamw_optimizer(), kept_in_bf16);
  BOOST_TEST(count(b.plan.update, add_squares) == 0u);
  BOOST_TEST(count(b.plan.update, round_gradient_and_square) == b.layout.units().size());
  check(
      "full", [&](Plan& p) { forget(p, round_gradient_and_square, 1); }, "does not include the gradient of");
  check(
      "full", [&](Plan& p) { repeat_the_first(p, round_gradient_and_square); }, "twice");
  check(
      "full", [&](Plan& p) { forget(p, upcast_gradient); }, "the gradient");
  check(
      "full", [&](Plan& p) { forget(p, round_master, 1); }, "is not kept");
  check(
      "full", [&](Plan& p) { operation(p, round_master).waits.clear(); }, "sound");  // the order within the stream is enough
  check(
      "full", [&](Plan& p) { place_of(operation(p, upcast_gradient, 1), kept_gradient) = p.gradients[0]; },
      "in another place than the plan");
}

// If all state of a unit is bf16, parameters and gradients are converted to fp32 only for the rules, and the options, that need
// fp32 numbers.
BOOST_AUTO_TEST_CASE(bf16_state_is_updated_in_one_pass) {
  using namespace kinds;
  using enum OperandName;
  const PlanOptions bf16_states = {.optimizer_state_type = DType::bf16};
  const auto has_wide_master = [](const Plan& plan) {
    return std::ranges::any_of(plan.buffers, [](const PlanBuffer& buffer) { return buffer.name.starts_with("fp32 master"); });
  };
  std::set<std::string_view> rules;
  for (const Optimizer* const optimizer : optimizers()) {
    for (const Rule* const rule : optimizer->rules)
      if (rule->by_element) rules.insert(rule->name);
    for (const Placement& row : placements()) {
      const auto built = [&](const PlanOptions& options, UnitTypes types = kept_in_bf16) {
        return build(row.name.data(), 3, 4, options, {}, {}, *optimizer, types);
      };
      const Built narrow = built(bf16_states);
      std::size_t units = 0;
      for (const Unit& unit : narrow.layout.units()) units += unit.rule->by_element;
      BOOST_TEST(count(narrow.plan.update, optimizer_16_bit) == units, row.name << ", " << optimizer->name);
      BOOST_TEST(has_wide_master(narrow.plan) == (units < narrow.layout.units().size()), row.name << ", " << optimizer->name);
      for (const Built& wide : {built({}), built({.clip_values = true, .optimizer_state_type = DType::bf16}),
                                built({.optimizer_state_type = DType::bf16, .average_weights = true}),
                                built(bf16_states, {DType::bf16, DType::f32, DType::bf16, DType::f32})}) {
        BOOST_TEST(count(wide.plan.update, optimizer_16_bit) == 0u);
        BOOST_TEST(has_wide_master(wide.plan));
      }
    }
  }
  BOOST_TEST((rules == std::set<std::string_view>{"adagrad", "adam", "adam_amsgrad", "lion", "sgd_momentum"}));
  const auto check = [&](const std::function<void(Plan&)>& worsen, const std::string& part) {
    check_complaint(complaint("full", bf16_states, worsen, adamw_optimizer(), kept_in_bf16), part);
  };
  check([](Plan&) {}, "sound");
  check([](Plan& p) { forget(p, optimizer_16_bit, 1); }, "is not updated");
  check([](Plan& p) { repeat_the_first(p, optimizer_16_bit); }, "updates parameters twice");
  check([](Plan& p) { forget(p, gradient_norm); }, "comes before the gradient norm");
  check([](Plan& p) { forget(p, round_gradient_and_square, 1); }, "");
  check([](Plan& p) { place_of(operation(p, optimizer_16_bit, 1), kept_gradient) = p.gradients[0]; }, "in another place than");
  check([](Plan& p) { place_of(operation(p, optimizer_16_bit, 1), kept_master) = p.master[0]; }, "in another place than");
  check([](Plan& p) { operation(p, optimizer_16_bit).count -= 1; }, "");
  check([](Plan& p) { operation(p, optimizer_16_bit).type = DType::f16; }, "");
}

// Offloaded state has loads and unloads. None may be missing, for another unit, or at another place.
BOOST_AUTO_TEST_CASE(what_is_kept_on_the_host_is_proved) {
  using namespace kinds;
  using enum OperandName;
  std::size_t operations = 0;
  for (const Placement& row : placements())
    for (const Optimizer* const optimizer : optimizers())
      for (const std::size_t micro_batches : {1u, 3u})
        for (const UnitTypes& types : {UnitTypes{}, kept_in_bf16, UnitTypes{.parameter = DType::bf16}})
          for (const bool more : {false, true}) {
            const PlanOptions options = {.micro_batches = micro_batches,
                                         .accumulate_unsharded = more,
                                         .clip_values = more,
                                         .places = offloaded(true, more)};
            Built b = build(row.name.data(), 3, 4, options, {}, {}, *optimizer, types);
            const auto is_refused = [&] { return refuses(b, row, types.parameter, micro_batches); };
            for (auto* list : {&b.plan.update, &b.plan.evaluation, &b.plan.publish})
              for (std::size_t i = 0; i < list->size(); ++i) {
                const Operation right = (*list)[i];
                if (right.kind != &load && right.kind != &unload) continue;
                const std::string what = format("{}, {}, {} micro-batches, {}: operation {}, {}", row.name, optimizer->name,
                                                micro_batches, name_of(types.parameter), i, title_of(right, b.layout));
                Operation& op = (*list)[i];
                forget(op);
                BOOST_CHECK_MESSAGE(is_refused(), what << " is missing");
                op = right, op.unit = (op.unit + 1) % static_cast<int>(b.layout.units().size());
                BOOST_CHECK_MESSAGE(is_refused(), what << " is about another unit");
                op = right, op.count -= 1;
                BOOST_CHECK_MESSAGE(is_refused(), what << " is about a part");
                op = right, std::swap(op.operands[0].place, op.operands[1].place);
                BOOST_CHECK_MESSAGE(is_refused(), what << " goes the other way");
                op = right, op.kind = right.kind == &load ? &unload : &load, std::swap(op.operands[0], op.operands[1]);
                BOOST_CHECK_MESSAGE(is_refused(), what << " is of the other kind");
                op = right;
                ++operations;
              }
          }
  BOOST_TEST(operations > 5000u);
  const PlanOptions options = {.micro_batches = 2, .places = offloaded(true, true)};
  const auto check = [&](const char* strategy, const std::function<void(Plan&)>& worsen, const std::string& part) {
    check_complaint(complaint(strategy, options, worsen), part);
  };
  check(
      "full", [](Plan&) {}, "sound");
  check(
      "full", [](Plan& p) { place_of(operation(p, all_gather_parameters), part) = p.parameters[0]; },
      "has this rank's shard in another place");
  check(
      "full", [](Plan& p) { place_of(operation(p, optimizer), master) = p.parameters[0]; }, "in another place than the plan");
  check(
      "full", [](Plan& p) { operation(p, optimizer).operands.back().place = p.at_work(p.optimizer_state[1].back()); },
      "has a state in another place");
  for (const Kind* kind : {&load, &unload})
    check(
        "full",
        [&](Plan& p) {
          for (Operation& op : p.update)
            if (op.kind == kind) op.waits.clear();
        },
        "does not wait for");
  check(
      "full", [](Plan& p) { p.spaces.back().bytes -= 64; }, "beyond the end of its space");
}

namespace {

/// Calls check(plan, row, type, micro-batches, what) for plans whose state is offloaded.
template <class Check>
void each_offloaded_plan(const Check& check) {
  for (const Placement& row : placements())
    for (const Optimizer* const optimizer : {&adamw_optimizer(), &adafactor_optimizer(), &muon_optimizer()})
      for (const std::size_t micro_batches : {1u, 3u})
        for (const UnitTypes& types : {UnitTypes{}, kept_in_bf16})
          for (const WrapPolicy& wrap : {WrapPolicy{}, {.kind = WrapPolicy::Kind::size, .min_num_params = 300}})
            for (const bool more : {false, true}) {
              PlanOptions options = {.micro_batches = micro_batches,
                                     .checkpoint_activations = more,
                                     .accumulate_unsharded = more,
                                     .places = offloaded(true, true),
                                     .offloaded_inputs = more ? all_inputs : 0};
              if (more && micro_batches == 3) options.places = {.optimizer = &spaces::host};
              Built b = build(row.name.data(), 5, 4, options, wrap, {}, *optimizer, types);
              BOOST_TEST_CONTEXT(row.name << ", " << optimizer->name << ", " << micro_batches << " micro-batches, kept in "
                                          << name_of(types.master) << (more ? ", with more" : ""))
              check(b, row, types.parameter, micro_batches);
            }
}

bool is_transfer(const Operation& op) { return op.kind == &kinds::load || op.kind == &kinds::unload; }

/// Returns the last operation before operation `i` that is not a transfer; -1: none.
int operation_before(const std::vector<Operation>& list, std::size_t i) {
  int before = static_cast<int>(i) - 1;
  while (before >= 0 && is_transfer(list[static_cast<std::size_t>(before)])) --before;
  return before;
}

bool uses_slot(const Operation& op, const Operation& transfer, bool changes) {
  for (std::size_t k = 0; k < op.operands.size(); ++k)
    if (op.operands[k].place.buffer == transfer.at(OperandName::slot).buffer && (!changes || writes(effect_on(op, k))))
      return true;
  return false;
}

/// Moves operation `from` to place `to`, and derives the waits again.
void move_operation(std::vector<Operation>& list, std::size_t from, std::size_t to, std::size_t buffers) {
  Operation moved = std::move(list[from]);
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(from));
  const std::size_t neighbour = std::min(to, list.size() - 1);
  moved.micro_batch = list[neighbour].micro_batch;
  list.insert(list.begin() + static_cast<std::ptrdiff_t>(to), std::move(moved));
  for (Operation& op : list) op.waits.clear(), op.awaited = false;
  derive_waits(list, buffers);
}

}  // namespace

// A content is unloaded after its last change. It is loaded after the last use of its slot by another one, or with a content
// that is needed before it.
BOOST_AUTO_TEST_CASE(transfers_are_early) {
  std::size_t loads = 0, first_loads = 0, unloads = 0;
  each_offloaded_plan([&](Built& b, const Placement&, DType, std::size_t) {
    for (const auto* list : {&b.plan.update, &b.plan.evaluation, &b.plan.publish})
      for (std::size_t i = 0; i < list->size(); ++i) {
        const Operation& op = (*list)[i];
        if (!is_transfer(op)) continue;
        const int before = operation_before(*list, i);
        if (op.kind == &kinds::unload) {
          BOOST_TEST_REQUIRE(before >= 0);
          BOOST_TEST(uses_slot((*list)[static_cast<std::size_t>(before)], op, true), "unload " << i << " is late");
          ++unloads;
          continue;
        }
        ++loads;
        if (before < 0 || (*list)[i - 1].kind == &kinds::load) continue;  // at the beginning, or after another load
        BOOST_TEST(uses_slot((*list)[static_cast<std::size_t>(before)], op, false), "load " << i << " is late");
        ++first_loads;
      }
  });
  BOOST_TEST(loads > 5000u);
  BOOST_TEST(first_loads > 2000u);
  BOOST_TEST(unloads > 3000u);
}

// A load or unload at another place of the list is refused: a load before the last use of its slot, or after the first use of
// the content; an unload before the last change, or after the slot has another content.
BOOST_AUTO_TEST_CASE(transfers_elsewhere_in_the_list_are_refused) {
  std::size_t moved = 0, transfers = 0;
  each_offloaded_plan([&](Built& b, const Placement& row, DType type, std::size_t micro_batches) {
    const auto refused_at = [&](std::vector<Operation>& list, std::size_t from, std::size_t to) {
      const std::vector<Operation> right = list;
      move_operation(list, from, to, b.plan.buffers.size());
      const bool refused = refuses(b, row, type, micro_batches);
      list = right;
      ++moved;
      return refused;
    };
    std::vector<Operation>& list = b.plan.update;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Operation op = list[i];
      if (!is_transfer(op) || ++transfers % 61 != 0) continue;
      const auto touches = [&](std::size_t k, bool changes) {
        return !is_transfer(list[k]) && std::any_of(list[k].operands.begin(), list[k].operands.end(), [&](const Operand& x) {
          const Location& slot = op.at(OperandName::slot);
          const std::size_t n = b.plan.buffers[static_cast<std::size_t>(op.at(OperandName::stored).buffer)].bytes;
          return x.place.buffer == slot.buffer && slot.offset <= x.place.offset && x.place.offset < slot.offset + n &&
                 (!changes || uses_slot(list[k], op, true));
        });
      };
      std::size_t next = i + 1;
      while (next < list.size() && !touches(next, false)) ++next;
      int last = static_cast<int>(i) - 1;
      while (last >= 0 && !touches(static_cast<std::size_t>(last), op.kind == &kinds::unload)) --last;
      if (op.kind == &kinds::load) {
        BOOST_TEST(refused_at(list, i, next), "load " << i << " after operation " << next);
        if (last >= 0) BOOST_TEST(refused_at(list, i, static_cast<std::size_t>(last)), "load " << i << " before " << last);
      } else {
        BOOST_TEST_REQUIRE(last >= 0);
        BOOST_TEST(refused_at(list, i, static_cast<std::size_t>(last)), "unload " << i << " before " << last);
      }
    }
  });
  BOOST_TEST(moved > 400u);
}

// Buffers in another space, with another slot or of another owner are refused.
BOOST_AUTO_TEST_CASE(buffers_elsewhere_are_refused) {
  std::size_t changed = 0, buffers = 0;
  each_offloaded_plan([&](Built& b, const Placement& row, DType type, std::size_t micro_batches) {
    std::set<BufferId> moved;  // by the update
    for (const Operation& op : b.plan.update)
      if (is_transfer(op)) moved.insert(op.at(OperandName::stored).buffer);
    for (const BufferId id : moved) {
      if (++buffers % 29 != 0) continue;
      PlanBuffer& buffer = b.plan.buffers[static_cast<std::size_t>(id)];
      const PlanBuffer right = buffer;
      const auto check = [&](const char* what, const auto& worsen) {
        worsen();
        BOOST_TEST(refuses(b, row, type, micro_batches), right.name << ": " << what);
        buffer = right;
        ++changed;
      };
      check("in the memory of the device", [&] { buffer.space = &spaces::device; });
      check("in a slot", [&] { buffer.space = &spaces::slots; });
      check("not offloaded", [&] { buffer.slot = {}; });
      check("in a slot of another", [&] {
        for (const PlanBuffer& other : b.plan.buffers)
          if (other.slot.buffer >= 0 && other.slot != right.slot) buffer.slot = other.slot;
      });
      check("of another owner", [&] {
        if (right.owner.unit >= 0) buffer.owner.unit = (right.owner.unit + 1) % static_cast<int>(b.layout.units().size());
        if (right.owner.stage >= 0) buffer.owner.stage = right.owner.stage % 5 + 1;
      });
      check("of a unit and a stage", [&] { (right.owner.unit >= 0 ? buffer.owner.stage : buffer.owner.unit) = 1; });
    }
  });
  BOOST_TEST(changed > 1000u);
}

// With offloading a device has slots for a few units, for any number of units.
BOOST_AUTO_TEST_CASE(what_is_kept_on_the_host_is_not_on_the_device) {
  const auto planned = [](std::size_t layers, bool optimizer, bool parameters) {
    return build("full", layers, 2, {.places = offloaded(optimizer, parameters)}, {}, {}, adamw_optimizer(),
                 {.parameter = DType::bf16})
        .plan;
  };
  const Plan none = planned(8, false, false), optimizer = planned(8, true, false), all = planned(8, false, true);
  const auto of = [](const std::array<std::size_t, role_count>& bytes, BufferRole role) {
    return bytes[static_cast<std::size_t>(role)];
  };
  BOOST_TEST(none.offloaded_bytes() == 0u);
  std::size_t parameters = 0, masters = 0;
  for (std::size_t u = 0; u < all.parameters.size(); ++u) {
    parameters += all.buffers[static_cast<std::size_t>(all.parameters[u].buffer)].bytes;
    masters += all.buffers[static_cast<std::size_t>(all.master[u].buffer)].bytes;
  }
  BOOST_TEST(all.offloaded_bytes() == optimizer.offloaded_bytes() + parameters);
  for (const BufferRole role : {BufferRole::gradients, BufferRole::optimizer_state}) {
    BOOST_TEST(of(memory_by_role(none), role) > 0u);
    for (const Plan* plan : {&optimizer, &all}) {
      BOOST_TEST(of(memory_by_role(*plan), role) == 0u);
      BOOST_TEST(of(offloaded_by_role(*plan, Tier::host), role) == of(memory_by_role(none), role));
    }
  }
  BOOST_TEST(of(memory_by_role(optimizer), BufferRole::parameters) == parameters);
  BOOST_TEST(of(offloaded_by_role(optimizer, Tier::host), BufferRole::parameters) == masters);
  BOOST_TEST(of(memory_by_role(all), BufferRole::parameters) == 0u);
  for (const bool with_parameters : {false, true}) {  // twice the blocks, the same slots
    const auto slots = [&](std::size_t layers) {
      return of(memory_by_role(planned(layers, true, with_parameters)), BufferRole::loaded);
    };
    BOOST_TEST(slots(8) > 0u);
    BOOST_TEST(slots(16) == slots(8));
  }
  BOOST_TEST(all.peak_bytes < optimizer.peak_bytes);
  BOOST_TEST(optimizer.peak_bytes < none.peak_bytes);
  BOOST_TEST(describe_memory(none).find("host") == std::string::npos);
  for (const char* line : {"offload slots", "offloaded to the host's memory:", "on the host per rank"})
    BOOST_TEST(describe_memory(all).find(line) != std::string::npos, describe_memory(all));
}

// Every wait is needed: without any one of them the plan is not sound.
BOOST_AUTO_TEST_CASE(no_wait_is_redundant) {
  std::size_t waits = 0;
  for (const Placement& row : placements())
    for (const Optimizer* const optimizer : {&adamw_optimizer(), &adafactor_optimizer(), &muon_optimizer()})
      for (const bool recompute : {false, true}) {
        const PlanOptions options = {.micro_batches = 2,
                                     .checkpoint_activations = recompute,
                                     .invariant = optimizer == &adafactor_optimizer() && !recompute,
                                     .places = offloaded(optimizer == &muon_optimizer(), optimizer == &adafactor_optimizer())};
        const UnitTypes types = recompute ? kept_in_bf16 : UnitTypes{};
        Built b = build(row.name.data(), 3, 4, options, {}, {}, *optimizer, types);
        for (auto* list : {&b.plan.update, &b.plan.evaluation, &b.plan.publish})
          for (Operation& op : *list)
            for (std::size_t w = 0; w < op.waits.size(); ++w) {
              const std::vector<int> all = op.waits;
              op.waits.erase(op.waits.begin() + static_cast<std::ptrdiff_t>(w));
              BOOST_CHECK_THROW(
                  check_plan(b.plan, b.layout, row, b.model->sizes({2, 8}, types.parameter), options.micro_batches),
                  InternalError);
              op.waits = all;
              ++waits;
            }
      }
  BOOST_TEST_MESSAGE(waits << " waits, each of them needed");
  BOOST_TEST(waits > 500u);
}

BOOST_AUTO_TEST_CASE(every_choice_gives_a_sound_plan) {
  std::size_t plans = 0;
  for (const Placement& row : placements())
    for (const std::size_t layers : {1u, 2u, 5u})
      for (const std::size_t micro : {1u, 3u, 6u})  // the last ones invariant
        for (const bool recompute : {false, true})
          for (const bool unsharded : {false, true})
            for (const std::size_t slots : {1u, 2u, 4u})
              for (const BackwardPrefetch prefetch : {BackwardPrefetch::pre, BackwardPrefetch::post, BackwardPrefetch::none})
                for (const ParameterPatterns& patterns : {ParameterPatterns{},
                                                          {.freeze = {"*wte*", "*wpe*", "h.0.*"}},
                                                          {.freeze = {"*bias"}, .ignore = {"*ln*"}},
                                                          {.train_only = {"*ln_f*"}}})
                  for (const WrapPolicy& wrap : {WrapPolicy{},
                                                 {.blocks_per_unit = 2},
                                                 {.kind = WrapPolicy::Kind::none},
                                                 {.kind = WrapPolicy::Kind::size, .min_num_params = 300},
                                                 {.kind = WrapPolicy::Kind::custom, .patterns = {"*mlp", "wte"}}}) {
                    PlanOptions options = {.micro_batches = micro,
                                           .checkpoint_activations = recompute,
                                           .checkpoint_policy = prefetch == BackwardPrefetch::none ? CheckpointPolicy::selective
                                                                                                   : CheckpointPolicy::block,
                                           .checkpoint_every = slots,
                                           .recomputed_blocks = recompute ? 0 : plans % (layers + 1),
                                           .parameter_slots = slots,
                                           .gradient_slots = slots,
                                           .backward_prefetch = prefetch,
                                           .forward_prefetch = slots > 2,
                                           .accumulate_unsharded = unsharded && micro != 6,
                                           .invariant = micro == 6,
                                           .places = offloaded(plans % 3 == 1, plans % 5 == 1)};
                    // checks, and throws
                    build(row.name.data(), layers, 4, options, wrap, patterns, *optimizers()[plans % optimizers().size()],
                          plans % 2 == 0 && micro != 6 ? kept_in_bf16 : UnitTypes{});
                    ++plans;
                  }
  BOOST_TEST_MESSAGE(plans << " plans are sound");
  BOOST_TEST(plans == 6u * 3 * 3 * 2 * 2 * 3 * 3 * 4 * 5);
}

BOOST_AUTO_TEST_CASE(a_hundred_layers_are_checked_in_no_time) {
  const auto start = std::chrono::steady_clock::now();
  const Built b = build("full", 100, 8, {.checkpoint_activations = true});
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  BOOST_TEST_MESSAGE(b.plan.update.size() << " operations planned and checked in " << ms << " ms");
  BOOST_TEST(b.plan.update.size() > 500u);
}
