// PlanOptions::invariant: the same update on 1, 2, 4 or 8 ranks, in any strategy, gives the same bits.
// `invariant -- CASES SEED FIRST`.
#include <bit>
#include <cstdio>
#include <map>

#include <boost/test/unit_test.hpp>

#include "run/random_jobs.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(an_update_has_the_same_bits_on_any_number_of_ranks) {
  std::size_t compared = 0;
  const auto [run, passed_over] = each_random_job(60, 17, [&](const Job& any, std::uint64_t number) {
    Dice dice(number);
    // For example 3 x 4 or 5 x 2: trees that are not full.
    const std::size_t of_a_rank = 1 + dice.below(4), ranks = std::size_t{1} << dice.below(4), all = of_a_rank * ranks;
    Job one = invariant_job(any, all, 1);
    one.sharding.strategy = "full";
    const Outcome outcome = train(one);
    for (std::size_t n = 1; n <= ranks; n *= 2) {
      Job job = invariant_job(any, all, n);
      job.sharding.strategy = dice.one_of({"full", "grad-op", "optim", "none", "hybrid", "hybrid-grad-op"});
      job.sharding.shard_group_size = 1 << dice.below(static_cast<std::size_t>(std::countr_zero(n)) + 1);
      job.sharding.plan.gradient_slots = 1 + dice.below(3);
      const Threads threads = dice.one_of({Threads::one, Threads::communication, Threads::each_stream});
      BOOST_TEST(same_bits(train(job, threads), outcome),
                 job.description << ", " << job.sharding.strategy << " in groups of " << job.sharding.shard_group_size);
      ++compared;
    }
  });
  BOOST_TEST(compared > 2 * run);
  std::printf(
      "%zu random jobs have the bits of one rank on %zu numbers of ranks and strategies (%zu more had nothing to train)\n", run,
      compared, passed_over);
}

// Without the option the bits differ, so the test above can fail.
BOOST_AUTO_TEST_CASE(otherwise_bits_differ) {
  std::size_t differ = 0;
  for (std::uint64_t number = 0; number < 20; ++number) {
    Job one = random_job(17, number);
    one.sharding.wrap = {}, one.sharding.patterns = {};
    one = invariant_job(one, 8, 1);
    Job four = invariant_job(one, 8, 4);
    one.sharding.strategy = four.sharding.strategy = "full";
    one.sharding.plan.invariant = four.sharding.plan.invariant = false;
    const Outcome a = train(one), b = train(four);
    differ += !same_bits(a, b);
    BOOST_TEST(a.losses.front() == b.losses.front());  // the loss is always an exact sum
  }
  BOOST_TEST(differ > 15u);
}

// Compares the sums of a plan's tree with sums by hand, of numbers whose sum depends on the order.
BOOST_AUTO_TEST_CASE(sums_wait_as_the_canonical_order_has_it) {
  for (std::size_t micro_batches = 2; micro_batches <= 33; ++micro_batches)
    for (const char* strategy : {"full", "none", "hybrid"}) {
      Job job = random_job(17, 1);
      job.sharding.wrap = {}, job.sharding.patterns = {};
      job = invariant_job(job, 4 * micro_batches, 4);
      job.sharding.strategy = strategy, job.sharding.shard_group_size = 2;
      const Transformer model(job.config);
      const Plan plan = plan_sharding(model, job.sharding, mesh_shape(find_placement(strategy), 4, 2)).plan;
      // The micro-batches summed in each place of unit 0, with brackets for the order.
      std::map<std::pair<BufferId, std::size_t>, std::string> places;
      std::size_t waiting = 0;
      const auto key = [](const Location& place) { return std::pair(place.buffer, place.offset); };
      for (const Operation& op : plan.update) {
        if (op.unit != 0) continue;
        if (op.kind != &kinds::sum_gradients && op.kind != &kinds::reduce_scatter_gradient) continue;
        const auto [source, target] = std::pair(op.operands[0].place, op.operands[1].place);
        const auto from = places.find(key(source));
        const bool is_whole = source == plan.at_work(plan.whole_gradients[0]);
        const std::string what = is_whole ? format("{}", op.micro_batch) : from->second;
        if (!is_whole) places.erase(from);
        std::string& to = places[key(target)];
        to = op.accumulate ? "(" + to + "+" + what + ")" : what;
        waiting = std::max(waiting, places.size());
      }
      std::vector<std::string> level;
      for (std::size_t m = 0; m < micro_batches; ++m) level.push_back(format("{}", m));
      while (level.size() > 1) {  // pairs at stride 1, 2, 4, ...
        std::vector<std::string> next;
        for (std::size_t i = 0; i < level.size(); i += 2)
          next.push_back(i + 1 < level.size() ? "(" + level[i] + "+" + level[i + 1] + ")" : level[i]);
        level = std::move(next);
      }
      BOOST_TEST_REQUIRE(places.size() == 1u);
      BOOST_TEST(places.begin()->second == level[0]);
      BOOST_TEST(waiting == 1 + plan.waiting_sums[0].size(), strategy << " " << micro_batches);
      BOOST_TEST(waiting <= 1 + static_cast<std::size_t>(std::bit_width(micro_batches - 1)));
    }
}
