// Each plan of random jobs is checked, executed on the threads communicator and compared with one rank.
// `property -- CASES SEED FIRST`.
#define BOOST_TEST_MODULE fsdp.property
#include <cstdio>

#include <boost/test/unit_test.hpp>

#include "fsdp/random_jobs.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(any_plan_trains_like_one_rank) {
  const auto& suite = boost::unit_test::framework::master_test_suite();
  const std::uint64_t cases = suite.argc > 1 ? std::stoull(suite.argv[1]) : 500,
                      seed = suite.argc > 2 ? std::stoull(suite.argv[2]) : 1,
                      first = suite.argc > 3 ? std::stoull(suite.argv[3]) : 0;
  std::size_t run = 0, nothing_to_train = 0;
  for (std::uint64_t number = first; run < cases; ++number) {
    const Job job = random_job(seed, number);
    try {
      wrap_parameters(list_parameters(job.config).parameters, job.sharding.wrap, job.sharding.patterns);
    } catch (const UserError&) {  // everything is frozen, or a pattern of one family meets the other
      ++nothing_to_train;
      continue;
    }
    ++run;
    BOOST_TEST_CONTEXT(job.description) {
      const Outcome outcome = train(job);
      const std::string differs = difference(job, outcome, train(reference(job)));
      BOOST_TEST(differs == "");
      if (number % 3 == 1)
        BOOST_TEST(same_bits(train(job, Threads::communication), outcome), "a communication thread changes the result");
      if (number % 3 == 2)
        BOOST_TEST(same_bits(train(job, Threads::each_stream), outcome), "a thread for each stream changes the result");
    }
  }
  std::printf(
      "%zu random jobs agree with one rank, a third of them with a communication thread, too, and another third with a thread "
      "for each stream (%zu more had nothing to train or wrap)\n",
      run, nothing_to_train);
}
