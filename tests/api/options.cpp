// What fsdp-train has, in a loop of one's own: its options give the same bits as fsdp-train, and so do its schedules. Also
// parameter groups, and an optimizer of the user's own.
#include "mpi_main.hpp"

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>

#include <fsdp/fsdp.hpp>

#include "options/options.hpp"
#include "rmsprop.hpp"
#include "support.hpp"
#include "support/golden.hpp"
#include "train/train.hpp"

const fsdp::Optimizer& rmsprop_optimizer();  // tests/extending/rmsprop.cpp

using namespace fsdp;
using namespace fsdp::test;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t length = 32, sequences_of_update = 12;
const fs::path base = golden_folder("llama-gqa");

fs::path new_folder(const std::string& name) { return test::new_folder("api-options", name); }

struct Trained {
  std::vector<double> losses, norms, rates;
};

/// A run of fsdp-train. `more` are further options.
Trained train_by_program(Communicator& of_ranks, const fs::path& folder, const std::vector<std::string>& more,
                         std::size_t micro_batches) {
  const fs::path log = folder / "log.jsonl";
  const auto ranks = static_cast<std::size_t>(of_ranks.size());
  std::vector<std::string> words = {"fsdp-train", (base / "train.bin").string()};
  const auto add = [&](const std::string& option, const std::string& value) { words.insert(words.end(), {option, value}); };
  add("--model", base.string()), add("--tokens-per-sample", std::to_string(length));
  add("--batch-size", std::to_string(sequences_of_update / ranks / micro_batches));
  add("--update-freq", std::to_string(micro_batches));
  add("--lr", "1e-2"), add("--seed", "7"), add("--log-interval", "1"), add("--log-file", log.string());
  words.push_back("--no-save"), add("--save-dir", (folder / "saves").string()), add("--log-format", "none");
  words.insert(words.end(), more.begin(), more.end());
  if (std::find(words.begin(), words.end(), "--max-update") == words.end()) add("--max-update", "3");
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  const TrainCommand command = parse_train_command(static_cast<int>(argv.size()), argv.data(), of_ranks.size());
  BOOST_TEST_REQUIRE(fsdp::train(command.options, of_ranks) == 0);
  Trained trained;
  std::ifstream lines(log);
  for (std::string line; std::getline(lines, line);)
    if (const json entry = json::parse(line); entry["type"] == "train")
      trained.losses.push_back(entry["loss"]), trained.norms.push_back(entry["gnorm"]), trained.rates.push_back(entry["lr"]);
  return trained;
}

/// Writes this rank's sequences of a micro-batch of update number `update`, which counts from 0, as fsdp-train reads them.
void fill(const Batch& batch, std::uint64_t update, std::size_t micro_batches) {
  static const std::vector<std::int32_t> tokens = read_tokens(base / "train.bin");
  const std::size_t mine = batch.tokens().size(), ranks = static_cast<std::size_t>(world().size());
  const std::size_t number = (update * micro_batches + batch.micro_batch()) * ranks + static_cast<std::size_t>(world().rank());
  for (std::size_t i = 0; i < mine; ++i)
    batch.tokens()[i] = tokens.at(number * mine + i), batch.labels()[i] = tokens.at(number * mine + i + 1);
}

Trained train_by_api(FsdpOptions options) {
  const std::size_t micro_batches = options.gradient_accumulation_steps;
  options.batch_size = sequences_of_update / static_cast<std::size_t>(world().size()) / micro_batches;
  options.sequence_length = length, options.seed = 7;
  Job job;
  FullyShardedDataParallel sharded(job, TransformerDescription::from_config(base), options);
  sharded.load_full(base);
  Trained trained;
  for (std::uint64_t attempt = 0; sharded.updates() < 3; ++attempt) {  // an overflow of fp16 uses up its batch
    const StepResult result = sharded.step(1e-2, [&](const Batch& batch) { fill(batch, attempt, micro_batches); });
    if (result.skipped) continue;
    trained.losses.push_back(result.loss), trained.norms.push_back(result.gradient_norm);
  }
  BOOST_TEST(sharded.peak_bytes() == sharded.memory().total);
  BOOST_TEST(estimate_memory(TransformerDescription::from_config(base), options, world().size()).total ==
             sharded.memory().total);
  return trained;
}

void equal(const std::vector<double>& found, const std::vector<double>& expected) {
  BOOST_TEST(found == expected, boost::test_tools::per_element());
}

