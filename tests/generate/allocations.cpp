// Generating a token allocates no memory: calls of operator new are counted, including those of libfsdp.
#include <boost/test/unit_test.hpp>

#include "count_allocations.hpp"
#include "generate/model.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(tokens_do_not_allocate) {
  ModelRun run(small_llama(), 96);
  run.randomize(1, 0.3f);
  const auto large_ones = [&](std::size_t tokens) {
    const std::size_t before = large_allocations();
    const auto texts =
        generate(run, {.prompts = {{1, 2, 3}, {4, 5}},
                       .options = {.sampling = {.temperature = 1, .top_k = 5, .top_p = 0.9, .repetition_penalty = 1.1},
                                   .max_new_tokens = tokens}});
    BOOST_TEST(texts.size() == 2u);
    return large_allocations() - before;
  };
  large_ones(50);  // the first tokens allocate memory that is kept
  BOOST_TEST(large_ones(20) == large_ones(90));
}
