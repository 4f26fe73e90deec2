// The golden runs of PyTorch on a GPU: on the double of CUDA that uses threads (cuda_double/), or on a real GPU. Ranks are
// threads that share it.
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "run/golden_run.hpp"
#include "support/places.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Two updates of a few sequences each, for comparisons that need no numbers of PyTorch's.
json two_updates(const std::string& name, int sequences = 4) {
  json run = beginning(name, 2);
  run["global_batch"] = sequences;
  return run;
}

History on_cpu(const std::string& name, Case c) {
  c.threads = Threads::one;
  return train_golden(name, c);
}

}  // namespace

BOOST_AUTO_TEST_CASE(pytorch_is_reproduced) {
  const PlanOptions recomputed = {.checkpoint_activations = true},
                    refilled = {.checkpoint_activations = true, .checkpoint_policy = CheckpointPolicy::selective};
  const std::pair<const char*, Case> cases[] = {
      {"gpt2-tied", {.ranks = 1}},  // all updates: final weights are compared, too
      {"gpt2-tied", {.ranks = 2, .strategy = "hybrid", .micro_batches = 2, .plan = refilled, .run = beginning("gpt2-tied", 4)}},
      {"llama-gqa", {.ranks = 3, .strategy = "grad-op", .run = beginning("llama-gqa", 4)}},
      {"llama3-tied", {.ranks = 4, .plan = recomputed, .run = beginning("llama3-tied", 4)}}};
  for (auto [name, c] : cases) {
    c.threads = Threads::of_gpu;
    BOOST_TEST_CONTEXT(name << " " << c.ranks << " ranks") { compare_with_pytorch(name, train_golden(name, c)); }
  }
}

BOOST_AUTO_TEST_CASE(strategies_change_no_bit) {
  const char* name = "llama-gqa";
  const auto run = [&](const char* strategy, const PlanOptions& plan = {}) {
    return train_golden(name, {.ranks = 4,
                               .strategy = strategy,
                               .plan = plan,
                               .dropout = 0.1f,
                               .run = two_updates(name),
                               .threads = Threads::of_gpu});
  };
  const History full = run("full");
  for (const char* strategy : {"grad-op", "optim", "none", "hybrid", "hybrid-grad-op"})
    BOOST_CHECK_MESSAGE(full == run(strategy, {.checkpoint_activations = strategy[0] == 'h'}), strategy);
}

// Heads of gpt2-tied have 12 numbers and use attention on CUDA cores; heads of llama-gqa have 16 and use tensor cores.
BOOST_AUTO_TEST_CASE(low_precision_is_that_of_the_cpu) {
  struct {
    const char* name;
    UnitTypes types;
    bool twice = false;
  } const cases[] = {{"gpt2-tied", {DType::bf16, DType::bf16}},
                     {"gpt2-tied", {DType::f16, DType::f16}},
                     {"gpt2-tied", {DType::bf16, DType::f32, DType::bf16, DType::bf16}, true},
                     {"llama-gqa", {DType::bf16, DType::bf16}, true},
                     {"llama-gqa", {DType::f16, DType::f16}}};
  for (const auto& [name, types, twice] : cases) {
    const Case c = {.ranks = 2,
                    .micro_batches = 2,
                    .plan = {.checkpoint_activations = true},
                    .run = two_updates(name, 8),
                    .state_type = DType::bf16,
                    .precision = types.parameter,
                    .reduce = types.reduce,
                    .master = types.master,
                    .gradient = types.gradient,
                    .threads = Threads::of_gpu};
    const History gpu = train_golden(name, c), cpu = on_cpu(name, c);
    if (twice) BOOST_CHECK(gpu == train_golden(name, c));  // independent of the delays of its streams
    for (std::size_t u = 0; u < gpu.losses.size(); ++u) {
      BOOST_TEST(std::abs(gpu.losses[u] - cpu.losses[u]) < 2e-3);
      BOOST_TEST(std::abs(gpu.norms[u] / cpu.norms[u] - 1) < 1e-2);
    }
  }
}

