// Models of user-defined layers, trained through the API: all strategies give the same bits, and so do recomputation, wrap
// policies and slots; checkpoints move between strategies; whole models are written and read; memory is as planned.
#include "mpi_main.hpp"

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>

#include <fsdp/fsdp.hpp>

#include "gated_convolution.hpp"
#include "support.hpp"
#include "support/file_size_limit.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t vocabulary = 13, width = 10, length = 7, sequences = 3;

Sequential small_model() {
  Sequential model;
  model.add("embedding", embedding(vocabulary, width));
  for (int i = 0; i < 3; ++i) model.add("blocks." + std::to_string(i), std::make_shared<GatedConvolution>(width, 3));
  model.add("norm", layer_norm(width))
      .add("widen", linear(width, 21))
      .add("gelu", gelu(21))
      .add("head", linear(21, vocabulary, false));
  return model.loss(cross_entropy(vocabulary));
}

void fill(const Batch& batch, std::uint64_t step, int rank) {
  for (std::size_t r = 0; r < batch.tokens().size(); ++r) {
    const auto token = (r * r + 3 * step + 5 * static_cast<std::size_t>(rank) + 2 * batch.micro_batch()) % vocabulary;
    batch.tokens()[r] = static_cast<int>(token);
    batch.labels()[r] = r % 5 == 4 ? -1 : static_cast<int>((2 * token + 1) % vocabulary);
  }
}

struct Outcome {
  std::vector<double> losses, norms;
  Parameters parameters;  // on rank 0
  bool operator==(const Outcome&) const = default;
};

void train(FullyShardedDataParallel& sharded, Job& job, int steps, Outcome& outcome) {
  for (int i = 0; i < steps; ++i) {
    const StepResult result = sharded.step(5e-3, [&](const Batch& batch) { fill(batch, sharded.updates(), job.rank()); });
    outcome.losses.push_back(result.loss);
    outcome.norms.push_back(result.gradient_norm);
  }
}

FsdpOptions options_of(const std::string& strategy) {
  FsdpOptions options;
  options.batch_size = sequences, options.sequence_length = length;
  options.sharding_strategy = strategy;
  options.shard_group_size = strategy.find("HYBRID") != std::string::npos ? (world().size() % 2 == 0 ? 2 : 1) : 0;
  return options;
}

Outcome run_with(const FsdpOptions& options, int steps = 4) {
  Job job;
  FullyShardedDataParallel sharded(job, small_model(), options);
  Outcome outcome;
  train(sharded, job, steps, outcome);
  outcome.parameters = parameters_of(sharded);
  if (steps > 0) BOOST_TEST(sharded.peak_bytes() == sharded.memory().total);
  return outcome;
}

fs::path folder_of(const std::string& name) { return fs::path("api-training") / (name + std::to_string(world().size())); }

}  // namespace

