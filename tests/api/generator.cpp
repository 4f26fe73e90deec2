// Texts by the API: the same tokens as those of fsdp-generate from every kind of file, during training, and mistakes.
#include "mpi_main.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include <fsdp/fsdp.hpp>

#include "fsdp-generate/generate.hpp"
#include "support.hpp"
#include "support/golden.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace fs = std::filesystem;

namespace {

const std::vector<std::string> prompts = {"all w", "no play makes", "j", "dull boy, dull boy", "and"};
const fs::path folder = "api-generator";

TransformerDescription small_model() {
  return TransformerDescription("gpt2").layers(2).width(32).heads(2).vocabulary(256).longest_sequence(96);
}
FsdpOptions options_of() { return {.batch_size = 2, .sequence_length = 16, .ema_decay = 0.5, .generate_positions = 64}; }
void fill(const Batch& batch) {
  static const std::string text = "all work and no play makes jack a dull boy\n";
  for (std::size_t i = 0; i < batch.tokens().size(); ++i)
    batch.tokens()[i] = text[i % text.size()], batch.labels()[i] = text[(i + 1) % text.size()];
}

/// Trains for a few updates, so that greedy texts differ, and writes "saves", "model.h5" and "model". Removes old files.
std::unique_ptr<FullyShardedDataParallel> trained(Job& job, const FsdpOptions& options = options_of()) {
  if (job.rank() == 0) fs::remove_all(folder), fs::create_directories(folder);
  job.barrier();
  auto model = std::make_unique<FullyShardedDataParallel>(job, small_model(), options);
  for (int update = 0; update < 6; ++update) model->step(3e-3, fill);
  model->save(folder / "saves");
  model->save_full(folder / "model.h5");
  model->save_full(folder / "model");
  return model;
}

/// The lines of fsdp-generate --json, in the same processes; on rank 0.
std::vector<json> by_program(GenerateOptions options) {
  if (world().rank() == 0) {
    std::ofstream file(folder / "prompts.txt");
    for (const std::string& prompt : prompts) file << prompt << "\n";
  }
  world().barrier();
  options.prompts = folder / "prompts.txt", options.json = true;
  std::vector<json> lines;
  fsdp::generate(options, world(), [&](std::string_view line) { lines.push_back(json::parse(line)); });
  return lines;
}

/// Compares on rank 0 with `expected`, and on the others with rank 0.
void equal(const std::vector<GeneratedTokens>& found, const std::vector<json>& expected) {
  std::string all;
  for (const GeneratedTokens& text : found)
    all +=
        json(
            {{"tokens", text.tokens}, {"finish", text.finish}, {"bytes", std::vector<int>(text.text.begin(), text.text.end())}})
            .dump();
  BOOST_TEST(world().broadcast(all, 0) == all);
  if (world().rank() != 0) return;
  BOOST_TEST_REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    BOOST_TEST(found[i].tokens == expected[i]["tokens"].get<std::vector<std::int32_t>>(), boost::test_tools::per_element());
    BOOST_TEST(found[i].text == expected[i]["text"].get<std::string>());
    BOOST_TEST(found[i].finish == expected[i]["finish"].get<std::string>());
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_tokens_are_those_of_fsdp_generate) {
  Job job;
  const auto model = trained(job);
  const GenerationConfig drawn = {.max_new_tokens = 40,
                                  .temperature = 1.3,
                                  .top_k = 60,
                                  .top_p = 0.95,
                                  .repetition_penalty = 1.1,
                                  .stop_strings = {"wx", "\x01"},
                                  .seed = 5};
  GenerateOptions options;
  options.wishes = {.temperature = 1.3, .top_p = 0.95, .repetition_penalty = 1.1, .top_k = 60, .stop = {"wx", "\x01"}};
  options.generation.max_new_tokens = 40, options.generation.seed = 5;
  options.batch_size = 2;  // with 5 prompts, so that a slot is used again
  options.model = folder / "saves";
  const std::vector<json> expected = by_program(options);
  if (job.rank() == 0) {
    BOOST_TEST_REQUIRE(expected.size() == prompts.size());
    BOOST_TEST(expected[0]["tokens"] != expected[1]["tokens"]);
  }
  for (const fs::path& path : {folder / "saves", folder / "model.h5", folder / "model"})
    for (const std::string strategy : {"FULL_SHARD", "NO_SHARD"}) BOOST_TEST_CONTEXT(path << ", " << strategy) {
        TextGenerator generator(job, path, {.batch_size = 2, .positions = 64, .sharding_strategy = strategy});
        equal(generator.generate_text(prompts, drawn), expected);
        equal(generator.generate_text(prompts, drawn), expected);  // a call leaves nothing behind
      }
  TextGenerator samples(*model);
  equal(samples.generate_text(prompts, drawn), expected);
  std::vector<std::vector<std::int32_t>> tokens;
  for (const std::string& prompt : prompts) tokens.emplace_back(prompt.begin(), prompt.end());
  equal(samples.generate(tokens, drawn), expected);

  options.use_ema = true;
  const std::vector<json> of_average = by_program(options);
  TextGenerator averages(*model, "", true);
  equal(averages.generate_text(prompts, drawn), of_average);
  equal(TextGenerator(job, folder / "saves", {.batch_size = 2, .use_ema = true}).generate_text(prompts, drawn), of_average);
  if (job.rank() == 0) BOOST_TEST((of_average != expected));
  equal(samples.generate_text(prompts, drawn), expected);
}

BOOST_AUTO_TEST_CASE(other_types_and_the_models_own_settings) {
  Job job;
  trained(job);
  if (job.rank() == 0)
    std::ofstream(folder / "model" / "generation_config.json")
        << R"({"temperature": 0.7, "top_k": 20, "eos_token_id": [32, 10], "stop_strings": "zz"})";
  job.barrier();
  for (const auto& [name, type, base] :
       {std::tuple("fp32", DType::f32, ""), std::tuple("bf16", DType::bf16, ""), std::tuple("fp32", DType::f32, "nf4")}) {
    BOOST_TEST_CONTEXT(name << ", base " << base) {
      GenerateOptions options;
      options.model = folder / "model", options.precision = type, options.generation.max_new_tokens = 30;
      if (*base) options.base_type = kernels::Quantization::nf4;
      const std::vector<json> expected = by_program(options);
      if (job.rank() == 0) BOOST_TEST(expected[0]["finish"] == "end_token");
      TextGenerator generator(job, options.model, {.param_dtype = name, .base_dtype = base});
      equal(generator.generate_text(prompts, {.max_new_tokens = 30}), expected);
      BOOST_TEST(generator.warnings().empty());
    }
  }
  // Texts that reach the model's longest sequence continue from their newest half.
  GenerateOptions options;
  options.model = folder / "model.h5", options.generation.max_new_tokens = 120, options.wishes.temperature = 0;
  TextGenerator generator(job, options.model);
  equal(generator.generate_text(prompts, {.max_new_tokens = 120, .temperature = 0}), by_program(options));
}

BOOST_AUTO_TEST_CASE(training_goes_on_as_if_nothing_was_generated) {
  Job job;
  const auto model = trained(job);
  FsdpOptions options = options_of();
  options.generate_positions = 0;
  const auto other = trained(job, options);
  BOOST_TEST((job.device().starts_with("CPU")) == (std::getenv("FSDP_CUDA_LIBRARY") == nullptr));
  TextGenerator generator(*model), averages(*model, "", true);
  generator.generate_text({"all"}, {.max_new_tokens = 20});
  averages.generate_text({"all"}, {.max_new_tokens = 20});
  for (int update = 0; update < 2; ++update) BOOST_TEST(model->step(1e-2, fill).loss == other->step(1e-2, fill).loss);
  BOOST_TEST(model->evaluate(fill, true) == other->evaluate(fill, true));
  BOOST_TEST(model->peak_bytes() == model->memory().total);
  BOOST_TEST(model->memory().total > other->memory().total);
}

BOOST_AUTO_TEST_CASE(a_model_without_a_tokenizer) {
  Job job;
  TextGenerator generator(job, golden_folder("llama-gqa"), {.positions = 48});
  const std::vector<std::vector<std::int32_t>> tokens = {{3, 4, 5}, {190}, {7, 7}};
  const auto first = generator.generate(tokens, {.max_new_tokens = 12, .temperature = 0, .eos_token_id = {{}}});
  BOOST_TEST_REQUIRE(first.size() == 3u);
  for (const GeneratedTokens& text : first) {
    BOOST_TEST(text.tokens.size() == 12u);
    BOOST_TEST(text.text.empty());
    BOOST_TEST(text.finish == "length");
  }
  const std::int32_t end = first[1].tokens[2];
  const auto second = generator.generate(tokens, {.max_new_tokens = 12, .temperature = 0, .eos_token_id = {{end}}});
  BOOST_TEST(second[1].finish == "end_token");
  BOOST_TEST(second[1].tokens.back() == end);
  refused<CollectiveError>("the model has no tokenizer", [&] { generator.generate_text({"a"}); });
  refused<CollectiveError>("stop_strings need a tokenizer", [&] { generator.generate(tokens, {.stop_strings = {"a"}}); });
  BOOST_TEST(generator.generate({}).empty());
}

BOOST_AUTO_TEST_CASE(mistakes) {
  Job job;
  const auto model = trained(job);
  TextGenerator of_file(job, folder / "model", {.positions = 64}), of_training(*model);
  refused<CollectiveError>("prompts[1][2] is 256, which is no token of the model (its tokens are 0 to 255)", [&] {
    of_file.generate({{1}, {1, 2, 256}}, {.max_new_tokens = 4});
  });
  refused<CollectiveError>("prompts[0][0] is -1", [&] { of_training.generate({{-1}}); });
  refused<CollectiveError>("prompts[1] has no tokens", [&] { of_file.generate({{1}, {}}, {.max_new_tokens = 4}); });
  refused<CollectiveError>("prompts[0] has 65 tokens, but positions is 64; raise positions, or shorten the prompt",
                           [&] { of_file.generate({std::vector<std::int32_t>(65, 1)}); });
  refused<CollectiveError>(
      "prompts[0] has 2 tokens and max_new_tokens is 63, but generate_positions is 64; raise generate_positions, or lower",
      [&] {
        of_training.generate({{1, 2}}, {.max_new_tokens = 63});
      });
  BOOST_TEST(of_training.generate({{1, 2}}, {.max_new_tokens = 62, .eos_token_id = {{}}})[0].tokens.size() == 62u);
  refused<CollectiveError>("temperature '-1' is not accepted", [&] { of_file.generate({{1}}, {.temperature = -1}); });
  refused<CollectiveError>("top_p '1.5' is not accepted", [&] { of_file.generate({{1}}, {.top_p = 1.5}); });
  refused<CollectiveError>("max_new_tokens '0' is not accepted", [&] { of_file.generate({{1}}, {.max_new_tokens = 0}); });
  refused<CollectiveError>("stop_strings", [&] { of_file.generate({{1}}, {.max_new_tokens = 4, .stop_strings = {""}}); });
  refused<CollectiveError>("seed '4294967296' is not accepted", [&] { of_file.generate({{1}}, {.seed = 4294967296}); });
  if (job.size() > 1) {
    refused<CollectiveError>("the ranks call generate() with different prompts",
                             [&] { of_file.generate({{job.rank()}}, {.max_new_tokens = 4}); });
    refused<CollectiveError>("the ranks call generate() with different options",
                             [&] { of_file.generate({{1}}, {.max_new_tokens = 4, .temperature = job.rank()}); });
    refused<CollectiveError>("the ranks' TextGenerators differ (the model or an option of rank 1 is not that of rank 0",
                             [&] { TextGenerator(job, folder / (job.rank() == 0 ? "model" : "model.h5")); });
  }
  of_file.generate({{1}}, {.max_new_tokens = 4});
  refused<CollectiveError>("absent", [&] { TextGenerator(job, folder / "absent"); });
  refused<CollectiveError>("the path of the model is empty", [&] { TextGenerator(job, ""); });
  refused<CollectiveError>("sharding_strategy 'HALF' is not accepted",
                           [&] { TextGenerator(job, folder / "model", {.sharding_strategy = "HALF"}); });
  refused<CollectiveError>("positions '0' is not accepted", [&] { TextGenerator(job, folder / "model", {.positions = 0}); });

  FsdpOptions options = options_of();
  options.generate_positions = 97;
  refused<CollectiveError>("longer than the model's longest sequence of 96",
                           [&] { FullyShardedDataParallel(job, small_model(), options); });
  options.generate_positions = 0;
  FullyShardedDataParallel without(job, small_model(), options);
  refused<CollectiveError>("the model has no memory for generation (generate_positions is 0",
                           [&] { TextGenerator generator(without); });
  options.ema_decay = 0, options.generate_positions = 64;
  FullyShardedDataParallel without_average(job, small_model(), options);
  refused<CollectiveError>("there is no average of the parameters", [&] { TextGenerator(without_average, "", true); });

  Sequential layers;
  layers.add("out", linear(4, 3)).loss(cross_entropy(3));
  refused<CollectiveError>("generate_positions is for a TransformerDescription",
                           [&] { FullyShardedDataParallel(job, layers, {.generate_positions = 8}); });
  FullyShardedDataParallel of_layers(job, layers);
  of_layers.save(folder / "layers");
  refused<CollectiveError>("the model has no memory for generation (generate_positions is 0, or this is a Sequential)",
                           [&] { TextGenerator generator(of_layers); });
  refused<CollectiveError>("is a model with layers of a user's program", [&] { TextGenerator(job, folder / "layers"); });
  if (job.size() > 1) {
    options.generate_positions = job.rank() == 0 ? 64 : 32;
    refused<CollectiveError>("'generate_positions 32' here, 'generate_positions 64' on rank 0",
                             [&] { FullyShardedDataParallel(job, small_model(), options); });
  }
}
