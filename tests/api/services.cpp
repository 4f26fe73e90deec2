// What a training loop of a user's program has from fsdp-train: saves in the background, steps that are kept, data in
// checkpoints, token data and samplers, requests to stop, metrics and traces. service_jobs.cpp kills and signals programs.
#include "mpi_main.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <thread>

#include <fsdp/fsdp.hpp>

#include "checkpoint/checkpoint.hpp"
#include "data/permutation.hpp"
#include "options/options.hpp"
#include "support.hpp"
#include "support/file_size_limit.hpp"
#include "support/files.hpp"
#include "support/golden.hpp"
#include "train/train.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t length = 16;
const fs::path token_file = golden_folder("llama-gqa") / "train.bin";

fs::path new_folder(const std::string& name) { return test::new_folder("api-services", name); }

Sequential small_model() {
  Sequential model;
  model.add("embedding", embedding(512, 8)).add("gelu", gelu(8)).add("head", linear(8, 512));
  return model.loss(cross_entropy(512));
}

FsdpOptions options_of(bool background = true) {
  FsdpOptions options;
  options.batch_size = 2, options.sequence_length = length, options.background_saves = background;
  return options;
}

void fill(const Batch& batch) {
  for (std::size_t i = 0; i < batch.tokens().size(); ++i)
    batch.tokens()[i] = static_cast<int>(7 * i % 512), batch.labels()[i] = static_cast<int>(5 * i % 512);
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

}  // namespace

BOOST_AUTO_TEST_CASE(background_saves_hold_the_state_at_the_time_of_the_call) {
  const fs::path folder = new_folder("background");
  Job job;
  FullyShardedDataParallel model(job, small_model(), options_of());
  model.step(1e-2, fill);
  const Parameters expected = parameters_of(model);
  const fs::path first = model.save(folder, {});
  model.step(1e-2, fill);
  model.step(1e-2, fill);
  const Parameters later = parameters_of(model);
  BOOST_TEST((world().rank() != 0 || later != expected));
  const fs::path second = model.save(folder, {});  // finishes the first save
  BOOST_TEST(model.save(folder) == second);        // the same update
  BOOST_TEST(open_checkpoint(first)->header().progress.update == 1u);
  model.finish_save();
  model.finish_save();  // there is none
  BOOST_TEST(first.filename().string() == "step-00000001");
  BOOST_TEST(second.filename().string() == "step-00000003");

  FullyShardedDataParallel other(job, small_model(), options_of(false));
  BOOST_TEST(!other.restore(folder / "nowhere"));
  BOOST_TEST(other.updates() == 0u);
  other.load(first);
  BOOST_TEST((parameters_of(other) == expected));
  BOOST_TEST(other.restore(folder));
  BOOST_TEST(other.updates() == 3u);
  BOOST_TEST((parameters_of(other) == later));

  // The copy is planned memory: parameters and two moments of what this rank writes.
  BOOST_TEST(model.peak_bytes() == model.memory().total);
  BOOST_TEST(model.memory().total > other.memory().total);
  BOOST_TEST(model.memory().parts.back().first == "copy that a save writes");
  if (world().rank() == 0)
    BOOST_TEST(estimate_memory(small_model(), options_of(), world().size()).total == model.memory().total);
}

BOOST_AUTO_TEST_CASE(the_destructor_completes_a_save_but_waits_for_no_rank_that_has_failed) {
  const fs::path folder = new_folder("destructor");
  Job job;
  {
    FullyShardedDataParallel model(job, small_model(), options_of());
    model.step(1e-2, fill);
    model.save(folder, {});
  }
  world().barrier();
  BOOST_TEST(FullyShardedDataParallel::can_load(folder));
  {
    FullyShardedDataParallel model(job, small_model(), options_of());
    BOOST_TEST(model.restore(folder));
    model.step(1e-2, fill);
    try {
      model.save(folder, {});
      const auto leaves = std::make_unique<FullyShardedDataParallel>(job, small_model(), options_of());
      leaves->step(1e-2, fill);
      leaves->save(folder / "left", {});
      if (world().rank() == world().size() - 1) throw std::runtime_error("this rank failed");
    } catch (const std::runtime_error&) {
    }
    model.finish_save();
  }
  BOOST_TEST(names_in(folder).contains("step-00000002"));
}