struct Case {
  std::vector<std::string> words;
  std::function<void(FsdpOptions&)> set;
};

}  // namespace

BOOST_AUTO_TEST_CASE(options_give_the_bits_of_fsdp_train) {
  using O = FsdpOptions;
  const std::vector<Case> cases = {
      {{"--amsgrad", "--adam-betas", "(0.8,0.95)", "--adam-eps", "1e-6", "--clip-value", "1e-3"},
       [](O& o) { o.amsgrad = true, o.beta1 = 0.8, o.beta2 = 0.95, o.eps = 1e-6, o.clip_value = 1e-3; }},
      {{"--optimizer", "sgd", "--momentum", "0.9", "--nesterov", "--weight-decay", "0.1"},
       [](O& o) { o.optimizer = "sgd", o.momentum = 0.9, o.nesterov = true, o.weight_decay = 0.1; }},
      {{"--optimizer", "adagrad", "--no-decay", "*mlp*", "--lr-scale", "*self_attn*=0.1,*embed*=2", "--weight-decay", "0.1"},
       [](O& o) {
         o.optimizer = "adagrad", o.weight_decay = 0.1;
         o.param_groups = {{.patterns = {"*mlp*"}, .weight_decay = 0},
                           {.patterns = {"*self_attn*"}, .learning_rate_scale = 0.1},
                           {.patterns = {"*embed*"}, .learning_rate_scale = 2}};
       }},
      {{"--optimizer", "lamb", "--ignore-params", "*norm*", "--train-only", "*layers.0*,*embed*"},
       [](O& o) {
         o.optimizer = "lamb", o.ignored_params = {"*norm*"}, o.train_only = {"*layers.0*", "*embed*"};
       }},
      {{"--optimizer", "adafactor", "--update-freq", "2", "--accumulate-unsharded"},
       [](O& o) { o.optimizer = "adafactor", o.gradient_accumulation_steps = 2, o.accumulate_unsharded = true; }},
      {{"--optimizer", "muon", "--optimizer-state-dtype", "bf16", "--momentum", "0.9", "--dropout", "0.2",
        "--attention-dropout", "0.1"},
       [](O& o) {
         o.optimizer = "muon", o.optimizer_state_dtype = "bf16", o.momentum = 0.9;
         o.dropout = 0.2, o.attention_dropout = 0.1;
       }},
      {{"--precision", "bf16", "--master-dtype", "bf16", "--grad-dtype", "bf16", "--buffer-dtype", "bf16", "--update-freq",
        "2"},
       [](O& o) {
         o.param_dtype = o.master_dtype = o.grad_dtype = o.buffer_dtype = "bf16", o.gradient_accumulation_steps = 2;
       }},
      // The first updates overflow, and are left out.
      {{"--precision", "fp16", "--fp16-init-scale", "16777216", "--fp16-scale-window", "2", "--fp16-scale-tolerance", "0.1",
        "--min-loss-scale", "1e-3", "--threshold-loss-scale", "1"},
       [](O& o) {
         o.param_dtype = "fp16", o.fp16_init_scale = 16777216, o.fp16_scale_window = 2, o.fp16_scale_tolerance = 0.1;
         o.min_loss_scale = 1e-3, o.threshold_loss_scale = 1;
       }},
      {{"--checkpoint-activations", "--checkpoint-policy", "selective", "--skip-spikes", "6"},
       [](O& o) { o.activation_checkpointing = true, o.checkpoint_policy = "selective", o.skip_spikes = 6; }},
      {{"--checkpoint-activations", "--checkpoint-every", "2", "--wrap-layers", "2"},
       [](O& o) { o.activation_checkpointing = true, o.checkpoint_every = o.wrap_layers = 2; }},
      {{"--recompute-num-layers", "1", "--memory-limit", "1GiB"},
       [](O& o) { o.recompute_num_layers = "1", o.memory_limit = std::size_t{1} << 30; }},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    BOOST_TEST_CONTEXT(cases[i].words[0] << " " << cases[i].words[1]) {
      FsdpOptions options;
      cases[i].set(options);
      std::vector<std::string> words = cases[i].words;
      if (const auto more = std::find(words.begin(), words.end(), "--update-freq"); more != words.end())
        words.erase(more, more + 2);
      const Trained expected =
          train_by_program(world(), new_folder("case" + std::to_string(i)), words, options.gradient_accumulation_steps);
      BOOST_TEST(expected.losses.size() >= 1u);
      const Trained found = train_by_api(options);
      equal(found.losses, expected.losses);
      equal(found.norms, expected.norms);
    }
  }
}

