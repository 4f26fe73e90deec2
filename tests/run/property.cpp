// Each plan of random jobs is checked, executed on the threads communicator and compared with one rank.
// `property -- CASES SEED FIRST`.
#include <bit>
#include <cstdio>

#include <boost/test/unit_test.hpp>

#include "run/random_jobs.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(any_plan_trains_like_one_rank) {
  const auto [run, passed_over] = each_random_job(500, 1, [](const Job& job, std::uint64_t number) {
    const Outcome outcome = train(job);
    const std::string differs = difference(job, outcome, train(reference(job)));
    BOOST_TEST(differs == "");
    if (job.sharding.plan.places.any()) {
      Job kept = job;
      kept.sharding.plan.places = {};
      BOOST_TEST(same_bits(train(kept), outcome), "offloading changes the result");
    }
    if (job.sharding.plan.documents && job.sharding.batch.T > 3) {  // a document then begins in the middle of each sequence
      Job joined = job;
      joined.sharding.plan.documents = false;
      BOOST_TEST(train(joined).losses != outcome.losses, "documents change nothing");
    }
    if (job.short_rows) {
      Job padded = job;
      padded.pad_to_multiple_of = job.sharding.batch.T;
      BOOST_TEST(difference(job, train(padded), outcome) == "", "columns without targets change the result");
    }
    if (number % 3 == 1)
      BOOST_TEST(same_bits(train(job, Threads::communication), outcome), "a communication thread changes the result");
    if (number % 3 == 2)
      BOOST_TEST(same_bits(train(job, Threads::each_stream), outcome), "a thread for each stream changes the result");
  });
  std::printf(
      "%zu random jobs agree with one rank, a third of them with a communication thread, too, and another third with a thread "
      "for each stream (%zu more had nothing to train or wrap)\n",
      run, passed_over);
}

// Which blocks are recomputed changes no bit. More recomputed blocks never need more memory.
BOOST_AUTO_TEST_CASE(any_number_of_recomputed_blocks_trains_to_the_same_bits) {
  std::size_t compared = 0, smaller = 0;
  each_random_job(60, 11, [&](const Job& any, std::uint64_t number) {
    Job job = any;
    job.updates = 1;
    job.sharding.plan.checkpoint_activations = false;
    job.piece_rows = 0;  // gradients of an MLP in pieces are other sums
    const Outcome kept = train(job);
    const auto peak = [&] {
      const MeshShape mesh = mesh_shape(find_placement(job.sharding.strategy), job.ranks, job.sharding.shard_group_size);
      return plan_sharding(Transformer(job.config), job.sharding, mesh).plan.peak_bytes;
    };
    std::size_t before = peak();
    for (std::size_t n = 1; n <= job.config.layers; ++n) {
      job.sharding.plan.recomputed_blocks = n;
      BOOST_TEST(same_bits(train(job, number % 2 == 0 ? Threads::one : Threads::each_stream), kept),
                 n << " blocks recomputed: " << job.description);
      const std::size_t now = peak();
      BOOST_TEST(now <= before, n << " blocks recomputed need more memory: " << job.description);
      smaller += now < before;
      before = now;
      ++compared;
    }
  });
  BOOST_TEST(smaller > 0u);
  std::printf("%zu updates with recomputed blocks have the bits of those without, %zu need less memory\n", compared, smaller);
}

// Adapters are trained, and the base model is not: in 16 bits it has no fp32 copy. train() compares the memory with the plan.
BOOST_AUTO_TEST_CASE(adapters_train_like_one_rank_with_any_plan) {
  each_random_job(120, 7, [](const Job& any, std::uint64_t number) {
    Job job = adapted_job(any);
    const Outcome outcome = train(job);
    BOOST_TEST(difference(job, outcome, train(reference(job))) == "", job.description);
    BOOST_TEST(!same_bits(outcome.weights, outcome.initial), job.description);
    if (number % 3 == 1) BOOST_TEST(same_bits(train(job, Threads::each_stream), outcome), job.description);
    const auto group = static_cast<unsigned>(job.sharding.shard_group_size);
    if (job.sharding.strategy.starts_with("hybrid") && !std::has_single_bit(group)) return;  // another order of sums
    job.sharding.types = {};
    job.sharding.plan.micro_batches = 1;  // with more, strategies add gradients in different orders
    job.sharding.wrap = {};
    job.updates = 2;
    const Outcome sharded = train(job);
    job.sharding.strategy = job.sharding.strategy == "none" ? "full" : "none";
    BOOST_TEST(same_bits(train(job), sharded), "strategies have different bits: " + job.description);
  });
}