// The model has one number, so only one rank has something to write.
BOOST_AUTO_TEST_CASE(a_rank_without_numbers_saves_in_the_background) {
  const fs::path folder = new_folder("little");
  Sequential model;
  model.add("only", linear(1, 1, false)).loss(mean_squared_error(1));
  const auto one = [](const Batch& batch) { batch.inputs()[0] = batch.targets()[0] = 1; };
  Job job;
  FullyShardedDataParallel sharded(job, model, {.background_saves = true});
  for (int update = 0; update < 2; ++update) sharded.step(1e-2, one), sharded.save(folder);
  sharded.finish_save();
  BOOST_TEST(sharded.peak_bytes() == sharded.memory().total);
  const Parameters saved = parameters_of(sharded);
  sharded.step(1e-2, one);
  BOOST_TEST(sharded.restore(folder));
  BOOST_TEST((parameters_of(sharded) == saved));
  sharded.step(1e-2, one), sharded.save(folder);
  BOOST_TEST(sharded.restore(folder));  // waits for the save under way
  BOOST_TEST(sharded.updates() == 3u);
  refused("validation_loss is -inf",
          [&] { sharded.save(folder, {.validation_loss = -std::numeric_limits<double>::infinity()}); });
}

BOOST_AUTO_TEST_CASE(after_a_save_that_failed_the_same_update_is_saved_again) {
  const fs::path folder = new_folder("failed");
  Job job;
  for (const bool background : {true, false}) {
    const fs::path to = folder / (background ? "background" : "at-once");
    FullyShardedDataParallel model(job, small_model(), options_of(background));
    model.step(1e-2, fill);
    const auto save = [&] {
      const fs::path step = model.save(to, {.validation_loss = 2});
      model.finish_save();
      return step;
    };
    for (int time = 0; time < 2; ++time) {
      const fsdp::test::FileSizeLimit disk_full(1000);
      refused("could not be written", save);
    }
    BOOST_TEST(latest_update(to).value_or(0) == 0u);
    const fs::path step = save();
    world().barrier();
    BOOST_TEST(fs::exists(step / "complete.json"));
    BOOST_TEST(fs::read_symlink(to / "best") == step.filename());
    BOOST_TEST(CheckpointReader::open(step)->header().progress.validations->since_best == 0u);
    BOOST_TEST(model.save(to) == step);  // it is saved already
  }
}

BOOST_AUTO_TEST_CASE(old_steps_are_removed_and_the_best_is_kept) {
  const fs::path folder = new_folder("keeping");
  Job job;
  for (const bool background : {true, false}) {
    const fs::path to = folder / (background ? "background" : "at-once");
    FullyShardedDataParallel model(job, small_model(), options_of(background));
    const std::map<int, double> losses = {{1, 3.0}, {2, 1.5}, {3, 2.0}, {4, std::nan("")}, {5, 1.75}};
    for (const auto& [update, loss] : losses) {
      model.step(1e-2, fill);
      model.save(to, {.keep_last = 1, .keep_every = 3, .validation_loss = loss});
      if (world().rank() == 0 && background && update > 1) {  // no older step goes before a newer one is complete
        const auto latest = latest_checkpoint(to);
        BOOST_TEST_REQUIRE(latest.has_value());
        BOOST_TEST(open_checkpoint(to)->header().progress.update >= static_cast<std::uint64_t>(update - 1));
      }
      world().barrier();
    }
    model.finish_save();
    world().barrier();
    const std::set<std::string> kept = {"best", "step-00000002", "step-00000003", "step-00000005"};
    BOOST_TEST((names_in(to) == kept));
    BOOST_TEST(fs::read_symlink(to / "best").string() == "step-00000002");
    FullyShardedDataParallel best(job, small_model(), options_of(background));
    BOOST_TEST(best.restore(to / "best"));
    BOOST_TEST(best.updates() == 2u);
    // The smallest loss so far is known to a program that resumes.
    FullyShardedDataParallel resumed(job, small_model(), options_of(background));
    BOOST_TEST(resumed.restore(to));
    resumed.step(1e-2, fill);
    const fs::path step = resumed.save(to, {.validation_loss = 1.6, .files_per_checkpoint = "node"});
    resumed.finish_save();
    world().barrier();
    BOOST_TEST(fs::exists(step / "rank-00000-of-00001.h5"));  // the ranks share one node
    BOOST_TEST(best.restore(to));
    BOOST_TEST(best.updates() == 6u);
    BOOST_TEST(fs::read_symlink(to / "best").string() == "step-00000002");
  }
  FullyShardedDataParallel model(job, small_model(), options_of());
  refused("keep_every changes nothing (all steps are kept); give keep_last", [&] { model.save(folder, {.keep_every = 2}); });
  refused("files_per_checkpoint is '0' (expected a whole number, at least 1, or node)",
          [&] { model.save(folder, {.files_per_checkpoint = "0"}); });
  if (world().size() > 1)
    refused("the ranks save different things ('keep_last 2' here, 'keep_last 1' on rank 0",
            [&] { model.save(folder, {.keep_last = world().rank() == world().size() - 1 ? 2u : 1u}); });
}

