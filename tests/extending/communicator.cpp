// Adds the communicator of docs/extending-communicator.md (slow_network.cpp) from outside the library. A model trained
// over it has the bits of a run with threads.
#include "mpi_main.hpp"

#include "base/timer.hpp"
#include "comm/collective_checks.hpp"
#include "comm/threads/threads.hpp"
#include "kernels/threads.hpp"
#include "options/options.hpp"
#include "run/sharded_model.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

const Backend& slow_backend();

namespace {

constexpr std::size_t B = 2, T = 8;

struct Result {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> weights;  // of this rank, by unit
  bool operator==(const Result&) const = default;
};

Result train(Communicator& world, const char* strategy) {
  kernels::set_threads(1);
  TransformerConfig config = find_family("gpt2").defaults;
  config.vocab_size = 53, config.max_positions = T, config.width = 16, config.layers = 2;
  config.heads = config.kv_heads = 2, config.head_size = 8, config.ffn_width = 24;
  const auto device = make_cpu_device();
  ShardedModel sharded(config, {.strategy = strategy, .shard_group_size = world.size(), .batch = {B, T}}, world);
  Executor& executor = sharded.allocate(*device);
  executor.initialize_parameters(7);
  executor.publish_parameters();
  Result result;
  for (std::uint64_t u = 1; u <= 3; ++u) {
    const auto read = [&](std::size_t, std::int32_t* inputs, std::int32_t* targets) {
      for (std::size_t i = 0; i < B * T; ++i) {
        const std::size_t token = (u * 16 + static_cast<std::size_t>(world.rank())) * B * T + i;
        inputs[i] = static_cast<std::int32_t>(token * token % 53);
        targets[i] = static_cast<std::int32_t>((token + 1) * (token + 1) % 53);
      }
    };
    const UpdateResult done =
        executor.run_update(read, {.update = u,
                                   .learning_rate = 0.01,
                                   .clip_norm = 1,
                                   .tokens = static_cast<double>(B * T * static_cast<std::size_t>(world.size()))});
    result.losses.push_back(done.loss);
    result.norms.push_back(done.gradient_norm);
  }
  for (std::size_t u = 0; u < sharded.layout().units().size(); ++u) result.weights.push_back(executor.parameters().values(u));
  return result;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_backend_is_known_once_it_is_added) {
  CHECK_CONTAINS(message_of([] { find_backend("slow"); }),
                 "\"slow\" is no known way to connect ranks (known are auto, nccl, shm, mpi)");
  add_backend(slow_backend());
  BOOST_TEST(&find_backend("slow") == &slow_backend());
  BOOST_CHECK_THROW(add_backend(slow_backend()), InternalError);
  const char* const words[] = {"program", "--data", "train.bin", "--arch", "gpt2", "--max-update", "9", "--comm", "slow"};
  BOOST_TEST(parse_train_command(9, words, 1).options.comm.kind == "slow");
}

BOOST_AUTO_TEST_CASE(its_groups_are_what_communicators_must_be) {
  const auto slow = session().world({.kind = "slow"});
  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  BOOST_TEST(slow->description().find("a slow network over MPI") == 0u);
  BOOST_TEST(slow->split(0, -slow->rank())->description().find("a slow network over MPI") == 0u);
  for (const std::size_t count : {0u, 1u, 5u, 1000u}) check_count(*slow, *stream, count);
  check_splits(*slow, *stream);
  BOOST_TEST(slow->staging_bytes() == slow_backend().staging_bytes(one_node(slow->size())));
}

BOOST_AUTO_TEST_CASE(it_is_slow) {
  const auto slow = session().world({.kind = "slow"});
  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  std::vector<float> data(2'000'000);
  const Timer timer;
  slow->all_reduce(*stream, data.data(), data.size(), DType::f32);
  // The latency, and the time for 8 MB times 2 (n-1)/n at 1.25 GB/s. A sleep is never shorter than asked for,
  // so no load of the machine fails this.
  BOOST_TEST(timer.seconds() >= (slow->size() > 1 ? 0.0064 : 20e-6));
}

BOOST_AUTO_TEST_CASE(training_over_it_gives_the_bits_of_threads) {
  for (const char* strategy : {"full", "optim", "none"}) {
    const auto slow = session().world({.kind = "slow"});
    const Result ours = train(*slow, strategy);
    Result theirs;
    run_ranks(world().size(), [&](Communicator& threads) {
      Result result = train(threads, strategy);
      if (threads.rank() == world().rank()) theirs = result;
    });
    BOOST_TEST(ours.losses.size() == 3u);
    BOOST_TEST((ours == theirs), strategy);
  }
}

// The page contains the compiled file.
BOOST_AUTO_TEST_CASE(the_document_shows_the_whole_code) {
  const std::filesystem::path tests = std::filesystem::path(FSDP_TEST_DATA).parent_path();
  const std::string document = read_file(tests.parent_path() / "docs" / "extending-communicator.md");
  BOOST_TEST(document.find("```cpp\n" + read_file(tests / "extending" / "slow_network.cpp") + "```\n") != std::string::npos);
}
