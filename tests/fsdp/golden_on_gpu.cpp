// The golden runs of PyTorch on a GPU: on the double of CUDA that is made of threads (cuda_double/), or on a real one. Ranks
// are threads and share it.
#define BOOST_TEST_MODULE fsdp.golden_on_gpu
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

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
