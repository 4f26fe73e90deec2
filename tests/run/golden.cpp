// The golden runs of PyTorch, update by update, on the threads communicator: 1 to 4 ranks, all six strategies, with and without
// recomputation, several micro-batch splits. Options that must not change a bit are checked, too.
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "run/golden_run.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

const char* const names[] = {"gpt2-tied", "llama-gqa", "llama3-tied"};

const PlanOptions recomputed = {.checkpoint_activations = true};

History begin_golden(const std::string& name, Case c) {
  c.run = beginning(name, 3);
  return train_golden(name, c);
}

void check_that_no_bit_changes(const std::string& name) {
  for (const int ranks : {1, 2, 3, 4}) {
    const History full = begin_golden(name, {.ranks = ranks});
    const auto same = [&](const char* what, Case c) {
      c.ranks = ranks;
      BOOST_CHECK_MESSAGE(full == begin_golden(name, c), name << ", " << ranks << " ranks: " << what);
    };
    for (const std::string& strategy : strategies) {
      same(strategy.c_str(), {.strategy = strategy, .group = group_for(ranks)});
      same("refilled", {.strategy = strategy,
                        .group = group_for(ranks),
                        .plan = {.checkpoint_activations = true, .checkpoint_policy = CheckpointPolicy::selective}});
      same("recomputed", {.strategy = strategy, .group = group_for(ranks), .plan = recomputed});
    }
    if (ranks < 3) continue;
    using Kind = WrapPolicy::Kind;
    for (const char* strategy : {"full", "hybrid-grad-op"}) {
      same("two blocks per unit", {.strategy = strategy, .group = group_for(ranks), .wrap = {.blocks_per_unit = 2}});
      same("one unit", {.strategy = strategy, .group = group_for(ranks), .wrap = {.kind = Kind::none}});
      same("by size", {.strategy = strategy, .group = group_for(ranks), .wrap = {.kind = Kind::size, .min_num_params = 3000}});
      same(
          "by patterns",
          {.strategy = strategy, .group = group_for(ranks), .wrap = {.kind = Kind::custom, .patterns = {"*mlp", "*.0.*att*"}}});
      same("some not sharded",
           {.strategy = strategy, .group = group_for(ranks), .patterns = {.ignore = {"*.0.*", "*.1.*mlp*"}}});
    }
    for (const std::size_t slots : {1u, 2u, 3u})
      for (const BackwardPrefetch prefetch : {BackwardPrefetch::pre, BackwardPrefetch::post, BackwardPrefetch::none})
        same("slots and prefetch", {.plan = {.checkpoint_activations = slots == 1,
                                             .parameter_slots = slots,
                                             .gradient_slots = slots,
                                             .backward_prefetch = prefetch,
                                             .forward_prefetch = slots == 3}});
    for (const std::size_t every : {2u, 3u, 7u})
      same("segments", {.plan = {.checkpoint_activations = true, .checkpoint_every = every}});
  }
}

}  // namespace

BOOST_DATA_TEST_CASE(pytorch_is_reproduced, boost::unit_test::data::make(names), name) {
  for (const int ranks : {1, 2, 3, 4})
    for (const std::string& strategy : strategies)
      for (const std::size_t micro_batches : {std::size_t{1}, 12u / static_cast<std::size_t>(ranks)}) {
        const Case c = {ranks, strategy, micro_batches, group_for(ranks), {}, {}, ranks % 2 == 0 ? recomputed : PlanOptions{}};
        BOOST_TEST_CONTEXT(name << " " << ranks << " ranks " << strategy << " " << micro_batches) {
          compare_with_pytorch(name, train_golden(name, c));
        }
      }
}

BOOST_DATA_TEST_CASE(what_must_not_change_a_bit_does_not, boost::unit_test::data::make(names), name) {
  check_that_no_bit_changes(name);
}

