// Streams with threads: one for communication, or one for each stream. Random delays turn a missing wait of the plan into
// different numbers. Other cases let a thread fail, which would show a hang.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <random>
#include <set>
#include <thread>

#include <boost/test/unit_test.hpp>

#include "base/error.hpp"
#include "comm/threads/threads.hpp"
#include "device/cpu/queue_stream.hpp"
#include "device/memory_view.hpp"
#include "kernels/threads.hpp"
#include "run/sharded_model.hpp"
#include "support/before_operation.hpp"
#include "support/threaded_device.hpp"

using namespace fsdp;

namespace {

TransformerConfig small_model() {
  TransformerConfig config;
  config.vocab_size = 101, config.max_positions = 12, config.width = 24, config.layers = 4, config.heads = config.kv_heads = 3;
  config.head_size = 8, config.ffn_width = 37;
  return config;
}

constexpr std::size_t B = 2, T = 12;
const OptimizerOptions adamw;

ShardingOptions options_of(const char* strategy, std::size_t micro_batches, bool recompute = false) {
  return {.strategy = strategy,
          .shard_group_size = 2,
          .batch = {B, T},
          .plan = {.micro_batches = micro_batches, .checkpoint_activations = recompute}};
}

void read_tokens(std::size_t micro, std::int32_t* inputs, std::int32_t* targets) {
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(B * T); ++i) {
    inputs[i] = (i * i + 3 * static_cast<std::int32_t>(micro)) % 101;
    targets[i] = (7 * i + static_cast<std::int32_t>(micro)) % 101;
  }
}

struct History {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> weights;  // rank 0's shards, by unit
  bool operator==(const History&) const = default;
};

History train(Executor& executor, std::size_t micro_batches, int ranks) {
  History history;
  executor.initialize_parameters(3);
  executor.publish_parameters();
  for (std::uint64_t u = 1; u <= 3; ++u) {
    const UpdateResult result = executor.run_update(
        read_tokens, {.update = u,
                      .learning_rate = 1e-2,
                      .clip_norm = 1,
                      .tokens = static_cast<double>(B * T * micro_batches * static_cast<std::size_t>(ranks))});
    history.losses.push_back(result.loss);
    history.norms.push_back(result.gradient_norm);
  }
  history.losses.push_back(executor.evaluate(read_tokens).value());
  const ShardState parameters = executor.parameters();
  for (std::size_t u = 0; u < parameters.units.size(); ++u) history.weights.push_back(parameters.values(u));
  return history;
}

/// Makes the device of a rank.
using MakeDevice = std::function<std::unique_ptr<Device>(int rank)>;
std::unique_ptr<Device> in_turn(int) { return test::make_device(test::Threads::one, 0); }
std::unique_ptr<Device> with_comm_thread(int) { return test::make_device(test::Threads::communication, 0); }
std::unique_ptr<Device> with_three_threads(int rank) {
  return test::make_device(test::Threads::each_stream, static_cast<std::uint64_t>(rank));
}

History train(int ranks, const ShardingOptions& sharding, const MakeDevice& make_device = in_turn,
              Observer* observer = nullptr) {
  History of_rank_0;
  run_ranks(ranks, [&](Communicator& world) {
    kernels::set_threads(1);
    const auto device = make_device(world.rank());
    ShardedModel sharded(small_model(), sharding, world);
    Executor& executor = sharded.allocate(*device);
    if (observer) executor.observe(*observer);
    History history = train(executor, sharding.plan.micro_batches, ranks);
    if (world.rank() == 0) of_rank_0 = std::move(history);
  });
  return of_rank_0;
}

/// Delays every fourth operation by up to 0.3 ms.
void dawdle(const Operation&) {
  thread_local std::minstd_rand dice(static_cast<unsigned>(std::hash<std::thread::id>()(std::this_thread::get_id())));
  if (dice() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(dice() % 300));
}

/// Keeps the times of the last update.
class LastTimes : public Observer {
 public:
  bool needs_times(const ListRun&) override { return true; }
  void finished(const ListRun& run) override {
    if (run.update > 0) times.assign(run.times.begin(), run.times.end());
  }
  std::vector<OperationTime> times;
};

}  // namespace

BOOST_AUTO_TEST_CASE(results_are_the_same_bits) {
  std::size_t cases = 0;
  test::BeforeOperation delays(dawdle);
  for (const int ranks : {1, 2, 3, 4})
    for (const char* strategy : {"full", "grad-op", "optim", "none", "hybrid", "hybrid-grad-op"})
      for (const std::size_t micro_batches : {1u, 3u}) {
        if (ranks % 2 == 1 && std::string_view(strategy).starts_with("hybrid")) continue;
        const ShardingOptions sharding = options_of(strategy, micro_batches, ranks % 2 == 0);
        const History one_thread = train(ranks, sharding);
        BOOST_TEST((one_thread == train(ranks, sharding, with_comm_thread, &delays)),
                   strategy << " at " << ranks << " ranks, " << micro_batches << " micro-batches, a communication thread");
        BOOST_TEST((one_thread == train(ranks, sharding, with_three_threads)),
                   strategy << " at " << ranks << " ranks, " << micro_batches << " micro-batches, a thread for each stream");
        ++cases;
      }
  BOOST_TEST(cases == 2u * 6 * 2 + 2 * 4 * 2);
}