BOOST_AUTO_TEST_CASE(an_invariant_update_has_the_bits_of_one_rank) {
  if (world().size() == 3) return;
  FsdpOptions options;
  options.invariant = true, options.gradient_accumulation_steps = 4 / static_cast<std::size_t>(world().size());
  const Trained found = train_by_api(options);
  const auto one = world().split(world().rank() == 0 ? 0 : 1, 0);
  if (world().rank() == 0) equal(found.losses, train_by_program(*one, fs::path("api-options"), {"--invariant"}, 4).losses);
  world().barrier();
}

BOOST_AUTO_TEST_CASE(fsdp_train_resumes_a_run_with_other_frozen_parameters) {
  const fs::path folder = new_folder("resumed");
  FsdpOptions options;
  options.batch_size = sequences_of_update / static_cast<std::size_t>(world().size());
  options.sequence_length = length, options.seed = 7, options.freeze = {"*layers.0*"};
  Job job;
  FullyShardedDataParallel sharded(job, TransformerDescription::from_config(base), options);
  sharded.load_full(base);
  const auto step = [&](std::uint64_t update) {
    return sharded.step(1e-2, [&](const Batch& batch) { fill(batch, update, 1); }).loss;
  };
  step(0), step(1);
  sharded.unfreeze({"*layers.0*"});
  sharded.freeze({"*layers.1*"});
  step(0);
  sharded.save(folder / "saves");
  sharded.unfreeze({"*layers.1*"});
  // Its data begin anew, because a program's position in the data is not known. The moments of layers 0 and 1 are younger.
  const Trained resumed = train_by_program(world(), folder, {"--max-update", "6"}, 1);
  equal({step(0), step(1), step(2)}, resumed.losses);
}

BOOST_AUTO_TEST_CASE(rates_of_schedules_are_those_of_fsdp_train) {
  const std::vector<std::pair<std::vector<std::string>, Schedule>> schedules = {
      {{"--lr-scheduler", "cosine", "--warmup-updates", "1", "--end-learning-rate", "1e-4"},
       {.decay = Decay::cosine, .learning_rate = 1e-2, .warmup = 1, .total = 3, .end = 1e-4}},
      {{"--lr-scheduler", "polynomial_decay", "--power", "2", "--total-num-update", "4"},
       {.decay = Decay::polynomial, .learning_rate = 1e-2, .total = 4, .power = 2}},
      {{"--lr-scheduler", "cosine_with_restarts", "--num-cycles", "2"},
       {.decay = Decay::cosine_with_restarts, .learning_rate = 1e-2, .total = 3, .cycles = 2}},
      {{"--lr-scheduler", "inverse_sqrt", "--warmup-updates", "2"},
       {.decay = Decay::inverse_sqrt, .learning_rate = 1e-2, .warmup = 2}},
      {{"--lr-scheduler", "wsd", "--decay-updates", "2"},
       {.decay = Decay::wsd, .learning_rate = 1e-2, .total = 3, .decay_updates = 2}},
      {{"--warmup-updates", "2"}, {.learning_rate = 1e-2, .warmup = 2}}};
  for (std::size_t i = 0; i < schedules.size(); ++i) {
    BOOST_TEST_CONTEXT(i) {
      const auto& [words, schedule] = schedules[i];
      const Trained expected = train_by_program(world(), new_folder("schedule" + std::to_string(i)), words, 1);
      const LearningRate rate(schedule);
      equal({rate(1), rate(2), rate(3)}, expected.rates);
    }
  }
  refused("warmup 5 is more than the 4 updates of the schedule",
          [] { LearningRate({.decay = Decay::cosine, .warmup = 5, .total = 4}); });
  refused("decay cosine has no end (total is 0)", [] { LearningRate({.decay = Decay::cosine}); });
  refused("needs the length of the decay", [] { LearningRate({.decay = Decay::wsd, .total = 4}); });
  refused("learning_rate '-1' is not accepted", [] { LearningRate({.learning_rate = -1}); });
  refused("power changes nothing", [] { LearningRate({.decay = Decay::cosine, .total = 4, .power = 2}); });
}