BOOST_DATA_TEST_CASE(with_several_micro_batches_sums_nest_alike, boost::unit_test::data::make(names), name) {
  for (const int ranks : {2, 4}) {
    const auto run = [&](const char* strategy, bool unsharded = false) {
      return begin_golden(
          name, {.ranks = ranks, .strategy = strategy, .micro_batches = 3, .plan = {.accumulate_unsharded = unsharded}});
    };
    const History none = run("none"), full = run("full"), hybrid = run("hybrid");
    BOOST_CHECK(none == run("optim"));
    BOOST_CHECK(full == run("grad-op"));
    BOOST_CHECK(hybrid == run("hybrid-grad-op"));
    for (const char* strategy : {"full", "grad-op", "optim", "none", "hybrid", "hybrid-grad-op"})
      BOOST_CHECK_MESSAGE(none == run(strategy, true), strategy);
  }
}

BOOST_DATA_TEST_CASE(dropout_is_a_function_of_the_data, boost::unit_test::data::make(names), name) {
  const History one = train_golden(name, {.dropout = 0.1f});
  BOOST_TEST(one.losses.front() != train_golden(name, {}).losses.front());
  for (const int ranks : {2, 3, 4})
    for (const std::size_t micro_batches : {1u, 3u}) {
      if (12 % (ranks * static_cast<int>(micro_batches)) != 0) continue;
      const History many = train_golden(name, {.ranks = ranks, .micro_batches = micro_batches, .dropout = 0.1f});
      for (std::size_t u = 0; u < one.losses.size(); ++u) BOOST_TEST(std::abs(one.losses[u] - many.losses[u]) < 1e-5);
      const PlanOptions refilled = {.checkpoint_activations = true, .checkpoint_policy = CheckpointPolicy::selective};
      for (const PlanOptions& plan : {recomputed, refilled})
        BOOST_CHECK(
            (many == train_golden(name, {.ranks = ranks, .micro_batches = micro_batches, .plan = plan, .dropout = 0.1f})));
    }
}

// Recomputed blocks compute their MLP in pieces of rows: gradients of weights are then sums of other products. The bits are
// those of one size of pieces and one number of recomputed blocks.
BOOST_DATA_TEST_CASE(mlps_in_pieces_reproduce_pytorch, boost::unit_test::data::make(names), name) {
  const PlanOptions first = {.recomputed_blocks = 1},
                    offloaded_inputs = {.checkpoint_activations = true, .offloaded_inputs = 1};
  for (const std::size_t rows : {std::size_t{5}, std::size_t{16}})
    for (const int ranks : {1, 2, 4}) {
      const auto run = [&](const char* strategy, const PlanOptions& plan, float dropout = 0) {
        return begin_golden(name, {.ranks = ranks,
                                   .strategy = strategy,
                                   .group = group_for(ranks),
                                   .plan = plan,
                                   .dropout = dropout,
                                   .piece_rows = rows});
      };
      const History all = run("full", recomputed), some = run("full", first), dropped = run("full", recomputed, 0.1f);
      compare_with_pytorch(name, all);
      compare_with_pytorch(name, some);
      BOOST_CHECK(all != run("full", {}));  // only logits are in pieces
      BOOST_CHECK(all != some);
      BOOST_CHECK(run("full", offloaded_inputs) == all);
      const History whole = run("full", {}, 0.1f);  // masks are the same
      for (std::size_t u = 0; u < whole.losses.size(); ++u) BOOST_TEST(std::abs(whole.losses[u] - dropped.losses[u]) < 1e-5);
      for (const char* strategy : {"grad-op", "optim", "none", "hybrid", "hybrid-grad-op"}) {
        BOOST_CHECK_MESSAGE(run(strategy, recomputed) == all, strategy);
        BOOST_CHECK_MESSAGE(run(strategy, first) == some, strategy);
        BOOST_CHECK_MESSAGE(run(strategy, recomputed, 0.1f) == dropped, strategy);
      }
    }
}