// Without this guard, the tests with a thread for each stream would not detect host code that accesses device memory.
BOOST_AUTO_TEST_CASE(host_code_cannot_touch_a_devices_memory) {
  if (!test::guards_memory()) {
    BOOST_TEST_MESSAGE("this processor has no memory protection keys: host code that touches a device's memory is not found");
    return;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    const auto device = with_three_threads(0);
    const auto stream = device->make_stream();
    const Buffer memory = device->allocate(100);
    on_stream(*stream, [&] { memory.data()[7] = std::byte{1}; });
    const MemoryView view({memory.data(), memory.bytes()}, *stream);
    std::byte seen{};
    view.read(7, std::span(&seen, 1));
    if (seen != std::byte{1}) ::_exit(1);
    const volatile std::byte* const touched = memory.data();
    ::_exit(touched[7] == std::byte{1} ? 2 : 3);
  }
  int status = 0;
  BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
  BOOST_TEST((WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV));
}

BOOST_AUTO_TEST_CASE(communication_runs_while_the_model_computes) {
  std::atomic<int> together = 0;  // operations that began while the other thread was in one
  run_ranks(2, [&](Communicator& world) {
    kernels::set_threads(1);
    const auto device = with_comm_thread(0);
    ShardedModel sharded(small_model(), options_of("full", 1), world);
    Executor& executor = sharded.allocate(*device);
    LastTimes last;
    test::BeforeOperation delays(dawdle);
    executor.observe(delays), executor.observe(last);
    const std::vector<OperationTime>& times = last.times;
    executor.initialize_parameters(3);
    for (std::uint64_t u = 1; u <= 5; ++u) {
      executor.run_update(read_tokens, {.update = u, .learning_rate = 1e-2, .tokens = B * T * 2.0});
      const auto& operations = sharded.plan().update;
      for (std::size_t i = 0; i < times.size(); ++i)
        for (std::size_t j = 0; j < times.size(); ++j) {
          if ((operations[i].stream == StreamId::compute) == (operations[j].stream == StreamId::compute)) continue;
          together += times[i].begin_ns > times[j].begin_ns && times[i].begin_ns < times[j].end_ns;
        }
      // An operation begins after the operations that it waits for.
      for (std::size_t i = 0; i < times.size(); ++i)
        for (const int w : operations[i].waits)
          expect(times[i].begin_ns >= times[static_cast<std::size_t>(w)].end_ns, "waits are kept");
    }
    expect(executor.times().collectives > 0 && executor.times().exposed > 0, "both threads are timed");
  });
  BOOST_TEST(together > 0);
}

// Shows that the test above can detect a missing wait: removes a wait, and delays the operation that it waited for.
BOOST_AUTO_TEST_CASE(a_missing_wait_shows) {
  const ShardingOptions sharding = options_of("full", 1);
  const History sound = train(2, sharding);
  std::size_t seen = 0, removed = 0;
  for (const Kind* kind : {&kinds::block_forward, &kinds::block_backward, &kinds::reduce_scatter_gradient, &kinds::optimizer}) {
    History of_rank_0;
    run_ranks(2, [&](Communicator& world) {
      kernels::set_threads(1);
      const auto device = with_three_threads(world.rank());
      Transformer model(small_model());
      Mesh mesh = make_mesh(world, 2, 1);
      mesh.gather = mesh.shard().split(0, world.rank());
      ShardedPlan planned = plan_sharding(model, sharding, {2, 1});
      std::set<int> waited_for;
      for (Operation& op : planned.plan.update)
        if (op.kind == kind) {
          for (const int w : op.waits) waited_for.insert(w);
          op.waits.clear();
        }
      if (world.rank() == 0) removed += waited_for.size();
      const Operation* const first = planned.plan.update.data();
      test::BeforeOperation late([&](const Operation& op) {
        if (&op >= first && &op < first + planned.plan.update.size() && waited_for.contains(static_cast<int>(&op - first)))
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
      });
      std::vector<std::unique_ptr<Storage>> memory;
      for (const bool collective : {false, true}) open_spaces(planned.plan.spaces, {*device, mesh.shard()}, collective, memory);
      Executor executor(model, planned.layout, planned.plan, sharding.batch, adamw, *device, std::move(memory), mesh);
      executor.observe(late);
      History history = train(executor, 1, 2);
      if (world.rank() == 0) of_rank_0 = std::move(history);
    });
    const bool differs = !(of_rank_0 == sound);
    BOOST_TEST(differs, "nothing was seen of the missing waits of " << kind->name);
    seen += differs;
  }
  BOOST_TEST_MESSAGE("missing waits were seen in " << seen << " of 4 kinds of operations, " << removed << " waits removed");
}

