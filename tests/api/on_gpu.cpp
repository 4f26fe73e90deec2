// User-defined layers, a transformer and adapters, trained through the API on the double of CUDA (cuda_double/): results as on
// the CPU, the same bits with all strategies, and layers that do not work on GPUs are refused by name.
#include "mpi_main.hpp"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>

#include <fsdp/fsdp.hpp>

#include "checkpoint/checkpoint.hpp"
#include "gated_convolution.hpp"
#include "layers/swiglu_layer.hpp"
#include "support.hpp"
#include "support/golden.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr std::size_t vocabulary = 13, width = 10, length = 7;

Sequential small_model() {
  Sequential model;
  model.add("embedding", embedding(vocabulary, width));
  for (int i = 0; i < 2; ++i) model.add("blocks." + std::to_string(i), std::make_shared<SwigluLayer>(width, 17));
  return model.add("norm", rms_norm(width)).add("head", linear(width, vocabulary, false)).loss(cross_entropy(vocabulary));
}

/// Has all layers of the library that small_model() does not have.
Sequential model_of_many_layers() {
  const LayerPtr mlp = sequential({{"norm", layer_norm(width)},
                                   {"up", linear(width, 2 * 17)},
                                   {"swiglu", fsdp::swiglu(17)},
                                   {"dropout", dropout(17, 0.3)},
                                   {"down", linear(17, width)}});
  const LayerPtr activations = sequential({{"silu", silu(width)},
                                           {"tanh", fsdp::tanh(width)},
                                           {"transpose", transpose(2, width / 2)},
                                           {"gelu", gelu(width, ops::Gelu::erf)},
                                           {"same", identity(width)}});
  Sequential model;
  model.add("embedding", embedding(vocabulary, width)).add("positions", position_embedding(length, width));
  model.add("mlp", residual(mlp)).add("activations", residual(activations)).add("dropout", dropout(width, 0.2));
  model.add("sums", parallel({{"softmax", softmax(width)}, {"log_softmax", log_softmax(width)}, {"sigmoid", sigmoid(width)}}));
  model.add("norm", batch_norm(width));
  std::vector<float> weight(vocabulary, 1);
  weight[3] = 2.5f;
  return model.add("head", linear(width, vocabulary))
      .loss(cross_entropy(vocabulary, {.label_smoothing = 0.1, .z_loss = 1e-3, .weight = weight, .ignore_index = 5}));
}

TransformerDescription small_transformer() {
  TransformerDescription gpt("gpt2");
  gpt.layers(2).width(24).heads(3).vocabulary(vocabulary).longest_sequence(16);
  return gpt;
}

void fill(const Batch& batch, std::uint64_t update, int rank) {
  for (std::size_t r = 0; r < batch.tokens().size(); ++r) {
    const std::size_t token = (r * r + 3 * update + 5 * static_cast<std::size_t>(rank)) % vocabulary;
    batch.tokens()[r] = static_cast<int>(token);
    batch.labels()[r] = r % 5 == 4 ? -1 : static_cast<int>((2 * token + 1) % vocabulary);
  }
}

struct Outcome {
  std::vector<double> losses, norms;
  Parameters parameters;  // on rank 0
  bool operator==(const Outcome&) const = default;
};

FsdpOptions options_of(const std::string& strategy, const std::string& type = "fp32") {
  FsdpOptions options;
  options.batch_size = 3, options.sequence_length = length;
  options.sharding_strategy = strategy;
  options.shard_group_size = strategy.find("HYBRID") != std::string::npos ? (world().size() % 2 == 0 ? 2 : 1) : 0;
  options.param_dtype = type;
  return options;
}

/// `base`: the base model of a model with adapters; else empty.
Outcome train(const std::string& device, const ModelDescription& model, const FsdpOptions& options, int steps = 3,
              const std::filesystem::path& base = {}) {
  JobOptions of_job;
  of_job.device = device;
  Job job(of_job);
  FullyShardedDataParallel sharded(job, model, options);
  if (!base.empty()) sharded.load_full(base);
  Outcome outcome;
  for (int step = 0; step < steps; ++step) {
    const StepResult result = sharded.step(5e-3, [&](const Batch& batch) { fill(batch, sharded.updates(), job.rank()); });
    outcome.losses.push_back(result.loss), outcome.norms.push_back(result.gradient_norm);
  }
  outcome.parameters = parameters_of(sharded);
  if (steps > 0) BOOST_TEST(sharded.peak_bytes() == sharded.memory().total);
  return outcome;
}