namespace {

/// Two inputs, two layers, three classes.
Sequential classifier() {
  Sequential model;
  model.add("one", linear(2, 40)).add("norm", layer_norm(40)).add("gelu", gelu(40)).add("two", linear(40, 3));
  return model.loss(cross_entropy(3));
}

void fill_classes(const Batch& batch, std::uint64_t update, float scale = 1) {
  for (std::size_t r = 0; r < batch.labels().size(); ++r) {
    const auto x = static_cast<float>((13 * r + 7 * update + 3 * static_cast<std::size_t>(world().rank())) % 17) / 17;
    batch.inputs()[2 * r] = scale * x, batch.inputs()[2 * r + 1] = scale * (1 - x * x);
    batch.labels()[r] = x < 0.3f ? 0 : x < 0.7f ? 1 : 2;
  }
}

struct Outcome {
  std::vector<double> losses;
  Parameters parameters;
  bool operator==(const Outcome&) const = default;
};
void train_classes(FullyShardedDataParallel& sharded, int updates, Outcome& outcome) {
  for (int i = 0; i < updates; ++i) {
    const std::uint64_t update = sharded.updates();
    outcome.losses.push_back(sharded.step(1e-2, [&](const Batch& batch) { fill_classes(batch, update); }).loss);
  }
  outcome.parameters = parameters_of(sharded);
}
Outcome outcome_of(const FsdpOptions& options, int updates = 4) {
  Job job;
  FullyShardedDataParallel sharded(job, classifier(), options);
  Outcome outcome;
  train_classes(sharded, updates, outcome);
  return outcome;
}

/// torch.optim.SGD with momentum.
class OwnMomentum final : public ElementwiseOptimizer {
 public:
  explicit OwnMomentum(std::string name, std::vector<std::string> states = {"momentum_buffer"})
      : name_(std::move(name)), states_(std::move(states)) {}
  std::string name() const override { return name_; }
  std::vector<std::string> states() const override { return states_; }
  void update(const ElementwiseUpdate& elements) const override {
    const auto rate = static_cast<float>(elements.learning_rate), decay = static_cast<float>(elements.weight_decay);
    float* const momentum = elements.states[0];
    for (std::size_t i = 0; i < elements.parameters.size(); ++i) {
      const float g = elements.gradients[i] + decay * elements.parameters[i];
      momentum[i] = 0.9f * momentum[i] + g;
      elements.parameters[i] -= rate * momentum[i];
    }
  }

 private:
  std::string name_;
  std::vector<std::string> states_;
};

/// Makes OwnMomentum known by the name own_momentum.
void add_own_momentum() {
  static const bool once = (add_optimizer(std::make_shared<OwnMomentum>("own_momentum")), true);
  BOOST_TEST(once);
}

FsdpOptions of_classes(const std::string& strategy = "FULL_SHARD") {
  FsdpOptions options = {.batch_size = 16, .sharding_strategy = strategy};
  if (strategy.find("HYBRID") != std::string::npos) options.shard_group_size = world().size() % 2 == 0 ? 2 : 1;
  return options;
}

}  // namespace

BOOST_AUTO_TEST_CASE(groups_have_their_own_rate_and_decay) {
  FsdpOptions options = of_classes();
  const Outcome before = outcome_of(options, 0), plain = outcome_of(options);
  // PyTorch's decay: of vectors, too.
  options.param_groups = {{.patterns = {"*"}, .weight_decay = 0.5},
                          {.patterns = {"two.*", "norm.weight"}, .weight_decay = 0},
                          {.patterns = {"two.bias"}, .learning_rate_scale = 0}};
  const Outcome grouped = outcome_of(options, 1), one = outcome_of(of_classes(), 1);
  if (world().rank() == 0) {
    const auto at = [&](const Outcome& outcome, const char* name) { return outcome.parameters.at(name); };
    BOOST_TEST(at(grouped, "two.bias") == at(before, "two.bias"));
    BOOST_TEST(at(grouped, "norm.weight") == at(one, "norm.weight"));  // without decay
    BOOST_TEST(at(one, "two.bias") != at(before, "two.bias"));
    // AdamW multiplies the parameter by 1 - rate x decay first. Without a group, the decay of a matrix is 0.01.
    for (std::size_t i = 0; i < 80; ++i) {
      const float p = at(before, "one.weight")[i];
      BOOST_TEST(at(one, "one.weight")[i] - at(grouped, "one.weight")[i] == p * 1e-2f * (0.5f - 0.01f),
                 boost::test_tools::tolerance(1e-2f));
    }
  }
  const auto with = [&](ParameterGroup group) {
    FsdpOptions changed = of_classes();
    changed.param_groups = {std::move(group)};
    return [changed] { outcome_of(changed, 0); };
  };
  refused("param_groups 'nothing.*' matches no parameter", with({.patterns = {"nothing.*"}, .weight_decay = 0}));
  refused("param_groups[0] changes nothing", with({.patterns = {"two.*"}}));
  refused("param_groups[0] changes nothing", with({.weight_decay = 0}));
  refused("param_groups[0].weight_decay is -1 (it must be at least 0)", with({.patterns = {"*"}, .weight_decay = -1}));
  if (world().size() > 1)
    refused("the ranks have different options or models ('param_groups[0]",
            with({.patterns = {"*"}, .weight_decay = world().rank()}));
}