// The sections of an update must be called once each and in order, with no other call between them.
BOOST_AUTO_TEST_CASE(sections_come_in_their_order) {
  const BatchReader read = read_tokens;
  const UpdateScalars scalars = {.learning_rate = 1e-2, .tokens = static_cast<double>(B * T)};
  for (const MakeDevice& make_device : {MakeDevice(with_comm_thread), MakeDevice(with_three_threads)})
    run_ranks(1, [&](Communicator& world) {
      kernels::set_threads(1);
      const auto device = make_device(world.rank());
      ShardedModel sharded(small_model(), options_of("full", 1), world), same(small_model(), options_of("full", 1), world);
      Executor &executor = sharded.allocate(*device), &at_once = same.allocate(*device);
      for (Executor* one : {&executor, &at_once}) one->initialize_parameters(7), one->publish_parameters();
      BOOST_CHECK_THROW(executor.forward_backward(), InternalError);
      BOOST_CHECK_THROW(executor.update_parameters(), InternalError);
      read(0, executor.next_batch(0), executor.next_batch(0) + executor.batch().inputs / sizeof(std::int32_t));
      executor.begin_update(scalars);
      BOOST_CHECK_THROW(executor.begin_update(scalars), InternalError);
      BOOST_CHECK_THROW(executor.evaluate(read), InternalError);
      BOOST_CHECK_THROW(executor.gradient_norm(), InternalError);
      executor.forward_backward();
      BOOST_CHECK_THROW(executor.forward_backward(), InternalError);
      BOOST_CHECK_THROW(executor.update_parameters(), InternalError);
      executor.gradient_norm();
      const UpdateResult in_sections = executor.update_parameters(), whole = at_once.run_update(read, scalars);
      BOOST_TEST(in_sections.loss == whole.loss);
      BOOST_TEST(in_sections.gradient_norm == whole.gradient_norm);
      BOOST_CHECK_THROW(executor.gradient_norm(), InternalError);
    });
}

// Also if the host waits after each operation.
BOOST_AUTO_TEST_CASE(an_error_on_either_thread_ends_all_ranks) {
  for (const bool looks : {false, true})
    for (const StreamId where : {StreamId::compute, StreamId::gather, StreamId::reduce})
      for (const MakeDevice& make_device : {MakeDevice(with_comm_thread), MakeDevice(with_three_threads)}) {
        const int failing = where == StreamId::gather ? 0 : 2;
        std::atomic<int> ended = 0;
        const auto job = [&] {
          run_ranks(3, [&](Communicator& world) {
            kernels::set_threads(1);
            const auto device = make_device(world.rank());
            ShardedModel sharded(small_model(), options_of("full", 2), world);
            int left = 20;  // operations until the chosen thread fails
            bool fails = !looks;
            test::BeforeOperation fail([&](const Operation& op) {
              if (fails && world.rank() == failing && op.stream == where && left-- == 0) throw RunError("the disk is full");
            });
            Executor& executor = sharded.allocate(*device);
            executor.observe(fail);
            UpdateScalars scalars = {.learning_rate = 1e-2, .tokens = B * T * 6.0};
            try {
              executor.initialize_parameters(3);
              executor.publish_parameters();
              for (; scalars.update <= 3; ++scalars.update)
                if (looks && std::exchange(fails, true))
                  executor.find_non_finite(scalars);
                else
                  executor.run_update(read_tokens, scalars);
            } catch (...) {
              ++ended;
              throw;
            }
          });
        };
        BOOST_CHECK_EXCEPTION(job(), RunError, [](const RunError& e) { return e.what() == std::string("the disk is full"); });
        BOOST_TEST(ended == 3);
      }
}

// If a stream's queue is full, the caller waits.
BOOST_AUTO_TEST_CASE(a_long_queue_is_done_in_its_order) {
  const auto device = with_three_threads(0);
  const auto stream = device->make_stream();
  std::vector<std::size_t> done;
  constexpr std::size_t entries = 3 * QueueStream::capacity;
  done.reserve(entries);
  for (std::size_t i = 0; i < entries; ++i)
    stream->submit({[](void* context, std::size_t index) {
                      if (index == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
                      static_cast<std::vector<std::size_t>*>(context)->push_back(index);
                    },
                    &done, i});
  stream->synchronize();
  BOOST_TEST_REQUIRE(done.size() == entries);
  for (std::size_t i = 0; i < entries; ++i) BOOST_TEST_REQUIRE(done[i] == i);
}
