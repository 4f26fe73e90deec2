// The example of docs/extending.md, "A strategy": a model trains with one more row of the table.
#include <boost/test/unit_test.hpp>

#include "base/error.hpp"
#include "comm/threads/threads.hpp"
#include "extending/small_job.hpp"
#include "kernels/threads.hpp"
#include "run/sharded_model.hpp"
#include "support/files.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

// --- the example ---
// ZeRO's second stage: every rank has all parameters, and a part of the gradients and of the optimizer's states.
const Placement zero_2 = {.name = "zero-2",
                          .axis = ShardAxis::world,
                          .parameters_at_rest = Place::whole,
                          .parameters_forward_to_backward = Place::whole,
                          .gradients_between_micro_batches = Place::sharded,
                          .optimizer_state = Place::sharded};
// --- the end of it ---

struct Added {
  Added() { add_placement(zero_2); }
};
BOOST_TEST_GLOBAL_FIXTURE(Added);

constexpr std::size_t micro_batches = 2;

ShardingOptions options_of(const char* strategy) {
  return {.strategy = strategy, .batch = {B, T}, .plan = {.micro_batches = micro_batches}};
}

struct Trained {
  std::vector<double> losses, norms;
  std::size_t peak_bytes = 0, gathers = 0, reductions = 0;  // peak and counts of one update, on rank 0
};

Trained train(const char* strategy, int ranks) {
  Trained trained;
  run_ranks(ranks, [&](Communicator& world) {
    kernels::set_threads(1);
    const auto device = make_cpu_device();
    ShardedModel sharded(small_model(), options_of(strategy), world);  // checks the plan
    Executor& executor = sharded.allocate(*device);
    executor.initialize_parameters(3);
    executor.publish_parameters();
    for (std::uint64_t update = 1; update <= 4; ++update) {
      const UpdateResult result =
          executor.run_update([&](std::size_t micro, std::int32_t* inputs,
                                  std::int32_t* targets) { read_small_batch(world.rank(), micro, inputs, targets); },
                              {.update = update,
                               .learning_rate = 1e-2,
                               .clip_norm = 1,
                               .tokens = static_cast<double>(B * T * micro_batches * static_cast<std::size_t>(ranks))});
      if (world.rank() == 0) trained.losses.push_back(result.loss), trained.norms.push_back(result.gradient_norm);
    }
    if (world.rank() != 0) return;
    trained.peak_bytes = sharded.plan().peak_bytes;
    for (const Operation& op : sharded.plan().update) {
      trained.gathers += op.kind == &kinds::all_gather_parameters;
      trained.reductions += op.kind == &kinds::reduce_scatter_gradient;
    }
  });
  return trained;
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_document_shows_this) {
  const std::filesystem::path tests = std::filesystem::path(FSDP_TEST_DATA).parent_path();
  const std::string source = test::read_file(tests / "extending" / "strategy.cpp"), begin = "// --- the example ---\n";
  const std::size_t at = source.find(begin) + begin.size();
  const std::string example = source.substr(at, source.find("// --- the end of it ---") - at);
  BOOST_TEST(test::read_file(tests.parent_path() / "docs" / "extending.md").find("```cpp\n" + example + "```\n") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_row_is_a_strategy) {
  BOOST_TEST(find_placement("zero-2").name == "zero-2");
  for (const int ranks : {1, 2, 3, 4}) {
    const Trained full = train("full", ranks), ours = train("zero-2", ranks), optim = train("optim", ranks);
    BOOST_TEST(ours.losses == full.losses, boost::test_tools::per_element());  // the sums have the same order
    BOOST_TEST(ours.norms == full.norms, boost::test_tools::per_element());
    if (ranks == 1) continue;
    // Each unit is gathered after its update, and reduced in every micro-batch.
    BOOST_TEST(ours.gathers == 4u);
    BOOST_TEST(ours.reductions == 4 * micro_batches);
    BOOST_TEST(ours.peak_bytes < optim.peak_bytes);  // whole gradients are not kept
  }
}

BOOST_AUTO_TEST_CASE(a_row_that_cannot_be_is_refused) {
  BOOST_CHECK_THROW(add_placement(zero_2), InternalError);
  // If nothing is sharded over the ranks, it is not known which rank updates which part.
  BOOST_CHECK_THROW(add_placement({"copies", ShardAxis::world, Place::whole, Place::whole, Place::whole, Place::whole}),
                    InternalError);
  Placement row = zero_2;
  row.name = "HYBRID_SHARD";
  BOOST_CHECK_THROW(add_placement(row), InternalError);
  row.name = "parameters-alone", row.parameters_at_rest = Place::sharded;
  row.gradients_between_micro_batches = row.optimizer_state = Place::whole;
  BOOST_CHECK_THROW(add_placement(row), InternalError);
}