BOOST_AUTO_TEST_CASE(an_own_optimizer_is_like_one_of_the_library) {
  add_own_momentum();
  FsdpOptions options = of_classes();
  options.optimizer = "sgd", options.momentum = 0.9, options.weight_decay = 0.1, options.clip_norm = 0.5;
  options.param_groups = {{.patterns = {"two.*"}, .learning_rate_scale = 0.5}};
  const std::vector<std::function<void(FsdpOptions&)>> cases = {
      [](FsdpOptions&) {}, [](FsdpOptions& o) { o.param_dtype = "bf16"; }, [](FsdpOptions& o) { o.param_dtype = "fp16"; },
      [](FsdpOptions& o) { o.param_dtype = o.master_dtype = "bf16", o.optimizer_state_dtype = "bf16"; }};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    BOOST_TEST_CONTEXT("case " << i) {
      FsdpOptions changed = options;
      cases[i](changed);
      const Outcome expected = outcome_of(changed);
      BOOST_TEST((expected.losses.back() < expected.losses.front()));
      changed.optimizer = "own_momentum", changed.momentum = {};
      for (const std::string strategy : {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "optim", "HYBRID_SHARD"}) {
        if (i > 0 && strategy != "FULL_SHARD" && strategy != "optim") continue;
        changed.sharding_strategy = strategy;
        changed.shard_group_size = of_classes(strategy).shard_group_size;
        BOOST_TEST_CONTEXT(strategy) BOOST_TEST((outcome_of(changed) == expected));
      }
    }
  }
  // Checkpoints.
  const fs::path folder = new_folder("own");
  options.optimizer = "own_momentum", options.momentum = {};
  Job job;
  FullyShardedDataParallel first(job, classifier(), options);
  Outcome expected, found;
  train_classes(first, 3, expected);
  first.save(folder);
  expected.losses.clear();
  train_classes(first, 3, expected);
  options.sharding_strategy = "NO_SHARD";
  FullyShardedDataParallel second(job, classifier(), options);
  second.load(folder);
  train_classes(second, 3, found);
  BOOST_TEST((found == expected));
  options.optimizer = "sgd", options.momentum = 0.9;
  FullyShardedDataParallel other(job, classifier(), options);
  refused("holds the state of optimizer own_momentum (this run has optimizer sgd)", [&] { other.load(folder); });
}

BOOST_AUTO_TEST_CASE(the_example_in_the_documentation_is_rmsprop) {
  add_optimizer(std::make_shared<Rmsprop>());
  add_optimizer(rmsprop_optimizer());
  FsdpOptions options = of_classes();
  options.optimizer = "rmsprop", options.weight_decay = 0.1;
  const Outcome expected = outcome_of(options);
  options.optimizer = "my_rmsprop";
  BOOST_TEST((outcome_of(options) == expected));
}

BOOST_AUTO_TEST_CASE(mistakes_of_an_own_optimizer) {
  add_own_momentum();
  refused("there is no optimizer", [] { add_optimizer(std::shared_ptr<ElementwiseOptimizer>()); });
  const auto named = [](std::string name, std::vector<std::string> states = {}) {
    return [=] { add_optimizer(std::make_shared<OwnMomentum>(name, states)); };
  };
  refused("an optimizer has the name \"\"", named(""));
  refused("an optimizer has the name \"My\"", named("My"));
  refused("there is an optimizer \"lion\" already", named("lion"));
  refused("there is an optimizer \"own_momentum\" already", named("own_momentum"));
  refused("a state of optimizer a has the name \"x y\"", named("a", {"x y"}));
  refused("optimizer a has a state \"ema\"", named("a", {"ema"}));
  refused("optimizer a has a state \"m\"", named("a", {"m", "m"}));
  refused("optimizer a has 4 states (the most are 3)", named("a", {"b", "c", "d", "e"}));
  FsdpOptions options = of_classes();
  options.optimizer = "unknown";
  refused("unknown", [&] { outcome_of(options); });
  options.optimizer = "own_momentum";
  refused("optimizer own_momentum runs on CPUs only", [&] { estimate_memory(classifier(), options, 1, "cuda"); });
  options.beta1 = 0.9;
  refused("beta1 or beta2 changes nothing (optimizer own_momentum does not read it)", [&] { outcome_of(options); });
}

