// Random jobs on a GPU, which may be the double that is made of threads: each is compared with one rank on the CPU, and with
// itself under other delays. Ranks share one GPU, or have one each and NCCL between them. `property_on_gpu -- CASES SEED
// FIRST`.
#define BOOST_TEST_MODULE fsdp.property_on_gpu
#include <cstdio>

#include <boost/test/unit_test.hpp>

#include "fsdp/random_jobs.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(a_gpu_trains_like_a_cpu) {
  const auto& suite = boost::unit_test::framework::master_test_suite();
  const std::uint64_t cases = suite.argc > 1 ? std::stoull(suite.argv[1]) : 30,
                      seed = suite.argc > 2 ? std::stoull(suite.argv[2]) : 3,
                      first = suite.argc > 3 ? std::stoull(suite.argv[3]) : 0;
  std::size_t run = 0, by_nccl = 0;
  for (std::uint64_t number = first; run < cases; ++number) {
    const Job job = random_job(seed, number);
    try {
      wrap_parameters(list_parameters(job.config).parameters, job.sharding.wrap, job.sharding.patterns);
    } catch (const UserError&) {  // everything is frozen, or a pattern of one family meets the other
      continue;
    }
    ++run;
    const bool nccl = job.ranks <= 4 && number % 2 == 0;
    by_nccl += nccl ? 1 : 0;
    BOOST_TEST_CONTEXT(job.description << (nccl ? ", by NCCL" : ", through the host")) {
      const Threads threads = nccl ? Threads::of_own_gpu : Threads::of_gpu;
      const Outcome outcome = train(job, threads);
      BOOST_TEST(difference(job, outcome, train(reference(job))) == "");
      if (number % 3 == 1) BOOST_TEST(same_bits(train(job, threads), outcome), "another time gives other bits");
    }
  }
  std::printf("%zu random jobs agree with one rank on the CPU, %zu of them by NCCL\n", run, by_nccl);
}