BOOST_AUTO_TEST_CASE(all_strategies_give_the_same_bits) {
  const Outcome full = run_with(options_of("FULL_SHARD"));
  BOOST_TEST(full.losses.back() < full.losses.front());
  BOOST_TEST(std::abs(full.losses.front() - std::log(static_cast<double>(vocabulary))) < 0.5);
  for (const char* strategy : {"SHARD_GRAD_OP", "NO_SHARD", "optim", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"}) {
    BOOST_TEST_CONTEXT(strategy) BOOST_TEST((run_with(options_of(strategy)) == full));
  }
}

BOOST_AUTO_TEST_CASE(how_it_is_done_changes_no_bit) {
  const Outcome full = run_with(options_of("FULL_SHARD"));
  const auto same = [&](const char* what, const std::function<void(FsdpOptions&)>& change) {
    FsdpOptions options = options_of("FULL_SHARD");
    change(options);
    BOOST_TEST_CONTEXT(what) BOOST_TEST((run_with(options) == full));
  };
  same("recomputation", [](FsdpOptions& o) { o.activation_checkpointing = true; });
  same("one unit", [](FsdpOptions& o) { o.auto_wrap_policy = "none"; });
  same("units by size", [](FsdpOptions& o) { o.auto_wrap_policy = "size", o.min_num_params = 100; });
  same("slots and prefetch",
       [](FsdpOptions& o) { o.limit_all_gathers = 4, o.backward_prefetch = "none", o.forward_prefetch = false; });
}

BOOST_AUTO_TEST_CASE(gradients_accumulate_and_some_layers_are_frozen) {
  FsdpOptions options = options_of("FULL_SHARD");
  options.gradient_accumulation_steps = 3;
  options.freeze = {"blocks.1.*", "embedding.*"};
  options.clip_norm = 0.1;
  const Outcome full = run_with(options);
  options.sharding_strategy = "SHARD_GRAD_OP";
  BOOST_TEST((run_with(options) == full));
  const Outcome before = run_with(options, 0);
  if (world().rank() == 0) {
    BOOST_TEST((before.parameters.at("blocks.1.filter") == full.parameters.at("blocks.1.filter")));
    BOOST_TEST((before.parameters.at("embedding.weight") == full.parameters.at("embedding.weight")));
    BOOST_TEST((before.parameters.at("blocks.2.filter") != full.parameters.at("blocks.2.filter")));
  }
}

BOOST_AUTO_TEST_CASE(initial_parameters_do_not_depend_on_ranks) {
  const Outcome outcome = run_with(options_of("FULL_SHARD"), 0);
  if (world().rank() != 0) return;
  // The values on one rank, written here as constants: Philox by (seed, parameter, element).
  BOOST_TEST(outcome.parameters.at("embedding.weight").size() == vocabulary * width);
  double sum = 0;
  for (const auto& [name, values] : outcome.parameters)
    for (std::size_t i = 0; i < values.size(); ++i) sum += static_cast<double>(values[i]) * static_cast<double>(i % 7);
  BOOST_TEST(sum == -3.025298364609398, boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(a_checkpoint_goes_on_under_another_strategy) {
  const fs::path folder = folder_of("resume");
  if (world().rank() == 0) fs::remove_all(folder);
  world().barrier();
  Job job;
  Outcome whole;
  FullyShardedDataParallel first(job, small_model(), options_of("FULL_SHARD"));
  train(first, job, 3, whole);
  BOOST_TEST(!FullyShardedDataParallel::can_load(folder));
  world().barrier();
  BOOST_TEST(first.save(folder) == folder / "step-00000003");
  BOOST_TEST(FullyShardedDataParallel::can_load(folder));
  train(first, job, 2, whole);

  FullyShardedDataParallel second(job, small_model(), options_of("NO_SHARD"));
  second.load(folder);
  BOOST_TEST(second.updates() == 3u);
  Outcome rest;
  train(second, job, 2, rest);
  BOOST_TEST(rest.losses.back() == whole.losses.back());
  BOOST_TEST((parameters_of(first) == parameters_of(second)));

  FsdpOptions other = options_of("FULL_SHARD");
  other.optimizer = "sgd";
  FullyShardedDataParallel third(job, small_model(), other);
  BOOST_CHECK_THROW(third.load(folder), UserError);
  FullyShardedDataParallel fourth(job, Sequential().add("a", linear(3, 4)).loss(cross_entropy(4)));
  BOOST_CHECK_THROW(fourth.load(folder), UserError);
}

BOOST_AUTO_TEST_CASE(whole_models_are_written_and_read) {
  const fs::path folder = folder_of("full");
  if (world().rank() == 0) {
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  world().barrier();
  Job job;
  Outcome outcome;
  FullyShardedDataParallel first(job, small_model(), options_of("FULL_SHARD"));
  train(first, job, 2, outcome);
  first.save_full(folder / "model.h5");
  BOOST_CHECK_THROW(first.save_full(folder / "model.h5"), CollectiveError);  // the file exists
  world().barrier();
  BOOST_TEST(!fs::exists(folder / "model.h5.shards"));
  BOOST_CHECK_THROW(first.save_full(folder / "model.bin"), CollectiveError);
  BOOST_CHECK_THROW(first.save_full(folder / "model"), CollectiveError);  // a folder is for transformers
  world().barrier();
  {
    const auto full_disk = world().rank() == 0 ? std::make_unique<FileSizeLimit>(1000) : nullptr;
    BOOST_CHECK_THROW(first.save_full(folder / "none.h5"), CollectiveError);
  }
  world().barrier();
  const auto names = fs::directory_iterator(folder);
  BOOST_TEST(std::distance(fs::begin(names), fs::end(names)) == 1);  // only the first file
  FullyShardedDataParallel second(job, small_model(), options_of("SHARD_GRAD_OP"));
  second.load_full(folder / "model.h5");
  BOOST_TEST((parameters_of(first) == parameters_of(second)));
  BOOST_TEST(second.updates() == 0u);
}

BOOST_AUTO_TEST_CASE(an_average_is_kept_saved_and_evaluated) {
  const fs::path folder = folder_of("average");
  if (world().rank() == 0) {
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  world().barrier();
  Job job;
  FsdpOptions options = options_of("FULL_SHARD");
  options.ema_decay = 0.5;
  Outcome outcome;
  FullyShardedDataParallel first(job, small_model(), options), plain(job, small_model(), options_of("FULL_SHARD"));
  Parameters average = parameters_of(first);  // on rank 0
  for (int step = 0; step < 3; ++step) {
    train(first, job, 1, outcome);
    for (const auto& [name, values] : parameters_of(first))
      for (std::size_t i = 0; i < values.size(); ++i) average[name][i] = 0.5f * average[name][i] + 0.5f * values[i];
  }
  train(plain, job, 3, outcome);
  BOOST_TEST((parameters_of(first) == parameters_of(plain)));
  const auto batch = [&](const Batch& b) { fill(b, 7, job.rank()); };
  const double of_average = first.evaluate(batch, true), of_parameters = first.evaluate(batch);
  BOOST_TEST(of_average > of_parameters);
  BOOST_TEST(plain.evaluate(batch) == of_parameters);
  first.save(folder);
  first.save_full(folder / "average.h5", true);
  BOOST_TEST((parameters_of(first) == parameters_of(plain)));
  FullyShardedDataParallel whole(job, small_model(), options_of("NO_SHARD"));
  whole.load_full(folder / "average.h5");
  for (const auto& [name, values] : parameters_of(whole))
    for (std::size_t i = 0; i < values.size(); ++i) BOOST_REQUIRE_SMALL(values[i] - average[name][i], 1e-6f);
  BOOST_TEST(std::abs(whole.evaluate(batch) - of_average) < 1e-6);
  options.sharding_strategy = "NO_SHARD";
  FullyShardedDataParallel second(job, small_model(), options);
  second.load(folder);
  BOOST_TEST(second.evaluate(batch, true) == of_average);

  BOOST_CHECK_THROW(plain.evaluate(batch, true), UserError);
  BOOST_CHECK_THROW(plain.save_full(folder / "none.h5", true), UserError);
  world().barrier();
  const fs::path without = folder_of("without-average");
  if (world().rank() == 0) fs::remove_all(without);
  world().barrier();
  plain.save(without);
  BOOST_CHECK_THROW(second.load(without), UserError);
  options.ema_start_update = 3;
  FullyShardedDataParallel third(job, small_model(), options);
  third.load(without);
  BOOST_TEST(third.evaluate(batch, true) == of_parameters);
}

BOOST_AUTO_TEST_CASE(a_loss_has_its_terms_in_training_only) {
  Job job;
  const auto with = [&](double smoothing, double z_loss) {
    Sequential model;
    model.add("embedding", embedding(vocabulary, width)).add("head", linear(width, vocabulary, false));
    model.loss(cross_entropy(vocabulary, smoothing, z_loss));
    FullyShardedDataParallel sharded(job, model, options_of("FULL_SHARD"));
    const auto batch = [&](const Batch& b) { fill(b, 1, job.rank()); };
    const double before = sharded.evaluate(batch);
    return std::pair(sharded.step(0, batch).loss, before);
  };
  const auto [plain, evaluated] = with(0, 0);
  BOOST_TEST(std::abs(plain - evaluated) < 1e-6);
  for (const auto& [smoothing, z_loss] : {std::pair(0.2, 0.0), std::pair(0.0, 0.1)}) {
    const auto [trained, same] = with(smoothing, z_loss);
    BOOST_TEST(same == evaluated);
    BOOST_TEST(std::abs(trained - plain) > 1e-7);
  }
  BOOST_TEST(std::abs(with(0, 0.1).first - plain - 0.1 * std::pow(std::log(13.0), 2)) < 0.1);
  BOOST_CHECK_THROW(cross_entropy(vocabulary, 1), UserError);
  FsdpOptions options = options_of("FULL_SHARD");
  options.label_smoothing = 0.1;
  BOOST_CHECK_THROW(FullyShardedDataParallel(job, small_model(), options), UserError);
  FullyShardedDataParallel transformer(
      job, TransformerDescription("gpt2").layers(1).width(8).heads(2).vocabulary(vocabulary).longest_sequence(length), options);
  const auto batch = [&](const Batch& b) { fill(b, 1, job.rank()); };
  const double before = transformer.evaluate(batch);
  BOOST_TEST(std::abs(transformer.step(0, batch).loss - before) > 1e-7);
}

BOOST_AUTO_TEST_CASE(evaluation_is_the_mean_over_rows_that_count) {
  Job job;
  FullyShardedDataParallel sharded(job, small_model(), options_of("FULL_SHARD"));
  const auto fill_batch = [&](const Batch& batch) { fill(batch, 0, job.rank()); };
  const double evaluated = sharded.evaluate(fill_batch);
  BOOST_TEST(evaluated == sharded.step(1e-3, fill_batch).loss);  // before the update
  BOOST_CHECK_THROW(sharded.evaluate([](const Batch& batch) {
    for (int& token : batch.tokens()) token = 0;
    for (int& label : batch.labels()) label = -1;
  }),
                    UserError);
  BOOST_CHECK_THROW(sharded.step(1e-3, [](const Batch& batch) { batch.inputs()[0] = 1; }), UserError);  // it is given tokens
}

// A layer that contains layers computes what these compute one after another, and its parameters have the same names.
BOOST_AUTO_TEST_CASE(layers_in_layers_change_no_bit) {
  const auto inner = [] { return std::make_shared<GatedConvolution>(width, 3); };
  Sequential flat, nested;
  for (Sequential* model : {&flat, &nested}) model->add("embedding", embedding(vocabulary, width));
  flat.add("blocks.0.mix", inner()).add("blocks.0.up", linear(width, 21)).add("blocks.0.gelu", gelu(21));
  flat.add("head", linear(21, vocabulary, false)).loss(cross_entropy(vocabulary));
  nested.add("blocks", sequential({{"0", sequential({{"mix", inner()}, {"up", linear(width, 21)}, {"gelu", gelu(21)}})}}));
  nested.add("head", linear(21, vocabulary, false)).loss(cross_entropy(vocabulary));
  for (const char* strategy : {"FULL_SHARD", "NO_SHARD"})
    for (const bool recomputes : {false, true}) {
      FsdpOptions options = options_of(strategy);
      options.activation_checkpointing = recomputes;
      const auto trained = [&](const Sequential& model) {
        Job job;
        FullyShardedDataParallel sharded(job, model, options);
        Outcome outcome;
        train(sharded, job, 3, outcome);
        outcome.parameters = parameters_of(sharded);
        BOOST_TEST(sharded.peak_bytes() == sharded.memory().total);
        return outcome;
      };
      BOOST_TEST((trained(nested) == trained(flat)));
    }
}

// The outputs are those of which the loss is made: the loss and the accuracy follow from them.
BOOST_AUTO_TEST_CASE(outputs_of_the_last_layer) {
  const auto fill_batch = [&](const Batch& batch) { fill(batch, 0, world().rank()); };
  std::map<std::string, std::vector<float>> of_type;
  for (const char* type : {"fp32", "bf16"})
    for (const char* strategy : {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"}) {
      Job job;
      FsdpOptions options = options_of(strategy);
      options.param_dtype = type, options.ema_decay = 0.5;
      FullyShardedDataParallel sharded(job, small_model(), options);
      const std::vector<float> initial = sharded.predict(fill_batch);
      for (int i = 0; i < 8; ++i) sharded.step(2e-2, fill_batch);
      const std::vector<float> outputs = sharded.predict([&](const Batch& batch) {  // labels are not needed
        for (std::size_t r = 0; r < batch.tokens().size(); ++r)
          batch.tokens()[r] = static_cast<int>((r * r + 5 * static_cast<std::size_t>(job.rank())) % vocabulary);
      });
      BOOST_TEST(outputs.size() == sequences * length * vocabulary);
      BOOST_TEST((outputs != initial));
      BOOST_TEST((sharded.predict(fill_batch, true) != outputs));  // of the average
      BOOST_TEST((sharded.predict(fill_batch) == outputs));
      const std::vector<float>& same = of_type.try_emplace(type, outputs).first->second;
      BOOST_TEST((outputs == same));
      double loss = 0, right = 0, counted = 0;
      std::vector<int> labels;
      sharded.measure(
          [&](std::span<const float> given, const Batch& batch) {
            labels.assign(batch.labels().begin(), batch.labels().end());
            BOOST_TEST((outputs == std::vector<float>(given.begin(), given.end())));
            return 0;
          },
          fill_batch);
      for (std::size_t r = 0; r < labels.size(); ++r) {
        if (labels[r] < 0) continue;
        const float* const row = outputs.data() + r * vocabulary;
        double sum = 0;
        std::size_t best = 0;
        for (std::size_t c = 0; c < vocabulary; ++c) {
          sum += std::exp(static_cast<double>(row[c]));
          if (row[c] > row[best]) best = c;
        }
        loss += std::log(sum) - static_cast<double>(row[labels[r]]);
        right += best == static_cast<std::size_t>(labels[r]);
        ++counted;
      }
      counted = world().sum(counted), loss = world().sum(loss), right = world().sum(right);
      BOOST_TEST(std::abs(loss / counted - sharded.evaluate(fill_batch)) < 1e-5);
      BOOST_TEST(sharded.measure(accuracy, fill_batch) == right / counted);
      BOOST_TEST(right > 0.5 * counted);
      BOOST_TEST(sharded.peak_bytes() == sharded.memory().total);
    }
  Job job;
  FullyShardedDataParallel transformer(
      job, TransformerDescription("gpt2").layers(1).width(8).heads(2).vocabulary(vocabulary).longest_sequence(length),
      options_of("FULL_SHARD"));
  BOOST_CHECK_EXCEPTION(transformer.predict(fill_batch), CollectiveError, [](const CollectiveError& error) {
    return std::string(error.what()).starts_with("a TransformerDescription gives no outputs");
  });
  FullyShardedDataParallel sharded(job, small_model(), options_of("FULL_SHARD"));
  BOOST_CHECK_THROW(sharded.measure(nullptr, fill_batch), CollectiveError);
}

BOOST_AUTO_TEST_CASE(ranks_are_told_the_same_and_batches_have_what_there_is) {
  Job job;
  FsdpOptions options = options_of("FULL_SHARD");
  FullyShardedDataParallel sharded(job, small_model(), options);
  const auto with = [&](int token, int label) {
    return [&, token, label](const Batch& batch) {
      fill(batch, 0, job.rank());
      batch.tokens()[1] = token, batch.labels()[2] = label;
    };
  };
  sharded.step(1e-3, with(12, 12));
  BOOST_CHECK_THROW(sharded.step(1e-3, with(13, 1)), CollectiveError);
  BOOST_CHECK_THROW(sharded.step(1e-3, with(-1, 1)), CollectiveError);
  BOOST_CHECK_THROW(sharded.step(1e-3, with(1, 13)), CollectiveError);
  for (const double wrong : {-1e-3, std::nan(""), HUGE_VAL})
    BOOST_CHECK_THROW(sharded.step(wrong, with(1, 1)), CollectiveError);
  const Parameters before = parameters_of(sharded);
  if (job.size() == 1) return;
  BOOST_CHECK_EXCEPTION(
      sharded.step(job.rank() == 1 ? 1e-3 : 2e-3, with(1, 1)), CollectiveError, [](const CollectiveError& error) {
        return std::string(error.what()).starts_with("the learning rate is 0.002 on rank 0, and another one on other ranks");
      });
  BOOST_CHECK_THROW(sharded.step(job.rank() == 1 ? 1e-3 : std::nextafter(1e-3, 1.0), with(1, 1)), CollectiveError);
  BOOST_TEST((parameters_of(sharded) == before));
  BOOST_TEST(sharded.updates() == 1u);
  options.beta2 = job.rank() == 1 ? 0.99 : 0.999;
  BOOST_CHECK_THROW(FullyShardedDataParallel(job, small_model(), options), CollectiveError);
  options.beta2 = job.rank() == 1 ? 1.5 : 0.999;  // only one rank has an invalid value
  BOOST_CHECK_THROW(FullyShardedDataParallel(job, small_model(), options), CollectiveError);
  options.beta2 = {};
  options.seed += job.rank() == 1 ? 1 : 0;
  BOOST_CHECK_THROW(FullyShardedDataParallel(job, small_model(), options), CollectiveError);
}

BOOST_AUTO_TEST_CASE(calls_are_not_made_within_calls) {
  Job job;
  FullyShardedDataParallel sharded(job, small_model(), options_of("FULL_SHARD"));
  const auto fill_batch = [&](const Batch& batch) { fill(batch, 0, job.rank()); };
  const Parameters before = parameters_of(sharded);
  BOOST_CHECK_EXCEPTION(sharded.step(1e-3,
                                     [&](const Batch& batch) {
                                       fill_batch(batch);
                                       sharded.evaluate(fill_batch);
                                     }),
                        CollectiveError, [](const CollectiveError& error) {
                          return std::string(error.what()).starts_with("evaluate() is called during step()");
                        });
  BOOST_CHECK_THROW(
      sharded.for_each_parameter([&](const std::string&, const Shape&, std::span<const float>) { sharded.save("never"); }),
      CollectiveError);
  BOOST_CHECK_THROW(sharded.step(1e-3, nullptr), CollectiveError);
  BOOST_TEST((parameters_of(sharded) == before));
  sharded.step(1e-3, fill_batch);
}

BOOST_AUTO_TEST_CASE(ranks_do_the_same) {
  Job job;
  if (job.size() == 1) return;
  const bool odd = job.rank() == 1;
  FullyShardedDataParallel sharded(job, small_model(), options_of("FULL_SHARD"));
  const auto fill_batch = [&](const Batch& batch) { fill(batch, 0, job.rank()); };
  const auto says = [](const std::string& text) {
    return [text](const CollectiveError& error) { return std::string(error.what()).find(text) != std::string::npos; };
  };
  BOOST_CHECK_EXCEPTION(odd ? sharded.evaluate(fill_batch) : sharded.step(1e-3, fill_batch).loss, CollectiveError,
                        says("rank 0 calls step(), but other ranks do not"));
  BOOST_CHECK_EXCEPTION(static_cast<void>(odd ? double(job.should_stop()) : sharded.step(1e-3, fill_batch).loss),
                        CollectiveError, says("rank 0 calls step(), but other ranks do not"));
  BOOST_CHECK_EXCEPTION(odd ? job.barrier() : job.agree([] {}), CollectiveError, says("rank 0 calls Job::agree()"));
  FullyShardedDataParallel another(job, small_model(), options_of("FULL_SHARD"));
  BOOST_CHECK_EXCEPTION((odd ? another : sharded).step(1e-3, fill_batch), CollectiveError, says("of the same objects"));
  BOOST_CHECK_EXCEPTION(sharded.evaluate(fill_batch, odd), CollectiveError, says("use_ema is true on some ranks only"));
  BOOST_CHECK_EXCEPTION(sharded.load(odd ? "a" : "b"), CollectiveError, says("the path is 'a' here and 'b' on rank 0"));
  BOOST_CHECK_EXCEPTION(sharded.load_full(odd ? "a" : "b"), CollectiveError, says("the path is 'a' here and 'b' on rank 0"));
  const auto with = [&](LayerPtr layer) {
    Sequential model;
    model.add("in", linear(4, 4)).add("more", std::move(layer)).loss(mean_squared_error(4));
    FullyShardedDataParallel(job, model, {.batch_size = 2});
  };
  BOOST_CHECK_EXCEPTION(with(odd ? relu(4) : gelu(4)), CollectiveError,
                        says("the ranks have different options or models ('layer more"));
}

BOOST_AUTO_TEST_CASE(transformers_and_layers_of_the_library_in_16_bits) {
  Job job;
  FsdpOptions options = options_of("FULL_SHARD");
  options.param_dtype = "bf16";
  FullyShardedDataParallel gpt(
      job, TransformerDescription("gpt2").layers(2).width(24).heads(3).vocabulary(vocabulary).longest_sequence(16), options);
  Outcome outcome;
  train(gpt, job, 6, outcome);
  BOOST_TEST(outcome.losses.back() < outcome.losses.front());

  Sequential layers;
  layers.add("embedding", embedding(vocabulary, 16))
      .add("in", linear(16, 32))
      .add("relu", relu(32))
      .add("norm", rms_norm(32))
      .add("out", linear(32, vocabulary))
      .loss(cross_entropy(vocabulary));
  for (const char* type : {"bf16", "fp16"}) {
    options.param_dtype = type;
    FullyShardedDataParallel network(job, layers, options);
    Outcome of_type;
    train(network, job, 8, of_type);
    BOOST_TEST(of_type.losses.back() < of_type.losses.front());
  }
}

BOOST_AUTO_TEST_CASE(a_loss_that_is_not_finite_changes_nothing) {
  Job job;
  FullyShardedDataParallel sharded(job, Sequential().add("a", linear(2, 2)).loss(mean_squared_error(2)));
  const Parameters before = parameters_of(sharded);
  const auto bad = [&](const Batch& batch) {
    for (float& x : batch.inputs()) x = 1;
    for (float& x : batch.targets()) x = job.rank() == job.size() - 1 ? std::nanf("") : 0;
  };
  BOOST_CHECK_THROW(sharded.step(1e-3, bad), UserError);
  BOOST_TEST((parameters_of(sharded) == before));
  BOOST_TEST(sharded.updates() == 0u);
}

BOOST_AUTO_TEST_CASE(mistakes_of_layers_are_told_by_name) {
  if (world().size() > 1) return;  // with several ranks these mistakes end the job: see api.jobs
  class Wrong final : public Layer {
   public:
    std::vector<LayerParameter> parameters() const override { return {{"weight", {3, 2}, normal(1)}}; }
    std::size_t inputs() const override { return 2; }
    std::size_t outputs() const override { return 2; }
    void forward(const ForwardPass& pass) const override { ops::linear(pass, pass.x, pass.parameter(0), {}, pass.y); }
    void backward(const BackwardPass& pass) const override { pass.parameter(1); }
  };
  Job job;
  FullyShardedDataParallel sharded(job, Sequential().add("second", std::make_shared<Wrong>()).loss(mean_squared_error(2)));
  const auto fill_batch = [](const Batch& batch) {
    for (const std::span<float> numbers : {batch.inputs(), batch.targets()}) std::fill(numbers.begin(), numbers.end(), 1.0f);
  };
  BOOST_CHECK_EXCEPTION(sharded.step(1e-3, fill_batch), CollectiveError, [](const CollectiveError& error) {
    return std::string(error.what()) ==
               "layer 'second': matmul is given a [1, 2] in fp32; b to be transposed [3, 2] in fp32; out [1, 2] in fp32 (it "
               "takes "
               "op(a) [m, k] and op(b) [k, n] of one type, and out [m, n] of it or in fp32); correct the layer" &&
           error.exit_code == 2;
  });
}

BOOST_AUTO_TEST_CASE(a_job_lives_as_long_as_what_is_made_with_it) {
  auto job = std::make_unique<Job>();
  FullyShardedDataParallel sharded(*job, small_model(), options_of("FULL_SHARD"));
  const int rank = job->rank();
  job.reset();
  sharded.step(1e-3, [&](const Batch& batch) { fill(batch, 0, rank); });
  BOOST_TEST(sharded.updates() == 1u);
}

/// A pass ends with the last label of its batch, unless a layer looks ahead.
BOOST_AUTO_TEST_CASE(rows_end_with_the_last_label) {
  class Watch final : public Layer {
   public:
    explicit Watch(bool ahead) : ahead_(ahead) {}
    std::size_t inputs() const override { return width; }
    std::size_t outputs() const override { return width; }
    bool looks_ahead() const override { return ahead_; }
    void forward(const ForwardPass& pass) const override { seen = pass.T, ops::copy(pass, pass.y, pass.x); }
    void backward(const BackwardPass& pass) const override { ops::copy(pass, pass.dx, pass.dy); }
    mutable std::size_t seen = 0;

   private:
    bool ahead_;
  };
  constexpr std::size_t T = 40, labels = 10, columns = 16;
  std::vector<double> losses;
  for (const bool ahead : {true, false}) {
    const auto watch = std::make_shared<Watch>(ahead);
    Sequential model;
    model.add("embedding", embedding(vocabulary, width))
        .add("block", transformer_block(width, {.heads = 2}))
        .add("watch", watch)
        .add("head", linear(width, vocabulary));
    model.loss(cross_entropy(vocabulary));
    FsdpOptions options = options_of("FULL_SHARD");
    options.sequence_length = T;
    Job job;
    FullyShardedDataParallel sharded(job, model, options);
    const auto fill_beginning = [&](const Batch& batch) {
      fill(batch, sharded.updates(), job.rank());
      for (std::size_t r = 0; r < batch.labels().size(); ++r)
        if (r % T >= labels) batch.labels()[r] = -1;
    };
    for (int i = 0; i < 3; ++i) losses.push_back(sharded.step(5e-3, fill_beginning).loss);
    BOOST_TEST(watch->seen == (ahead ? T : columns));
    losses.push_back(sharded.evaluate(fill_beginning));
  }
  for (std::size_t i = 0; i < 4; ++i) BOOST_TEST(std::abs(losses[i] - losses[4 + i]) < 1e-5);
}