/// The bounds of run.golden_on_gpu.
void require_near(const Outcome& gpu, const Outcome& cpu, const Outcome& before, const std::string& type) {
  BOOST_TEST_REQUIRE(gpu.losses.size() == cpu.losses.size());
  for (std::size_t u = 0; u < cpu.losses.size(); ++u) {
    BOOST_TEST(std::abs(gpu.losses[u] - cpu.losses[u]) < (type == "fp32" ? 2e-6 : 2e-3));
    BOOST_TEST(std::abs(gpu.norms[u] / cpu.norms[u] - 1) < (type == "fp32" ? 1e-5 : 1e-2));
  }
  if (type != "fp32") return;
  double moved = 0, apart = 0;
  for (const auto& [name, values] : cpu.parameters) {
    // The gradient of attention's key biases is only rounding noise.
    const bool has_keys = name.ends_with("c_attn.bias");
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (has_keys && i >= values.size() / 3 && i < 2 * values.size() / 3) continue;
      moved = std::max(moved, std::abs(static_cast<double>(values[i]) - before.parameters.at(name)[i]));
      apart = std::max(apart, std::abs(static_cast<double>(values[i]) - gpu.parameters.at(name)[i]));
    }
  }
  if (world().rank() == 0) BOOST_TEST((moved > 0 && apart < 0.03 * moved), "moved by " << moved << ", apart " << apart);
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_first_update_finds_mistakes_on_gpus) {
  /// y = x, with a parameter that it does not use. It writes dx only if `writes`.
  class Idle final : public Layer {
   public:
    explicit Idle(bool writes) : writes_(writes) {}
    std::vector<LayerParameter> parameters() const override { return {{"w", {3}, constant(1)}}; }
    std::size_t inputs() const override { return width; }
    std::size_t outputs() const override { return width; }
    bool works_in(DType) const override { return true; }
    bool works_on_gpu() const override { return true; }
    void forward(const ForwardPass& pass) const override { ops::copy(pass, pass.y, pass.x); }
    void backward(const BackwardPass& pass) const override {
      if (writes_) ops::copy(pass, pass.dx, pass.dy);
    }

   private:
    bool writes_;
  };
  for (const char* const type : {"fp32", "bf16"})
    for (const bool writes : {false, true}) {
      Sequential model;
      model.add("embedding", embedding(vocabulary, width)).add("idle", std::make_shared<Idle>(writes));
      model.add("head", linear(width, vocabulary)).loss(cross_entropy(vocabulary));
      refused(writes ? "layer 'idle': backward() adds nothing to the gradient of 'w'"
                     : "layer 'idle': backward() does not write 210 of 210 numbers of dx (the first is in row 0, column 0)",
              [&] { train("cuda", model, options_of("FULL_SHARD", type)); });
    }
}

BOOST_AUTO_TEST_CASE(inner_outputs_and_gradients_of_inputs_are_those_of_the_cpu) {
  Sequential model;
  model.add("in", linear(4, width));
  model.add("blocks", repeat(3, [](std::size_t) {
              return residual(sequential(
                  {{"norm", rms_norm(width)}, {"up", linear(width, 17)}, {"gelu", gelu(17)}, {"down", linear(17, width)}}));
            }));
  model.add("head", linear(width, 3)).loss(mean_squared_error(3));
  const auto fill_numbers = [](const Batch& batch) {
    for (std::size_t i = 0; i < batch.inputs().size(); ++i) batch.inputs()[i] = std::sin(static_cast<float>(i * i));
    for (std::size_t i = 0; i < batch.targets().size(); ++i) batch.targets()[i] = std::cos(static_cast<float>(i));
  };
  struct Numbers {
    std::vector<float> inner, gradients;
    double loss;
  };
  const auto numbers_on = [&](const std::string& device, FsdpOptions options) {
    JobOptions of_job;
    of_job.device = device;
    Job job(of_job);
    options.batch_size = 3, options.eval_batch_size = 5;
    FullyShardedDataParallel sharded(job, model, options);
    sharded.step(1e-2, fill_numbers);
    Numbers numbers{sharded.predict_layer("blocks.1.up", fill_numbers), sharded.input_gradients(fill_numbers),
                    sharded.evaluate(fill_numbers)};
    sharded.step(1e-2, fill_numbers);
    BOOST_TEST(sharded.peak_bytes() == sharded.memory().total);
    return numbers;
  };
  const Numbers cpu = numbers_on("cpu", {});
  BOOST_TEST(cpu.inner.size() == 5u * 17);
  BOOST_TEST(cpu.gradients.size() == 3u * 4);
  for (const bool offloads : {false, true}) {
    FsdpOptions options = {.offload_activations = offloads, .offload_parameters = offloads ? "cpu" : "none"};
    if (offloads) options.freeze = {"in.*", "blocks.0.*"};
    const Numbers gpu = numbers_on("cuda", options), same = offloads ? numbers_on("cpu", {.freeze = options.freeze}) : cpu;
    BOOST_TEST(std::abs(gpu.loss - same.loss) < 1e-5);
    for (std::size_t i = 0; i < same.inner.size(); ++i) BOOST_REQUIRE_SMALL(gpu.inner[i] - same.inner[i], 1e-5f);
    for (std::size_t i = 0; i < same.gradients.size(); ++i) BOOST_REQUIRE_SMALL(gpu.gradients[i] - same.gradients[i], 1e-5f);
  }
}

