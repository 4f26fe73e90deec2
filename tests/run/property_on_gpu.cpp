// Random jobs on a GPU, which may be the double that uses threads: each job is compared with one rank on the CPU, and with
// itself under other delays. Ranks share one GPU, or have one each and use NCCL. `property_on_gpu -- CASES SEED FIRST`.
#include <cstdio>

#include <boost/test/unit_test.hpp>

#include "run/random_jobs.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(a_gpu_trains_like_a_cpu) {
  std::size_t by_nccl = 0;
  const auto [run, passed_over] =
      each_random_job(under_thread_sanitizer ? 4 : 12, 3, [&](const Job& job, std::uint64_t number) {
        const bool nccl = job.ranks <= 4 && number % 2 == 0;
        by_nccl += nccl ? 1 : 0;
        BOOST_TEST_CONTEXT((nccl ? "by NCCL" : "through the host")) {
          const Threads threads = nccl ? Threads::of_own_gpu : Threads::of_gpu;
          const Outcome outcome = train(job, threads);
          BOOST_TEST(difference(job, outcome, train(reference(job))) == "");
          if (number % 3 == 1) BOOST_TEST(same_bits(train(job, threads), outcome), "another time gives other bits");
        }
      });
  std::printf("%zu random jobs agree with one rank on the CPU, %zu of them by NCCL (%zu more had nothing to train or wrap)\n",
              run, by_nccl, passed_over);
}

BOOST_AUTO_TEST_CASE(an_invariant_update_has_the_same_bits_on_any_number_of_gpus) {
  std::size_t ranks = 1;
  each_random_job(under_thread_sanitizer ? 2 : 4, 4, [&](const Job& any, std::uint64_t number) {
    ranks = ranks == 4 ? 2 : 4;
    const std::size_t micro_batches = 4 * (1 + number % 3);
    const Outcome one = train(invariant_job(any, micro_batches, 1), Threads::of_gpu);
    const Threads threads = number % 2 == 0 ? Threads::of_own_gpu : Threads::of_gpu;
    BOOST_TEST(same_bits(train(invariant_job(any, micro_batches, ranks), threads), one));
  });
}
