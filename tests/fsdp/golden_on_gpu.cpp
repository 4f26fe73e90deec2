// The golden runs of PyTorch on a GPU: on the double of CUDA that is made of threads (cuda_double/), or on a real one. Ranks
// are threads and share it, or have one each and NCCL (its double) between them.
#define BOOST_TEST_MODULE fsdp.golden_on_gpu
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <optional>

#include "fsdp/golden_run.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

const char* const names[] = {"gpt2-tied", "llama-gqa", "llama3-tied"};

Case on_gpu(int ranks, const std::string& strategy = "full") {
  return {.ranks = ranks, .strategy = strategy, .group = group_for(ranks), .threads = Threads::of_gpu};
}

}  // namespace

BOOST_DATA_TEST_CASE(pytorch_is_reproduced, boost::unit_test::data::make(names), name) {
  for (const int ranks : {1, 2, 3, 4}) BOOST_TEST_CONTEXT(name << " " << ranks << " ranks") {
      compare_with_pytorch(name, train_golden(name, on_gpu(ranks)));
    }
}

BOOST_DATA_TEST_CASE(nccl_gives_the_bits_of_the_cpus_collectives, boost::unit_test::data::make(names), name) {
  for (const int ranks : {2, 3, 4}) BOOST_TEST_CONTEXT(name << " " << ranks << " ranks") {
      Case by_nccl = on_gpu(ranks);
      by_nccl.threads = Threads::of_own_gpu;
      by_nccl.comm.kind = "nccl";
      BOOST_TEST((train_golden(name, by_nccl) == train_golden(name, on_gpu(ranks))));
    }
}

BOOST_AUTO_TEST_CASE(all_strategies_have_the_same_bits_by_nccl) {
  for (const DType reduce : {DType::f32, DType::bf16}) {
    std::optional<History> first;
    for (const std::string& strategy : strategies) BOOST_TEST_CONTEXT(strategy) {
        Case by_nccl = on_gpu(4, strategy);
        by_nccl.threads = Threads::of_own_gpu;
        by_nccl.comm.kind = "nccl";
        by_nccl.reduce = reduce;
        const History history = train_golden(names[0], by_nccl);
        if (!first) first = history;
        BOOST_TEST((history.losses == first->losses));
        BOOST_TEST((history.final_weights == first->final_weights));
      }
  }
}

BOOST_DATA_TEST_CASE(the_librarys_order_is_within_bounds_and_repeatable, boost::unit_test::data::make(names), name) {
  for (const int ranks : {2, 3, 4}) BOOST_TEST_CONTEXT(name << " " << ranks << " ranks") {
      Case by_nccl = on_gpu(ranks);
      by_nccl.threads = Threads::of_own_gpu;
      by_nccl.comm = {.kind = "nccl", .sum_order = SumOrder::library};
      const History history = train_golden(name, by_nccl);
      compare_with_pytorch(name, history);
      BOOST_TEST((train_golden(name, by_nccl) == history));
    }
}