BOOST_AUTO_TEST_CASE(optimizers_are_those_of_the_cpu) {
  const char* name = "gpt2-tied";
  const auto initial = read_tensors(golden_folder(name) / "model.safetensors");
  const Transformer model(read_config(golden_folder(name)));
  const json all = read_json(golden_folder("optimizers.json"));
  for (json run : all) {
    run["updates"] = 2, run["global_batch"] = 4;
    const std::string optimizer = run["optimizer"];
    const Case c = {.ranks = 2, .run = run, .threads = Threads::of_gpu};
    const History gpu = train_golden(name, c), cpu = on_cpu(name, c);
    double moved = 0, apart = 0;
    for (std::size_t p = 0; p < cpu.final_weights.size(); ++p)
      for (std::size_t i = 0; i < cpu.final_weights[p].size(); ++i) {
        const std::size_t C = model.config().width;
        if (model.parameters()[p].name.ends_with("c_attn.bias") && i >= C && i < 2 * C) continue;  // see compare_with_pytorch()
        const double now = cpu.final_weights[p][i];
        moved = std::max(moved, std::abs(now - initial.at(model.parameters()[p].name)[i]));
        apart = std::max(apart, std::abs(now - gpu.final_weights[p][i]));
      }
    BOOST_TEST_MESSAGE(optimizer << ": weights moved by " << moved << ", and are " << apart << " apart");
    // Lion uses signs of numbers, and some of these numbers are only rounding noise.
    BOOST_TEST((moved > 0 && apart < (optimizer == "lion" ? 2.1 : 0.03) * moved), optimizer);
    for (std::size_t u = 0; u < gpu.losses.size(); ++u) BOOST_TEST(std::abs(gpu.losses[u] - cpu.losses[u]) < 2e-6, optimizer);
  }
}

BOOST_AUTO_TEST_CASE(offloading_changes_no_bit) {
  const char* name = "gpt2-tied";
  for (const Threads threads : {Threads::of_gpu, Threads::of_own_gpu})
    for (const bool parameters : {false, true}) {
      Case c = {.ranks = 2,
                .strategy = parameters ? "full" : "none",
                .micro_batches = 2,
                .run = two_updates(name),
                .precision = DType::bf16,
                .threads = threads,
                .comm = {.kind = threads == Threads::of_gpu ? "mpi" : "nccl"}};
      const History kept = train_golden(name, c);
      for (const StatePlaces& places : {offloaded(true, parameters), in_a_file(parameters)}) {
        c.plan.places = places;
        BOOST_CHECK(train_golden(name, c) == kept);
      }
    }
}

BOOST_AUTO_TEST_CASE(inputs_of_blocks_on_the_host_change_no_bit) {
  for (const Threads threads : {Threads::of_gpu, Threads::of_own_gpu}) {
    Case c = {.ranks = 2,
              .strategy = "full",
              .micro_batches = 2,
              .plan = {.checkpoint_activations = true},
              .run = two_updates("gpt2-tied"),
              .threads = threads,
              .comm = {.kind = threads == Threads::of_gpu ? "mpi" : "nccl"}};
    for (const std::size_t rows : {0u, 16u}) {
      c.piece_rows = rows, c.plan.offloaded_inputs = 0;
      const History kept = train_golden("gpt2-tied", c);
      c.plan.offloaded_inputs = all_inputs;
      BOOST_CHECK(train_golden("gpt2-tied", c) == kept);
    }
  }
}

BOOST_AUTO_TEST_CASE(mlps_in_pieces_reproduce_pytorch) {
  for (const char* name : {"gpt2-tied", "llama3-tied"}) {
    const auto run = [&](const char* strategy, float dropout = 0) {
      return train_golden(name, {.ranks = 2,
                                 .strategy = strategy,
                                 .plan = {.checkpoint_activations = true},
                                 .dropout = dropout,
                                 .run = beginning(name, 2),
                                 .threads = Threads::of_gpu,
                                 .piece_rows = 16});
    };
    const History full = run("full");
    compare_with_pytorch(name, full);
    BOOST_CHECK(run("none") == full);
    BOOST_CHECK(run("none", 0.1f) == run("full", 0.1f));
  }
}

// Sums in canonical order have the same bits with any transport.
BOOST_AUTO_TEST_CASE(nccl_gives_the_bits_of_the_cpus_collectives) {
  const char* name = "llama-gqa";
  for (const int ranks : {2, 3}) {
    Case c = {.ranks = ranks, .group = group_for(ranks), .run = two_updates(name, 6), .threads = Threads::of_gpu};
    const History staged = train_golden(name, c);
    c.threads = Threads::of_own_gpu;
    c.comm.kind = "nccl";
    BOOST_CHECK(train_golden(name, c) == staged);
    c.strategy = "hybrid";
    BOOST_CHECK(train_golden(name, c) == staged);
  }
}

BOOST_AUTO_TEST_CASE(the_librarys_order_is_within_bounds_and_repeatable) {
  const char* name = "gpt2-tied";
  const Case c = {.ranks = 3,
                  .run = beginning(name, 4),
                  .threads = Threads::of_own_gpu,
                  .comm = {.kind = "nccl", .sum_order = SumOrder::library}};
  const History history = train_golden(name, c);
  compare_with_pytorch(name, history);
  BOOST_CHECK(train_golden(name, c) == history);
}
