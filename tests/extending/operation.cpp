// The example of docs/extending-operation.md, clipping by value: its effect on a run with any strategy. The page shows
// the compiled lines.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "comm/threads/threads.hpp"
#include "extending/document.hpp"
#include "extending/small_job.hpp"
#include "kernels/threads.hpp"
#include "options/options.hpp"
#include "run/sharded_model.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr std::size_t micro_batches = 1;  // strategies sum several in different orders

struct Trained {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> gradients;  // of the first update: this rank's, by unit
};

/// Returns the results by rank. With a `clip_value` of 0 nothing is clipped; `step` is the learning rate.
std::vector<Trained> train(const char* strategy, int ranks, double clip_value, double step = 1e-2, DType type = DType::f32) {
  std::vector<Trained> all(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](Communicator& world) {
    kernels::set_threads(1);
    const auto device = make_cpu_device();
    ShardingOptions options = {
        .strategy = strategy, .batch = {B, T}, .plan = {.micro_batches = micro_batches, .clip_values = clip_value > 0}};
    options.types.parameter = type;
    options.optimizer.kind = &sgd_optimizer();
    ShardedModel sharded(small_model(), options, world);  // checks the plan
    Executor& executor = sharded.allocate(*device);
    executor.initialize_parameters(3);
    executor.publish_parameters();
    Trained& mine = all[static_cast<std::size_t>(world.rank())];
    for (std::uint64_t update = 1; update <= 3; ++update) {
      const UpdateResult result =
          executor.run_update([&](std::size_t micro, std::int32_t* inputs,
                                  std::int32_t* targets) { read_small_batch(world.rank(), micro, inputs, targets); },
                              {.update = update,
                               .learning_rate = step,
                               .clip_value = clip_value,
                               .tokens = static_cast<double>(B * T * micro_batches * static_cast<std::size_t>(ranks)),
                               .loss_scale = type == DType::f16 ? 1024.0 : 1.0});
      mine.losses.push_back(result.loss), mine.norms.push_back(result.gradient_norm);
      if (update == 1)
        for (std::size_t u = 0; u < sharded.layout().units().size(); ++u)
          mine.gradients.push_back(executor.gradients().values(u));
    }
  });
  return all;
}

constexpr double most = 0.01;

}  // namespace

BOOST_AUTO_TEST_CASE(no_element_is_larger) {
  for (const char* strategy : {"full", "grad-op", "optim", "none"})
    for (const int ranks : {1, 2, 3}) {
      const auto before = train(strategy, ranks, 0), after = train(strategy, ranks, most);
      std::size_t changed = 0, same = 0;
      for (std::size_t r = 0; r < before.size(); ++r) {
        BOOST_TEST(after[r].norms[0] == before[r].norms[0]);  // the norm before clipping
        for (std::size_t u = 0; u < before[r].gradients.size(); ++u)
          for (std::size_t i = 0; i < before[r].gradients[u].size(); ++i) {
            const float g = before[r].gradients[u][i], limit = static_cast<float>(most);
            const float want = std::clamp(g, -limit, limit);
            if (after[r].gradients[u][i] != want) BOOST_FAIL("another element");
            ++(g == want ? same : changed);
          }
      }
      BOOST_TEST(changed > 50u);
      BOOST_TEST(same > 50u);
    }
}

BOOST_AUTO_TEST_CASE(every_strategy_gives_the_same_bits) {
  for (const int ranks : {2, 3}) {
    const Trained full = train("full", ranks, most).front();
    BOOST_TEST((full.losses != train("full", ranks, 0).front().losses));
    for (const char* strategy : {"grad-op", "optim", "none"}) {
      const Trained other = train(strategy, ranks, most).front();
      BOOST_TEST(other.losses == full.losses, boost::test_tools::per_element());
      BOOST_TEST(other.norms == full.norms, boost::test_tools::per_element());
    }
  }
}

// With a learning rate of 0 the weights do not change. Both the gradient and the limit contain the loss scale.
BOOST_AUTO_TEST_CASE(the_limit_is_that_of_the_gradient_without_the_loss_scale) {
  float largest = 0;
  for (const Trained& rank : train("full", 2, most, 0, DType::f16))
    for (const auto& unit : rank.gradients)
      for (const float g : unit) largest = std::max(largest, std::abs(g));
  BOOST_TEST(largest == static_cast<float>(most * 1024));
}

BOOST_AUTO_TEST_CASE(an_option_clips) {
  const auto options = [](std::vector<const char*> more) {
    std::vector<const char*> words = {"program", "--data", "train.bin", "--arch", "gpt2", "--max-update", "9"};
    words.insert(words.end(), more.begin(), more.end());
    return parse_train_command(static_cast<int>(words.size()), words.data(), 1).options;
  };
  BOOST_TEST(!options({}).sharding.plan.clip_values);
  BOOST_TEST(options({"--clip-value", "0.5"}).sharding.plan.clip_values);
  BOOST_TEST(options({"--clip-value", "0.5"}).clip_value == 0.5);
  CHECK_CONTAINS(message_of([&] { options({"--clip-value", "0.5", "--clip-norm", "1"}); }), "leave one out");
}

BOOST_AUTO_TEST_CASE(the_document_shows_what_is_compiled) { check_code_of("extending-operation.md", 6); }

// Apart from its kernel and its option, a kind of operation is only in the files that the page lists.
BOOST_AUTO_TEST_CASE(no_other_file_knows_the_kind) {
  const std::filesystem::path root = std::filesystem::path(FSDP_TEST_DATA).parent_path().parent_path();
  std::set<std::string> files;
  for (const char* folder : {"lib/plan", "lib/run", "lib/options", "lib/train", "lib/api", "apps"})
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file()) continue;
      const std::string text = read_file(entry.path());
      for (const char* name : {"kinds::clip_values", "Kind clip_values", "emit_clip"})
        if (text.find(name) != std::string::npos) files.insert(entry.path().lexically_relative(root).string());
    }
  const std::string page = read_file(root / "docs" / "extending-operation.md");
  BOOST_TEST(files.size() == 4u);
  for (const std::string& file : files) BOOST_TEST(page.find("| `" + file + "` |") != std::string::npos, file);
}