BOOST_AUTO_TEST_CASE(layers_of_users_are_trained_as_on_the_cpu) {
  const Outcome before = train("cpu", small_model(), options_of("FULL_SHARD"), 0);
  const Outcome cpu = train("cpu", small_model(), options_of("FULL_SHARD"));
  const Outcome full = train("cuda", small_model(), options_of("FULL_SHARD"));
  BOOST_TEST(full.losses.back() < full.losses.front());
  require_near(full, cpu, before, "fp32");
  for (const char* strategy : {"SHARD_GRAD_OP", "NO_SHARD", "optim", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"})
    BOOST_TEST_CONTEXT(strategy) BOOST_TEST((train("cuda", small_model(), options_of(strategy)) == full));
  FsdpOptions recomputed = options_of("FULL_SHARD");
  recomputed.activation_checkpointing = true, recomputed.offload_parameters = "cpu";
  recomputed.gradient_accumulation_steps = 1;
  BOOST_TEST((train("cuda", small_model(), recomputed) == full));
}

BOOST_AUTO_TEST_CASE(many_layers_are_trained_as_on_the_cpu) {
  FsdpOptions options = options_of("FULL_SHARD");
  const Outcome before = train("cpu", model_of_many_layers(), options, 0), cpu = train("cpu", model_of_many_layers(), options),
                full = train("cuda", model_of_many_layers(), options);
  require_near(full, cpu, before, "fp32");
  options.activation_checkpointing = true;
  BOOST_TEST((train("cuda", model_of_many_layers(), options) == full));
  const FsdpOptions narrow = options_of("FULL_SHARD", "bf16");
  require_near(train("cuda", model_of_many_layers(), narrow), train("cpu", model_of_many_layers(), narrow), before, "bf16");
}

BOOST_AUTO_TEST_CASE(losses_of_numbers_are_those_of_the_cpu) {
  for (const LossPtr& loss : {mean_squared_error(3), l1_loss(3), huber_loss(3, 0.5), smooth_l1_loss(3, 0.5),
                              binary_cross_entropy_with_logits(3, {1, 2, 0.5f})}) {
    const auto run = [&](const char* device) {
      Job job({.device = device});
      FullyShardedDataParallel sharded(job, Sequential().add("out", linear(4, 3)).loss(loss), options_of("FULL_SHARD"));
      std::vector<double> results;
      for (int step = 0; step < 2; ++step) {
        const StepResult result = sharded.step(1e-2, [&](const Batch& batch) {
          for (std::size_t i = 0; i < batch.inputs().size(); ++i)
            batch.inputs()[i] = static_cast<float>((5 * i + static_cast<std::size_t>(job.rank())) % 7) - 3;
          for (std::size_t i = 0; i < batch.targets().size(); ++i) batch.targets()[i] = i % 3 == 0;
        });
        results.push_back(result.loss), results.push_back(result.gradient_norm);
      }
      return results;
    };
    const std::vector<double> cpu = run("cpu"), gpu = run("cuda");
    for (std::size_t i = 0; i < cpu.size(); ++i) BOOST_TEST(std::abs(gpu[i] / cpu[i] - 1) < 1e-5);
  }
}

BOOST_AUTO_TEST_CASE(outputs_are_those_of_the_cpu) {
  for (const char* type : {"fp32", "bf16"}) {
    const FsdpOptions options = options_of("FULL_SHARD", type);
    const auto outputs_on = [&](const char* device) {
      Job job({.device = device});
      FullyShardedDataParallel sharded(job, small_model(), options);
      return sharded.predict([&](const Batch& batch) {
        for (std::size_t r = 0; r < batch.tokens().size(); ++r)
          batch.tokens()[r] = static_cast<int>((r + static_cast<std::size_t>(job.rank())) % vocabulary);
      });
    };
    const std::vector<float> cpu = outputs_on("cpu"), gpu = outputs_on("cuda");
    BOOST_TEST_REQUIRE(cpu.size() == gpu.size());
    float largest = 0, apart = 0;
    for (std::size_t i = 0; i < cpu.size(); ++i)
      largest = std::max(largest, std::abs(cpu[i])), apart = std::max(apart, std::abs(cpu[i] - gpu[i]));
    BOOST_TEST(largest > 0);
    BOOST_TEST(apart < (std::string_view(type) == "fp32" ? 2e-6 : 2e-2) * largest);
  }
}

BOOST_AUTO_TEST_CASE(transformers_are_trained_as_on_the_cpu) {
  const Outcome before = train("cpu", small_transformer(), options_of("FULL_SHARD"), 0);
  const Outcome cpu = train("cpu", small_transformer(), options_of("FULL_SHARD"));
  const Outcome full = train("cuda", small_transformer(), options_of("FULL_SHARD"));
  require_near(full, cpu, before, "fp32");
  for (const char* strategy : {"SHARD_GRAD_OP", "NO_SHARD"})
    BOOST_TEST_CONTEXT(strategy) BOOST_TEST((train("cuda", small_transformer(), options_of(strategy)) == full));
}

BOOST_AUTO_TEST_CASE(adapters_are_trained_as_on_the_cpu) {
  const std::filesystem::path base = golden_folder("llama-gqa");
  for (const char* base_dtype : {"", "nf4"}) {
    auto model = TransformerDescription::from_config(base).lora({.rank = 3, .dropout = 0.1, .targets = {"all-linear"}});
    if (*base_dtype) model.base_dtype(base_dtype);
    const auto trained = [&](const std::string& device, int steps = 3) {
      return train(device, model, options_of("FULL_SHARD"), steps, base);
    };
    const Outcome before = trained("cpu", 0);
    if (world().rank() == 0) BOOST_TEST(before.parameters.begin()->first.find(".lora_A.weight") != std::string::npos);
    BOOST_TEST_CONTEXT("base_dtype '" << base_dtype << "'") require_near(trained("cuda"), trained("cpu"), before, "fp32");
  }
}

BOOST_AUTO_TEST_CASE(low_precision_is_that_of_the_cpu) {
  for (const char* type : {"bf16", "fp16"}) {
    const Outcome cpu = train("cpu", small_model(), options_of("FULL_SHARD", type));
    require_near(train("cuda", small_model(), options_of("FULL_SHARD", type)), cpu, cpu, type);
  }
}

BOOST_AUTO_TEST_CASE(parameters_are_frozen_between_updates) {
  const std::filesystem::path folder = "api-on-gpu/freezing" + std::to_string(world().size());
  if (world().rank() == 0) std::filesystem::remove_all(folder);
  world().barrier();
  Job job({.device = "cuda"});
  const auto train_more = [&](FullyShardedDataParallel& sharded) {
    std::vector<double> losses;
    for (int step = 0; step < 2; ++step)
      losses.push_back(sharded
                           .step(5e-3,
                                 [&](const Batch& batch) {
                                   for (std::size_t r = 0; r < batch.tokens().size(); ++r)
                                     batch.tokens()[r] = static_cast<int>((r * r + sharded.updates()) % vocabulary),
                                     batch.labels()[r] = batch.tokens()[r];
                                 })
                           .loss);
    return losses;
  };
  for (const bool offloads : {false, true}) {
    FsdpOptions options = options_of("FULL_SHARD", "bf16");
    options.offload_optimizer = offloads ? "cpu" : "none";
    FullyShardedDataParallel model(job, small_model(), options);
    train_more(model);
    model.save(folder / std::to_string(offloads));
    model.freeze({"blocks.0.*", "embedding.*"});
    options.freeze = {"blocks.0.*", "embedding.*"};
    FullyShardedDataParallel frozen(job, small_model(), options);
    frozen.load(folder / std::to_string(offloads));
    BOOST_TEST(train_more(model) == train_more(frozen), boost::test_tools::per_element());
    BOOST_TEST(model.memory().total == frozen.memory().total);
    BOOST_TEST(model.peak_bytes() == model.memory().total);
  }
}

namespace {

class Unchanged final : public ElementwiseOptimizer {
 public:
  std::string name() const override { return "unchanged"; }
  void update(const ElementwiseUpdate&) const override {}
};

}  // namespace

BOOST_AUTO_TEST_CASE(background_saves_copy_the_state_of_a_gpu) {
  const std::filesystem::path folder = "api-on-gpu-" + std::to_string(world().size());
  if (world().rank() == 0) std::filesystem::remove_all(folder);
  JobOptions of_job;
  of_job.device = "cuda";
  Job job(of_job);
  FsdpOptions options = options_of("FULL_SHARD", "bf16");
  options.background_saves = true;
  FullyShardedDataParallel model(job, small_model(), options);
  const auto step = [&] {
    model.step(5e-3, [&](const Batch& batch) { fill(batch, model.updates(), job.rank()); });
    return parameters_of(model);
  };
  const Parameters saved = step();
  model.save(folder);
  const bool moves = step() != saved;
  BOOST_TEST((moves || world().rank() != 0));
  model.finish_save();
  BOOST_TEST(model.peak_bytes() == model.memory().total);
  BOOST_TEST(model.restore(folder));
  BOOST_TEST(model.updates() == 1u);
  BOOST_TEST((parameters_of(model) == saved));
}

/// Returns what `run` prints on stderr.
std::string printed_by(const std::function<void()>& run) {
  std::FILE* const file = std::tmpfile();
  const int before = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  run();
  dup2(before, STDERR_FILENO);
  close(before);
  std::string text(static_cast<std::size_t>(std::ftell(file)), ' ');
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

BOOST_AUTO_TEST_CASE(a_load_warns_of_other_attention_and_algorithms) {
  const std::filesystem::path folder = "api-on-gpu-warns-" + std::to_string(world().size());
  if (world().rank() == 0) std::filesystem::remove_all(folder), std::filesystem::create_directory(folder);
  JobOptions of_job;
  of_job.device = "cuda";
  Job job(of_job);
  const FsdpOptions own = options_of("FULL_SHARD", "bf16");
  FsdpOptions other = own;
  other.attention_backend = "cudnn", other.gemm_algorithms = (folder / "algorithms").string();
  FullyShardedDataParallel saved(job, small_transformer(), other);
  saved.save(folder / "saves");
  const auto reader = open_checkpoint(folder / "saves");
  BOOST_TEST(reader->header().attention == "cuDNN 9.26.0");
  BOOST_TEST(!reader->header().gemm_algorithms.empty());
  for (const FsdpOptions& options : {other, own}) {
    FullyShardedDataParallel loaded(job, small_transformer(), options);
    const std::string text = printed_by([&] { loaded.load(folder / "saves"); });
    const bool warns = job.rank() == 0 && options.attention_backend == "own";
    for (const char* said :
         {"attention was computed by cuDNN 9.26.0 before", "attention_backend sets it", "matrix products were"})
      BOOST_TEST((text.find(said) != text.npos) == warns, text);
  }
}

BOOST_AUTO_TEST_CASE(what_does_not_work_on_gpus_is_refused_by_name) {
  JobOptions of_job;
  of_job.device = "cuda";
  Job job(of_job);
  const auto refusal = [&](const Sequential& model) {
    try {
      FullyShardedDataParallel sharded(job, model, options_of("FULL_SHARD"));
    } catch (const CollectiveError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  Sequential mixed;
  mixed.add("embedding", embedding(vocabulary, width)).add("mixer", std::make_shared<GatedConvolution>(width, 3));
  mixed.add("head", linear(width, vocabulary)).loss(cross_entropy(vocabulary));
  BOOST_TEST(refusal(mixed).starts_with("layer 'mixer' does not work on a GPU (its works_on_gpu() returns false)"),
             refusal(mixed));
  class FirstColumn final : public Loss {
   public:
    std::size_t inputs() const override { return 2; }
    bool takes_labels() const override { return false; }
    void evaluate(const LossPass& pass) const override {
      for (std::size_t r = 0; r < pass.rows(); ++r) pass.losses[r] = pass.x.row(r)[0];
    }
  };
  Sequential first;
  first.add("a", linear(2, 2)).loss(std::make_shared<FirstColumn>());
  BOOST_TEST(refusal(first).starts_with("loss 'loss' does not work on a GPU"), refusal(first));
  add_optimizer(std::make_shared<Unchanged>());
  FsdpOptions own = options_of("FULL_SHARD");
  own.optimizer = "unchanged";
  BOOST_CHECK_EXCEPTION(FullyShardedDataParallel(job, small_model(), own), CollectiveError, [](const CollectiveError& error) {
    return std::string(error.what()).starts_with("optimizer unchanged runs on CPUs only");
  });
}