BOOST_AUTO_TEST_CASE(data_of_the_program_come_back_or_are_refused) {
  const fs::path folder = new_folder("data");
  std::string bytes(100000, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i / 251);
  Job job;
  FullyShardedDataParallel model(job, small_model(), options_of());
  model.step(1e-2, fill);
  BOOST_TEST(!model.data("sampler").has_value());
  const fs::path step = model.save(folder, {.data = {{"sampler", bytes}, {"nothing", ""}}});
  model.finish_save();
  FullyShardedDataParallel other(job, small_model(), options_of());
  BOOST_TEST(other.restore(folder));
  BOOST_TEST((other.data("sampler") == bytes));
  BOOST_TEST((other.data("nothing") == ""));
  BOOST_TEST(!other.data("other").has_value());
  model.step(1e-2, fill);
  const fs::path without = model.save(folder);  // a checkpoint like those of older versions
  model.finish_save();
  other.load(without);
  BOOST_TEST(!other.data("sampler").has_value());

  world().barrier();
  const fs::path index = step / "checkpoint.h5";
  const std::string whole = read_file(index);
  const std::size_t at = whole.find(bytes.substr(30000, 200));
  BOOST_TEST_REQUIRE(at != std::string::npos);
  world().barrier();
  if (world().rank() == 0) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    write_file(index, damaged);
  }
  world().barrier();
  refused("checkpoint.h5 is damaged", [&] { other.load(step); });
  refused("checkpoint.h5 is damaged", [&] { other.restore(step); });
  other.load(without);
  BOOST_TEST(other.updates() == 2u);
  // A folder of steps falls back on an older step, and is not taken for an empty one.
  world().barrier();
  if (world().rank() == 0) fs::remove_all(without);
  world().barrier();
  refused("step-00000001.damaged is damaged, and no other checkpoint is left", [&] { other.restore(folder); });
  FullyShardedDataParallel third(job, small_model(), options_of());
  third.save(folder);
  third.finish_save();
  world().barrier();
  if (world().rank() == 0) fs::rename(folder / "step-00000001.damaged", step);
  world().barrier();
  BOOST_TEST(third.restore(folder));
  BOOST_TEST(third.updates() == 0u);
  BOOST_TEST((names_in(folder) == std::set<std::string>{"step-00000000", "step-00000001.damaged"}));

  refused("'a/b' cannot name data in a checkpoint", [&] { model.save(folder, {.data = {{"a/b", "c"}}}); });
  if (world().size() > 1)
    refused("the ranks save different things ('data 'rng' of 1 bytes", [&] {
      model.save(folder, {.data = {{"rng", std::string(1, static_cast<char>('0' + world().rank()))}}});
    });
}

