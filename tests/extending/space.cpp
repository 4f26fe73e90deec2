// The example of docs/extending-space.md, state in a file: its effect on a run. The page shows the compiled code.
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/save_folder.hpp"
#include "comm/threads/threads.hpp"
#include "engine/memory.hpp"
#include "extending/document.hpp"
#include "extending/small_job.hpp"
#include "kernels/threads.hpp"
#include "run/host_states.hpp"
#include "run/sharded_model.hpp"
#include "support/files.hpp"
#include "support/threaded_device.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace fs = std::filesystem;

namespace {

/// A temporary file without a name, which goes away with the process.
class FileStorage : public Storage {
 public:
  explicit FileStorage(std::size_t bytes) : file_(std::tmpfile()) {
    if (!file_ || ::ftruncate(::fileno(file_), static_cast<off_t>(bytes)) != 0) fail("made");
  }
  ~FileStorage() override { std::fclose(file_); }
  void read(Stream&, std::size_t begin, void* to, std::size_t bytes) override {
    copy_all("read", ::pread, begin, static_cast<std::byte*>(to), bytes);
  }
  void write(Stream&, std::size_t begin, const void* from, std::size_t bytes) override {
    copy_all("written", ::pwrite, begin, static_cast<const std::byte*>(from), bytes);
  }

 private:
  template <class Call, class Byte>
  void copy_all(const char* done, Call call, std::size_t begin, Byte* memory, std::size_t bytes) {
    while (bytes > 0) {
      const ssize_t n = call(::fileno(file_), memory, bytes, static_cast<off_t>(begin));
      if (n <= 0) fail(done);
      memory += n, begin += static_cast<std::size_t>(n), bytes -= static_cast<std::size_t>(n);
    }
  }
  [[noreturn]] static void fail(const char* done) {
    throw RunError(format("the file of the space 'file' cannot be {} ({}); continue from the last checkpoint", done,
                          std::strerror(errno)));
  }
  std::FILE* file_;
};
const Space in_file = {.name = "file", .tier = Tier::disk, .collective = false, .open = [](const Means&, std::size_t bytes) {
                         return std::unique_ptr<Storage>(new FileStorage(bytes));
                       }};

/// The file of one rank fails when it is read for the reads_left-th time.
std::atomic<int> reads_left = 0;
struct FailingFile : FileStorage {
  using FileStorage::FileStorage;
  void read(Stream& stream, std::size_t begin, void* to, std::size_t bytes) override {
    FileStorage::read(stream, begin, --reads_left == 0 ? nullptr : to, bytes);
  }
};
const Space failing_file = {
    .name = "file", .tier = Tier::disk, .collective = false, .open = [](const Means&, std::size_t bytes) {
      return std::unique_ptr<Storage>(new FailingFile(bytes));
    }};

struct Part {
  std::string strategy = "full";
  int ranks = 1;
  UnitTypes types = {};
  const Space* space = nullptr;  // of everything that can be offloaded; null: nothing is offloaded
  Threads threads = Threads::one;
  std::uint64_t updates = 3;
  fs::path from = {}, to = {};  // the save folders
  bool save_fails = false;
};

struct Trained {
  std::vector<double> losses;
  std::vector<std::vector<float>> states;  // of rank 0: the gradient and all other states of each unit
};

void train(const Part& stage, Communicator& world, Trained& trained) {
  kernels::set_threads(1);
  const auto device = make_device(stage.threads, static_cast<std::uint64_t>(world.rank()));
  ShardingOptions options = {.strategy = stage.strategy,
                             .shard_group_size = stage.ranks == 2 ? 1 : stage.ranks,
                             .batch = {B, T},
                             .types = stage.types,
                             .plan = {.micro_batches = 2, .average_weights = true}};
  options.plan.places = {stage.space, stage.space, stage.space};
  ShardedModel sharded(small_model(), options, world);  // checks the plan
  const std::size_t bytes = sharded.plan().offloaded_bytes();
  expect(stage.space ? bytes > 0 && sharded.plan().bytes_in(*stage.space) == bytes : bytes == 0, "state is in the space");
  EngineOptions engine;
  engine.sharding = options;
  const std::size_t counted = memory_account(engine, sharded, world, *world.split_by_node(), ProgramMemory()).offloaded;
  expect(counted == (bytes > 0 && stage.space->tier == Tier::host ? bytes : 0), "the account of memory leaves out files");
  Executor& executor = sharded.allocate(*device);
  Progress progress;
  if (stage.from.empty()) {
    executor.initialize_parameters(3);
    executor.begin_average();
  } else {
    const auto reader = CheckpointReader::open(latest_checkpoint(stage.from).value());
    progress = reader->header().progress;
    load_states(*reader, sharded.model().parameters(), sharded.layout(), sharded.shard(), executor.states());
  }
  executor.publish_parameters();
  for (std::uint64_t update = 0; update < stage.updates; ++update) {
    const UpdateResult result =
        executor.run_update([&](std::size_t micro, std::int32_t* inputs,
                                std::int32_t* targets) { read_small_batch(world.rank(), micro, inputs, targets); },
                            {.update = ++progress.update,
                             .learning_rate = 1e-2,
                             .clip_norm = 1,
                             .ema_decay = 0.5,
                             .tokens = static_cast<double>(B * T * 2) * stage.ranks});
    if (world.rank() == 0) trained.losses.push_back(result.loss);
  }
  if (stage.types.master == DType::f32) executor.swap_average();
  HostStates(sharded).copy_to(sharded);
  if (stage.types.master == DType::f32) executor.swap_average();
  std::vector<ShardState> states = executor.states();
  world.barrier();
  if (stage.save_fails && world.rank() == 0) reads_left = 1;
  world.barrier();
  if (!stage.to.empty())
    save_checkpoint(stage.to,
                    {.model = sharded.transformer().config(),
                     .progress = progress,
                     .strategy = stage.strategy,
                     .world_size = world.size(),
                     .shards = sharded.layout().shards(),
                     .units = {sharded.layout().units().begin(), sharded.layout().units().end()},
                     .optimizer = std::string(options.optimizer.kind->name),
                     .options_json = "{}",
                     .version = "test"},
                    sharded.layout(), states, world);
  if (world.rank() != 0) return;
  states.push_back(executor.gradients());
  for (const ShardState& state : states)
    for (std::size_t u = 0; u < state.units.size(); ++u) trained.states.push_back(state.values(u));
}

Trained train(const Part& stage) {
  Trained trained;
  run_ranks(stage.ranks, [&](Communicator& world) { train(stage, world, trained); });
  return trained;
}

}  // namespace

