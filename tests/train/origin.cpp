// What a run starts from, and which validation its resumption still owes, on ranks that are threads.
#include <boost/test/unit_test.hpp>

#include <source_location>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "comm/threads/threads.hpp"
#include "engine/mean_loss.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"
#include "train/setup.hpp"
#include "train/validation.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

TrainOptions options_for(const std::filesystem::path& folder) {
  TrainOptions options;
  options.device = DeviceChoice::cpu;
  options.arch = "gpt2";
  options.sizes.layers = 1, options.sizes.width = 8, options.sizes.heads = 2, options.sizes.vocab_size = 16;
  options.sharding.batch = {.B = 1, .T = 4};
  options.save.folder = folder;
  return options;
}

/// Saves a step with initial weights for each of the updates.
void save_steps(const TrainOptions& options, Communicator& world, std::initializer_list<std::uint64_t> updates) {
  Metrics log({}, 1, false);
  const Machine machine = find_machine(options, world);
  TrainOptions anew = options;
  anew.restore = "none";
  Engine engine = make_engine({anew, world, log}, find_origin(anew, world), machine, nullptr);
  engine.allocate(*machine.device);
  engine.executor().initialize_parameters(1);
  engine.start();
  for (const std::uint64_t update : updates) {
    engine.progress().update = update;
    engine.save(options.save, engine.header(), true);
  }
}

/// Ends all ranks if `held` is false. Boost.Test's own checks are not made for several threads.
void check(bool held, std::source_location where = std::source_location::current()) {
  if (!held) throw RunError(format("the check in line {} does not hold", where.line()));
}

/// The message of the CollectiveError that `call` throws; empty if it throws none.
template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const CollectiveError& error) {
    return error.what();
  }
  return "";
}

/// Changes one byte in the middle of the largest file of a step.
void damage(const std::filesystem::path& step) {
  std::filesystem::path largest;
  for (const auto& entry : std::filesystem::directory_iterator(step))
    if (largest.empty() || entry.file_size() > std::filesystem::file_size(largest)) largest = entry.path();
  std::string content = read_file(largest);
  content[content.size() / 2] ^= 1;
  write_file(largest, content);
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_run_resumes_from_the_latest_sound_step) {
  const TemporaryFolder folder;
  run_ranks(2, [&](Communicator& world) {
    TrainOptions options = options_for(folder.path());
    const Origin fresh = find_origin(options, world);
    check(!fresh.checkpoint);
    check(!fresh.pretrained);
    check(fresh.config.width == 8u);
    save_steps(options, world, {1, 2, 3});
    check(find_origin(options, world).update() == 3u);

    // Steps after the one that is named would be in the way of later saves.
    options.restore = (folder / "step-00000002").string();
    check(contains(refusal_of([&] { find_origin(options, world); }), "later steps"));
    options.save.folder = folder / "other";
    check(find_origin(options, world).update() == 2u);
    options = options_for(folder.path());

    TrainOptions wider = options;
    wider.sizes.width = 16;
    check(contains(refusal_of([&] { find_origin(wider, world); }), "n_embd: 16 requested"));

    world.barrier();
    if (world.rank() == 0) damage(folder / "step-00000003");
    world.barrier();
    const Origin second = find_origin(options, world);
    check(second.update() == 2u);
    check(!second.warnings.empty());
    world.barrier();
    check(!std::filesystem::exists(folder / "step-00000003"));  // it has another name now
    if (world.rank() == 0)
      for (const char* step : {"step-00000001", "step-00000002"}) damage(folder / step);
    world.barrier();
    check(contains(refusal_of([&] { find_origin(options, world); }), "no other checkpoint is left"));
  });
}

BOOST_AUTO_TEST_CASE(without_a_model_there_is_nothing_to_train) {
  const TemporaryFolder folder;
  run_ranks(2, [&](Communicator& world) {
    TrainOptions options = options_for(folder.path());
    options.arch.clear();
    check(contains(refusal_of([&] { find_origin(options, world); }), "there is nothing to train"));
  });
}

BOOST_AUTO_TEST_CASE(a_validation_that_was_not_made_is_missed) {
  const TemporaryFolder folder;
  run_ranks(2, [&](Communicator& world) {
    TrainOptions options = options_for(folder / "saves");
    options.valid = "valid.bin";
    save_steps(options, world, {4});
    const Origin origin = find_origin(options, world);
    Metrics log({}, 1, false);
    const RunContext run = {options, world, log};
    const auto missed = [&](Progress& progress) { return find_missed(run, origin, progress); };

    Progress progress = origin.checkpoint->header().progress;
    check(missed(progress).validation);
    check(!missed(progress).certain);  // there are no metrics that could have it
    check(!missed(progress).sample);
    options.sample_interval_updates = 2;
    check(missed(progress).sample);
    note_validation(progress.validations, 4, 2.5);
    check(is_validated(progress));
    check(!missed(progress).validation);

    // The metrics have the validation, which came after the save.
    options.log_file = folder / "metrics.jsonl";
    world.barrier();
    if (world.rank() == 0) {
      const nlohmann::json start = {{"type", "start"},
                                    {"time", 1},
                                    {"options", {{"save-dir", options.save.folder.string()}}},
                                    {"step", 0}},
                           valid = {{"type", "valid"}, {"time", 2}, {"step", 4}, {"loss", 3.25}};
      write_file(options.log_file, start.dump() + "\n" + valid.dump() + "\n");
    }
    world.barrier();
    progress = origin.checkpoint->header().progress;
    check(!is_validated(progress));
    const Missed none = missed(progress);
    check(!none.validation);
    check(none.certain);
    check(is_validated(progress));

    options.save.folder = folder / "elsewhere";  // a new run
    check(!missed(progress).sample);
  });
}