namespace {

struct Trained {
  std::vector<double> losses, norms;
};

/// The losses and gradient norms of a run of fsdp-train, which continues from `saves` if it was there.
Trained train_by_program(const fs::path& saves, const std::string& data, int updates,
                         const std::vector<std::string>& more = {}) {
  const fs::path log = saves.string() + ".jsonl";
  std::vector<std::string> words = {"fsdp-train", data, "--arch", "gpt2", "--log-format", "none"};
  const auto add = [&](const std::string& option, const std::string& value) { words.insert(words.end(), {option, value}); };
  add("--decoder-layers", "1"), add("--decoder-embed-dim", "16"), add("--decoder-attention-heads", "2");
  add("--vocab-size", "512");
  add("--tokens-per-sample", std::to_string(length)), add("--batch-size", "2"), add("--update-freq", "2");
  add("--lr", "1e-2"), add("--seed", "7"), add("--max-update", std::to_string(updates)), add("--log-interval", "1");
  add("--save-dir", saves.string()), add("--log-file", log.string());
  words.insert(words.end(), more.begin(), more.end());
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  const TrainCommand command = parse_train_command(static_cast<int>(argv.size()), argv.data(), world().size());
  BOOST_TEST_REQUIRE(fsdp::train(command.options, world()) == 0);
  world().barrier();
  Trained trained;
  std::ifstream lines(log);
  for (std::string line; std::getline(lines, line);)
    if (const json entry = json::parse(line); entry["type"] == "train")
      trained.losses.push_back(entry["loss"]), trained.norms.push_back(entry["gnorm"]);
  return trained;
}

FsdpOptions options_as_program() {
  FsdpOptions options = options_of();
  options.gradient_accumulation_steps = 2, options.seed = 7;
  return options;
}

TransformerDescription model_as_program() {
  return TransformerDescription("gpt2").layers(1).width(16).heads(2).vocabulary(512);
}

}  // namespace

BOOST_AUTO_TEST_CASE(token_data_give_the_losses_of_fsdp_train) {
  const fs::path folder = new_folder("tokens");
  const fs::path some = folder / "some.bin";
  if (world().rank() == 0) {  // llm.c's format: a header of 256 integers, of which the third is the number of tokens
    constexpr std::int32_t count = 450;
    std::string file = read_file(token_file).substr(0, 1024 + 2 * count);
    std::memcpy(&file[8], &count, sizeof count);
    write_file(some, file);
  }
  world().barrier();
  const std::string mixture = token_file.string() + ":0.7," + some.string() + ":0.3";
  struct Case {
    std::string name;
    std::vector<std::string> more;
    std::string data;
    TokenDataOptions options;
  };
  std::set<double> last_losses;
  for (const Case& c : {Case{"shuffled", {"--shuffle", "--max-epoch", "3"}, some.string(), {true, 3}},
                        Case{"mixed", {"--shuffle"}, mixture, {true}},
                        Case{"documents",
                             {"--break-mode", "complete", "--eos-token-id", "3"},
                             token_file.string(),
                             {.break_mode = "complete", .eos_token_id = 3}}}) {
    BOOST_TEST_CONTEXT(c.name) {
      const Trained expected = train_by_program(folder / c.name, c.data, 8, c.more);
      Job job;
      FullyShardedDataParallel model(job, model_as_program(), options_as_program());
      auto data = std::make_unique<TokenData>(model, c.data, c.options);
      Trained found;
      for (int update = 0; update < 8; ++update) {
        if (update == 5) {  // resumes in a new reader, which begins elsewhere
          const std::string state = data->state();
          data = std::make_unique<TokenData>(model, c.data, c.options);
          BOOST_TEST(data->position() == 0u);
          BOOST_TEST(data->restore(state) == "");
          BOOST_TEST(data->state() == state);
        }
        const StepResult result = model.step(1e-2, [&](const Batch& batch) { data->read(batch); });
        data->advance();
        found.losses.push_back(result.loss), found.norms.push_back(result.gradient_norm);
      }
      BOOST_TEST_REQUIRE(expected.losses.size() == 8u);
      BOOST_TEST(found.losses == expected.losses, boost::test_tools::per_element());
      BOOST_TEST(found.norms == expected.norms, boost::test_tools::per_element());
      BOOST_TEST(last_losses.insert(found.losses.back()).second);
    }
  }
  Job job;
  FullyShardedDataParallel model(job, model_as_program(), options_as_program());
  TokenData data(model, token_file.string()), shuffled(model, token_file.string(), {.shuffle = true}),
      short_data(model, some.string());
  BOOST_TEST(data.restore(shuffled.state()) ==
             "the data are not shuffled now and were before: the data are read from the start");
  BOOST_TEST(data.restore(short_data.state()).starts_with("the data have changed"));
  refused("'{}' is no position in data", [&] { data.restore("{}"); });
  if (world().rank() == 0) write_file(folder / "words.txt", "A text must be tokenized first.");
  world().barrier();
  refused("fsdp-tokenize", [&] { TokenData(model, (folder / "words.txt").string()); });
  refused("name the token that ends them by eos_token_id, or leave out break_mode",
          [&] { TokenData(model, token_file.string(), {.break_mode = "eos"}); });
  refused("a mixture is not evaluated", [&] { model.evaluate(TokenData(model, mixture)); });
  refused("nowhere.bin", [&] { TokenData(model, "nowhere.bin"); });
  refused("break_mode", [&] { TokenData(model, token_file.string(), {.break_mode = "often"}); });
  TokenData ends(model, some.string(), {.max_epoch = 1});
  std::size_t updates = 0;
  for (; !ends.at_end(); ++updates) ends.advance();
  const std::size_t per_update = 4 * static_cast<std::size_t>(world().size());
  BOOST_TEST(updates == (ends.sequences() + per_update - 1) / per_update);
  auto small = model_as_program();
  small.vocabulary(100);
  FullyShardedDataParallel other(job, small, options_as_program());
  refused("vocabulary", [&] { TokenData(other, token_file.string()); });
}