BOOST_AUTO_TEST_CASE(state_in_a_file_gives_the_same_bits) {
  const UnitTypes bf16 = {.parameter = DType::bf16}, all_bf16 = {DType::bf16, DType::bf16, DType::bf16, DType::bf16};
  for (const char* strategy : {"full", "grad-op", "optim", "none", "hybrid", "hybrid-grad-op"})
    for (const int ranks : {1, 2, 3})
      for (const UnitTypes& types : {UnitTypes{}, ranks == 2 ? all_bf16 : bf16}) {
        const TemporaryFolder folder;
        const Trained kept = train({strategy, ranks, types});
        Trained first = train({strategy, ranks, types, &in_file, Threads::one, 2, {}, folder.path()});
        // From the checkpoint, one more update: in memory, and in files with a thread for each stream.
        for (const bool in_memory : {true, false}) {
          const Trained last = train({strategy, ranks, types, in_memory ? nullptr : &in_file,
                                      in_memory ? Threads::one : Threads::each_stream, 1, folder.path()});
          BOOST_TEST(last.losses.at(0) == kept.losses.at(2));
          BOOST_TEST((last.states == kept.states), strategy << " at " << ranks << " ranks in " << name_of(types.parameter));
        }
        first.losses.push_back(kept.losses.at(2));
        BOOST_TEST(first.losses == kept.losses, boost::test_tools::per_element());
      }
}

// One rank cannot read its file: it reports that, and no other rank waits for it.
BOOST_AUTO_TEST_CASE(a_file_that_cannot_be_read_ends_the_run) {
  const std::string why = "the file of the space 'file' cannot be read (Bad address); continue from the last checkpoint";
  const auto names_it = [&](const std::exception& error) { return std::string(error.what()).find(why) != std::string::npos; };
  for (const char* strategy : {"full", "none"})
    for (const Threads threads : {Threads::one, Threads::each_stream}) {
      const TemporaryFolder folder;
      Part stage = {strategy, 3, {}, &failing_file, threads, 2, {}, folder.path()};
      for (const int nth : {1, 40, 140}) {  // at the start, and later
        reads_left = nth;
        BOOST_CHECK_EXCEPTION(train(stage), RunError, names_it);  // once all ranks have ended
      }
      stage.save_fails = true;  // all ranks then have the message
      BOOST_CHECK_EXCEPTION(train(stage), CollectiveError, names_it);
      BOOST_TEST(fs::is_empty(folder.path()));
    }
}

BOOST_AUTO_TEST_CASE(the_document_shows_what_is_compiled) { check_code_of("extending-space.md", 1); }

// Apart from these files, which the page lists, no file names the place that the library offloads to.
BOOST_AUTO_TEST_CASE(no_other_file_knows_the_place) {
  const std::filesystem::path root = std::filesystem::path(FSDP_TEST_DATA).parent_path().parent_path();
  const std::string page = read_file(root / "docs" / "extending-space.md");
  for (const char* file : {"lib/run/spaces.cpp", "lib/plan/plan.hpp", "lib/options/common_options.cpp"})
    BOOST_TEST(page.find("| `" + std::string(file) + "` |") != std::string::npos);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / "lib")) {
    const std::string file = entry.path().lexically_relative(root).string();
    if (!entry.is_regular_file() || file == "lib/run/spaces.cpp" || file == "lib/plan/plan.hpp" ||
        file == "lib/options/common_options.cpp")
      continue;
    // Every plan has host buffers: the batch, the results and what operations access on the host.
    if (file == "lib/plan/build/plan_builder.cpp") continue;
    BOOST_TEST(read_file(entry.path()).find("spaces::host") == std::string::npos, file);
  }
}