BOOST_AUTO_TEST_CASE(frozen_runs_of_pytorch_are_reproduced) {
  const json all = read_json(golden_folder("frozen.json"));
  for (const auto& [name, run] : all.items())
    for (const int ranks : {1, 2, 3, 4})
      for (const std::string& strategy : strategies) {
        const Case c = {.ranks = ranks,
                        .strategy = strategy,
                        .micro_batches = strategy == "optim" ? std::size_t{3} : std::size_t{1},
                        .group = group_for(ranks),
                        .patterns = {.train_only = {run["train_only"]}},
                        .plan = ranks == 3 ? recomputed : PlanOptions{},
                        .run = run};
        if (12 % (ranks * static_cast<int>(c.micro_batches)) != 0) continue;
        const History mine = train_golden(name, c);
        double loss = 0, norm = 0;
        for (std::size_t u = 0; u < mine.losses.size(); ++u) {
          loss = std::max(loss, std::abs(mine.losses[u] - run["steps"][u]["loss"].get<double>()));
          norm = std::max(norm, std::abs(mine.norms[u] / run["steps"][u]["gnorm"].get<double>() - 1));
        }
        BOOST_TEST_MESSAGE(name << ", " << ranks << " ranks, " << strategy << ": loss " << loss << ", norm " << norm);
        BOOST_TEST(mine.losses.size() == 20u);
        BOOST_TEST(loss < 5e-6);
        BOOST_TEST(norm < 1e-5);
      }
}

// Each rank's gradient is rounded once, and summed in fp32 in the canonical order, with any transport.
BOOST_DATA_TEST_CASE(reductions_in_low_precision, boost::unit_test::data::make(names), name) {
  const History fp32 = train_golden(name, {.ranks = 4});
  for (const DType reduce : {DType::bf16, DType::f16}) {
    const History full = train_golden(name, {.ranks = 4, .reduce = reduce});
    double loss = 0;
    for (std::size_t u = 0; u < full.losses.size(); ++u) loss = std::max(loss, std::abs(full.losses[u] - fp32.losses[u]));
    BOOST_TEST_MESSAGE(name << ", gradients travel in " << name_of(reduce) << ": loss " << loss);
    BOOST_TEST(loss < (reduce == DType::bf16 ? 0.005 : 0.002));
    BOOST_TEST(loss > 1e-7);
    const History begun = begin_golden(name, {.ranks = 4, .reduce = reduce});
    for (const std::string& strategy : strategies)
      for (const Threads threads : {Threads::one, Threads::communication, Threads::each_stream})
        BOOST_TEST((begin_golden(name, {.ranks = 4, .strategy = strategy, .reduce = reduce, .threads = threads}) == begun),
                   strategy);
    BOOST_TEST((begin_golden(name, {.ranks = 4, .patterns = {.ignore = {"*.0.*", "*.1.*mlp*"}}, .reduce = reduce}) == begun));
    const auto summed_first = [&](const char* strategy) {
      return begin_golden(
          name,
          {.ranks = 2, .strategy = strategy, .micro_batches = 3, .plan = {.accumulate_unsharded = true}, .reduce = reduce});
    };
    BOOST_TEST((summed_first("none") == summed_first("full")));
  }
}