// Each rank has a folder of its own, as on nodes with local disks; that of the last rank has other files.
BOOST_AUTO_TEST_CASE(files_that_differ_between_ranks_are_refused) {
  const fs::path folder = new_folder("nodes"), own = folder / std::to_string(world().rank()), before = fs::current_path();
  const int last = world().size() - 1;
  fs::create_directories(own / "model");
  fs::copy_file(golden_folder("llama-gqa") / "config.json", own / "model" / "config.json");
  for (const auto& [from, name] :
       {std::pair("train.bin", "tokens.bin"), std::pair("model.safetensors", "model/model.safetensors")}) {
    std::string bytes = read_file(golden_folder("llama-gqa") / from);
    if (last > 0 && world().rank() == last) bytes[bytes.size() - 2] ^= 1;
    write_file(own / name, bytes);
  }
  fs::current_path(own);
  Job job;
  FullyShardedDataParallel model(job, TransformerDescription::from_config("model"), options_of());
  const auto refused_if_several = [&](const std::string& file, const std::function<void()>& call) {
    if (last > 0)
      refused(file + " has other contents on rank " + std::to_string(last) + " (", call);
    else
      call();
  };
  refused_if_several("tokens.bin", [&] { TokenData(model, "tokens.bin"); });
  refused_if_several("model/model.safetensors", [&] { model.load_full("model"); });
  refused_if_several("model/model.safetensors", [&] { TextGenerator(job, "model"); });
  fs::current_path(before);
}

BOOST_AUTO_TEST_CASE(token_data_that_do_not_fit_are_not_evaluated) {
  Job job;
  FullyShardedDataParallel of_data(job, small_model(), options_of(false));
  const TokenData data(of_data, token_file.string());
  const auto with_loss = [&](const LossPtr& loss, std::size_t classes) {
    Sequential model;
    model.add("embedding", embedding(512, 8)).add("head", linear(8, classes)).loss(loss);
    return FullyShardedDataParallel(job, model, options_of(false)).evaluate(data);
  };
  BOOST_TEST(with_loss(cross_entropy(512), 512) > 0);
  refused("does not know ignore_index", [&] { with_loss(cross_entropy(512, {.ignore_index = 3}), 512); });
  refused("does not know the weights of classes",
          [&] { with_loss(cross_entropy(512, {.weight = std::vector<float>(512, 2)}), 512); });
  refused("vocabulary", [&] { with_loss(cross_entropy(100), 100); });
  refused("the token data do not fit the model", [&] { with_loss(mean_squared_error(2), 2); });
  FsdpOptions longer = options_of(false);
  longer.sequence_length = length + 1;
  refused("the token data do not fit the model", [&] { FullyShardedDataParallel(job, small_model(), longer).evaluate(data); });
}