BOOST_AUTO_TEST_CASE(a_spike_is_left_out) {
  FsdpOptions options = of_classes();
  options.skip_spikes = 6;
  const fs::path folder = new_folder("spikes");
  Job job;
  FullyShardedDataParallel sharded(job, classifier(), options), resumed(job, classifier(), options);
  Outcome outcome;
  train_classes(sharded, 70, outcome);
  sharded.save(folder);
  resumed.load(folder);
  const Parameters before = parameters_of(sharded);
  for (FullyShardedDataParallel* const model : {&sharded, &resumed}) {
    BOOST_TEST(model
                   ->step(1e-2,
                          [](const Batch& batch) {
                            fill_classes(batch, 70);
                            for (std::int32_t& label : batch.labels()) label = (label + 1) % 3;
                          })
                   .skipped);
    BOOST_TEST(model->updates() == 70u);
    BOOST_TEST((parameters_of(*model) == before));
    BOOST_TEST(!model->step(1e-2, [](const Batch& batch) { fill_classes(batch, 70); }).skipped);
  }
}

BOOST_AUTO_TEST_CASE(wrong_options_are_named) {
  const auto with = [](const std::function<void(FsdpOptions&)>& change) {
    FsdpOptions options = of_classes();
    change(options);
    return [options] { outcome_of(options, 0); };
  };
  refused("optimizer_state_dtype 'fp16' is not accepted", with([](FsdpOptions& o) { o.optimizer_state_dtype = "fp16"; }));
  refused("master_dtype bf16 needs param_dtype bf16", with([](FsdpOptions& o) { o.master_dtype = "bf16"; }));
  refused("it needs param_dtype \"fp16\"", with([](FsdpOptions& o) { o.fp16_init_scale = 4; }));
  refused("clip_norm and clip_value are both given", with([](FsdpOptions& o) { o.clip_norm = o.clip_value = 1; }));
  refused("nesterov changes nothing (there is no momentum)",
          with([](FsdpOptions& o) { o.optimizer = "sgd", o.nesterov = true; }));
  refused("sum_order 'other' is not accepted", [] { Job({.sum_order = "other"}); });
  refused("invariant contradicts JobOptions::sum_order library", [] {
    Job job({.sum_order = "library"});
    FullyShardedDataParallel(job, classifier(), {.invariant = true});
  });
  refused("invariant contradicts accumulate_unsharded",
          with([](FsdpOptions& o) { o.invariant = o.accumulate_unsharded = true; }));
  refused("train_only 'three.*' matches no parameter", with([](FsdpOptions& o) { o.train_only = {"three.*"}; }));
  refused("ignored_params 'three.*' matches no parameter", with([](FsdpOptions& o) { o.ignored_params = {"three.*"}; }));
  refused("wrap_layers changes nothing (it goes with auto_wrap_policy",
          with([](FsdpOptions& o) { o.auto_wrap_policy = "none", o.wrap_layers = 2; }));
  refused("checkpoint_every changes nothing", with([](FsdpOptions& o) { o.checkpoint_every = 2; }));
  refused("recompute_num_layers contradicts activation_checkpointing",
          with([](FsdpOptions& o) { o.activation_checkpointing = true, o.recompute_num_layers = "1"; }));
  refused("lower recompute_num_layers", with([](FsdpOptions& o) { o.recompute_num_layers = "1000"; }));
  refused("checkpoint_policy \"selective\" is for a TransformerDescription",
          with([](FsdpOptions& o) { o.activation_checkpointing = true, o.checkpoint_policy = "selective"; }));
  refused("dropout is for a TransformerDescription", with([](FsdpOptions& o) { o.dropout = 0.1; }));
  if (world().size() == 3) refused("leave out invariant", with([](FsdpOptions& o) { o.invariant = true; }));
}