// fp32 masters, everything else in 16 bits: close to PyTorch's fp32 run, and the same bits with all strategies.
BOOST_DATA_TEST_CASE(low_precision_stays_close, boost::unit_test::data::make(names), name) {
  const json run = read_json(golden_folder(name) / "run.json");
  for (const DType precision : {DType::bf16, DType::f16}) {
    const History full = train_golden(name, {.ranks = 4, .strategy = "full", .precision = precision});
    double loss = 0, norm = 0;
    for (std::size_t u = 0; u < full.losses.size(); ++u) {
      loss = std::max(loss, std::abs(full.losses[u] - run["steps"][u]["loss"].get<double>()));
      norm = std::max(norm, std::abs(full.norms[u] / run["steps"][u]["gnorm"].get<double>() - 1));
    }
    BOOST_TEST_MESSAGE(name << " in " << name_of(precision) << ": loss " << loss << ", norm " << norm << " relative");
    BOOST_TEST(loss < (precision == DType::bf16 ? 0.005 : 0.002));
    BOOST_TEST(loss > 1e-6);  // it must differ from fp32
    const History begun = begin_golden(name, {.ranks = 4, .precision = precision});
    for (const char* strategy : {"grad-op", "optim", "none", "hybrid", "hybrid-grad-op"}) {
      if (precision == DType::f16 && strategy != std::string("none")) continue;  // the same plan as in bf16
      BOOST_TEST((begin_golden(name, {.ranks = 4, .strategy = strategy, .precision = precision}) == begun), strategy);
    }
    for (const CheckpointPolicy policy : {CheckpointPolicy::block, CheckpointPolicy::selective})
      BOOST_TEST((begin_golden(name, {.ranks = 4,
                                      .plan = {.checkpoint_activations = true, .checkpoint_policy = policy},
                                      .precision = precision}) == begun));
    for (const int ranks : {1, 3}) {
      const History other = begin_golden(name, {.ranks = ranks, .precision = precision});
      for (std::size_t u = 0; u < other.losses.size(); ++u)
        BOOST_TEST(std::abs(other.losses[u] - full.losses[u]) < (precision == DType::bf16 ? 0.005 : 0.002));
      BOOST_TEST((begin_golden(name, {.ranks = ranks, .strategy = "none", .precision = precision}) == other));
    }
  }
}

/// Micro-batches up to their last target against micro-batches with all columns.
BOOST_AUTO_TEST_CASE(columns_without_targets_change_only_rounding) {
  for (const char* const name : names)
    for (const DType type : {DType::f32, DType::bf16}) {
      const std::size_t T = read_json(golden_folder(name) / "run.json")["tokens_per_sample"];
      const auto run = [&](const char* strategy, std::size_t multiple, const PlanOptions& plan = {}) {
        return train_golden(name, {.ranks = 2,
                                   .strategy = strategy,
                                   .plan = plan,
                                   .dropout = 0.1f,
                                   .run = beginning(name, 2),
                                   .precision = type,
                                   .short_rows = true,
                                   .pad_to_multiple_of = multiple});
      };
      const History rows = run("full", 1), all = run("full", T);
      double loss = 0, norm = 0, gradient = 0;
      for (std::size_t u = 0; u < rows.losses.size(); ++u) {
        loss = std::max(loss, std::abs(rows.losses[u] / all.losses[u] - 1));
        norm = std::max(norm, std::abs(rows.norms[u] / all.norms[u] - 1));
      }
      for (std::size_t p = 0; p < all.first_gradients.size(); ++p) {
        double most = 0, apart = 0;
        for (std::size_t i = 0; i < all.first_gradients[p].size(); ++i) {
          most = std::max(most, std::abs(double{all.first_gradients[p][i]}));
          apart = std::max(apart, std::abs(double{all.first_gradients[p][i]} - double{rows.first_gradients[p][i]}));
        }
        if (most > 0) gradient = std::max(gradient, apart / most);
      }
      BOOST_TEST_MESSAGE(name << " " << name_of(type) << ": loss " << loss << ", norm " << norm << " relative, gradient "
                              << gradient << " of its largest element");
      const double bound = type == DType::f32 ? 1 : 100;
      BOOST_TEST(loss < 2e-7 * bound);
      BOOST_TEST(norm < 1e-6 * bound);
      BOOST_TEST(gradient < 1e-5 * bound);
      for (const char* const strategy : {"grad-op", "optim", "none"}) BOOST_CHECK(run(strategy, 1) == rows);
      BOOST_CHECK(run("full", 1, recomputed) == rows);
    }
}