BOOST_AUTO_TEST_CASE(a_sampler_gives_every_example_once_per_epoch) {
  constexpr std::uint64_t size = 53;
  Job job;
  FullyShardedDataParallel model(job, small_model(), [] {
    FsdpOptions options = options_of();
    options.batch_size = 3, options.gradient_accumulation_steps = 2, options.seed = 9;
    return options;
  }());
  for (const bool shuffle : {false, true}) {
    DistributedSampler sampler(model, size, shuffle);
    std::vector<std::uint64_t> used;  // by all ranks, in the order of the global batch
    while (used.size() < 3 * size) {
      for (std::size_t k = 0; k < 2; ++k) {
        const auto mine = sampler.indices(k);
        std::vector<std::int64_t> signed_mine(mine.begin(), mine.end());
        for (const std::int64_t index : world().gather(std::span<const std::int64_t>(signed_mine)))
          used.push_back(static_cast<std::uint64_t>(index));
      }
      const std::string state = sampler.state();
      sampler.advance();
      BOOST_TEST(sampler.position() == used.size());
      DistributedSampler again(model, size, shuffle);
      again.restore(state);
      again.advance();
      BOOST_TEST(again.position() == sampler.position());
    }
    std::vector<std::vector<std::uint64_t>> epochs;
    for (std::size_t epoch = 0; epoch < 3; ++epoch) {
      const auto begin = used.begin() + static_cast<std::ptrdiff_t>(epoch * size);
      epochs.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(size));
      BOOST_TEST(std::set<std::uint64_t>(epochs.back().begin(), epochs.back().end()).size() == size);
      for (std::uint64_t i = 0; i < size; ++i)  // the same at any number of ranks
        BOOST_TEST(epochs.back()[i] == (shuffle ? permuted(i, size, 9, epoch) : i));
    }
    BOOST_TEST((epochs[0] != epochs[1]) == shuffle);
  }
  refused("size is 0", [&] { DistributedSampler(model, 0); });
  DistributedSampler sampler(model, size), other(model, size + 1);
  refused("size of the sampler is 53, and was 54", [&] { sampler.restore(other.state()); });
  refused("there is no micro-batch 2", [&] { sampler.indices(2); });
}

BOOST_AUTO_TEST_CASE(a_job_stops_by_a_file_and_before_its_end) {
  const fs::path folder = new_folder("stop");
  const auto stop_by = [&](const JobOptions& options, const std::function<void()>& ask) {
    Job job(options);
    BOOST_TEST(!job.should_stop());
    BOOST_TEST(job.stop_reason() == "");
    ask();
    world().barrier();
    bool stops = false;
    for (int i = 0; i < 400 && !stops; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      stops = job.should_stop();
    }
    BOOST_TEST(stops);
    BOOST_TEST(job.should_stop());
    return job.stop_reason();
  };
  BOOST_TEST(stop_by({.stop_signals = true, .stop_folder = folder.string()}, [&] {
               if (world().rank() == 0) write_file(folder / "stop", "");
             }) == "the file " + (folder / "stop").string());
  world().barrier();
  BOOST_TEST(!fs::exists(folder / "stop"));
  BOOST_TEST(!Job({.stop_signals = true, .stop_folder = folder.string()}).should_stop());
  refused("stop_folder changes nothing (stop_signals is false", [&] { Job({.stop_folder = folder.string()}); });
  refused("stop_before_s is -1", [&] { Job({.stop_before_s = -1}); });

  ::unsetenv("SLURM_JOB_ID");
  refused("stop_before_s needs the end of the job, which is unknown", [&] { Job({.stop_before_s = 60}); });
  ::setenv("SLURM_JOB_ID", "17", 1);
  const auto now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  ::setenv("SLURM_JOB_END_TIME", std::to_string(now + 62).c_str(), 1);
  const std::string reason = stop_by({.stop_before_s = 60}, [] {});
  BOOST_TEST(reason.starts_with("the job ends in "), reason);
  ::unsetenv("SLURM_JOB_ID"), ::unsetenv("SLURM_JOB_END_TIME");
}

