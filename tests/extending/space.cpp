// The example of docs/extending-space.md, state in a mapped file: its effect on a run. The page shows the compiled
// code.
#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "base/error.hpp"
#include "comm/threads/threads.hpp"
#include "extending/document.hpp"
#include "extending/small_job.hpp"
#include "kernels/threads.hpp"
#include "run/sharded_model.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// A file without a name in the folder for temporary files, which goes away with the process.
Buffer map_file(const Means&, std::size_t bytes) {
  if (bytes == 0) return {};
  const std::string pattern = (std::filesystem::temp_directory_path() / "fsdp-space-XXXXXX").string();
  std::vector<char> name(pattern.begin(), pattern.end());
  name.push_back('\0');
  const int file = ::mkstemp(name.data());
  check_errno(file >= 0, "make a file for offloaded state");
  ::unlink(name.data());
  void* memory = MAP_FAILED;
  if (::ftruncate(file, static_cast<off_t>(bytes)) == 0)
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  check_errno(memory != MAP_FAILED, "map a file for offloaded state");
  return {static_cast<std::byte*>(memory), bytes, [](std::byte* data, std::size_t n) { ::munmap(data, n); }};
}
const Space mapped_file = {.name = "mapped file", .on_device = false, .collective = false, .open = map_file};

struct Trained {
  std::vector<double> losses;
  std::vector<float> parameters;  // of all units of rank 0
  std::size_t offloaded = 0, in_files = 0;
};

/// Everything that can be offloaded is in `space`; if it is null, nothing is offloaded.
Trained train(const char* strategy, int ranks, const Space* space) {
  Trained trained;
  run_ranks(ranks, [&](Communicator& world) {
    kernels::set_threads(1);
    const auto device = make_cpu_device();
    ShardingOptions options = {.strategy = strategy, .batch = {B, T}, .plan = {.micro_batches = 2}};
    options.plan.offload_optimizer = options.plan.offload_parameters = space != nullptr;
    if (space) options.plan.offload_to = space;
    ShardedModel sharded(small_model(), options, world);  // checks the plan
    Executor& executor = sharded.allocate(*device);
    executor.initialize_parameters(3);
    executor.publish_parameters();
    for (std::uint64_t update = 1; update <= 3; ++update) {
      const UpdateResult result =
          executor.run_update([&](std::size_t micro, std::int32_t* inputs,
                                  std::int32_t* targets) { read_small_batch(world.rank(), micro, inputs, targets); },
                              {.update = update,
                               .learning_rate = 1e-2,
                               .clip_norm = 1,
                               .tokens = static_cast<double>(B * T * 2 * static_cast<std::size_t>(ranks))});
      if (world.rank() == 0) trained.losses.push_back(result.loss);
    }
    if (world.rank() != 0) return;
    for (std::size_t u = 0; u < sharded.layout().units().size(); ++u)
      for (const float value : executor.parameters().values(u)) trained.parameters.push_back(value);
    trained.offloaded = sharded.plan().offloaded_bytes();
    trained.in_files = sharded.plan().bytes_in(mapped_file);
  });
  return trained;
}

}  // namespace

BOOST_AUTO_TEST_CASE(state_in_files_gives_the_same_bits) {
  for (const char* strategy : {"full", "grad-op", "optim", "none"})
    for (const int ranks : {1, 2, 3}) {
      const Trained kept = train(strategy, ranks, nullptr), mapped = train(strategy, ranks, &mapped_file);
      BOOST_TEST(mapped.losses == kept.losses, boost::test_tools::per_element());
      BOOST_TEST((mapped.parameters == kept.parameters));
      BOOST_TEST(kept.offloaded == 0u);
      BOOST_TEST(mapped.offloaded > 0u);
      BOOST_TEST(mapped.in_files == mapped.offloaded);
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
    if (!entry.is_regular_file() || file == "lib/run/spaces.cpp" || file == "lib/plan/plan.hpp") continue;
    // Every plan has host buffers: the batch, the results and what operations access on the host.
    if (file == "lib/plan/build/plan_builder.cpp") continue;
    BOOST_TEST(read_file(entry.path()).find("spaces::host") == std::string::npos, file);
  }
}