BOOST_AUTO_TEST_CASE(metrics_are_those_of_fsdp_train) {
  const fs::path folder = new_folder("metrics");
  train_by_program(folder / "program", token_file.string(), 3, {"--valid", token_file.string()});
  Job job;
  FullyShardedDataParallel model(job, model_as_program(), options_as_program());
  TokenData data(model, token_file.string());
  const fs::path file = folder / "metrics.jsonl", trace = folder / "trace.json";
  const auto train = [&](FullyShardedDataParallel& of, MetricsLog& log, int updates) {
    for (int update = 0; update < updates; ++update) {
      const StepResult result = of.step(1e-2, [&](const Batch& batch) { data.read(batch); });
      data.advance();
      log.train(result, 1e-2, {{"accuracy", 0.5}});
    }
  };
  double valid_loss = 0;
  {
    MetricsLog log(model, {.log_file = file.string(),
                           .log_format = "none",
                           .max_update = 3,
                           .save_dir = (folder / "api").string(),
                           .trace = trace.string(),
                           .trace_updates = 1});
    train(model, log, 2);
    model.save(folder / "api");
    model.finish_save();
    train(model, log, 1);
    valid_loss = model.evaluate(TokenData(model, token_file.string()));
    log.end("SIGTERM");
  }
  FullyShardedDataParallel resumed(job, model_as_program(), options_as_program());
  resumed.restore(folder / "api");
  MetricsLog again(resumed, {.log_file = file.string(), .log_format = "none", .save_dir = (folder / "api").string()});
  train(resumed, again, 1);
  world().barrier();
  const auto lines_of = [](const fs::path& path) {
    std::map<std::string, std::vector<json>> lines;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);)
      if (const json entry = json::parse(line); entry.contains("type")) lines[entry["type"]].push_back(entry);
    return lines;
  };
  auto expected = lines_of(folder / "program.jsonl"), found = lines_of(file);
  BOOST_TEST_REQUIRE(found["train"].size() == 3u);
  const std::set<std::string> of_the_program = {"straggler", "mean_token_accuracy", "entropy", "padding", "rank_balance"};
  for (std::size_t i = 0; i < 2; ++i) {
    for (const char* key : {"step", "loss", "ppl", "lr", "gnorm", "tokens"})
      BOOST_TEST((found["train"][i][key] == expected["train"][i][key]), key);
    for (const auto& [key, value] : expected["train"][i].items())
      if (!of_the_program.contains(key)) BOOST_TEST(found["train"][i].contains(key), key);
    BOOST_TEST(found["train"][i]["numbers"]["accuracy"] == 0.5);
    BOOST_TEST(found["train"][i]["wps"] > 0);
  }
  BOOST_TEST(valid_loss == expected["valid"].back()["loss"].get<double>());
  BOOST_TEST(found["save"].size() == 1u);
  BOOST_TEST(found["stop"].front()["reason"] == "SIGTERM");
  BOOST_TEST(found["end"].size() == 1u);
  BOOST_TEST(found["lost"].size() == 1u);  // the third update, which the second start repeats
  BOOST_TEST(found["lost"].front()["step"] == 3);
  std::ifstream in(trace);
  const json events = json::parse(in);
  std::set<int> ranks;
  for (const json& event : events["traceEvents"])
    if (event["ph"] == "X") ranks.insert(event["pid"].get<int>());
  BOOST_TEST(ranks.size() == static_cast<std::size_t>(world().size()));
  refused("log_format", [&] { MetricsLog(model, {.log_format = "verbose"}); });
  if (world().size() > 1)
    refused("give all ranks the same", [&] { MetricsLog(model, {.trace = world().rank() == 0 ? trace.string() : ""}); });

  // The operations of updates change within the trace, which is then not written.
  FullyShardedDataParallel frozen(job, small_model(), options_of(false));
  const fs::path none = folder / "none.json";
  MetricsLog log(frozen, {.log_format = "none", .trace = none.string(), .trace_updates = 2});
  for (int update = 0; update < 4; ++update) {
    log.train(frozen.step(1e-2, fill), 1e-2);
    if (update == 1) frozen.freeze({"embedding.*"});
  }
  log.end();
  BOOST_TEST(!fs::exists(none));
}
