// Adapters (LoRA) through the API, also over a quantized base model: the same bits as a run of fsdp-train, checkpoints that
// either of them resumes at any number of ranks, PEFT's folders, the planned memory, and mistakes.
#include "mpi_main.hpp"

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>

#include <fsdp/fsdp.hpp>

#include "checkpoint/adapter.hpp"
#include "golden.hpp"
#include "train/options.hpp"
#include "train/train.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t length = 32, sequences_of_update = 6;
const fs::path base = golden_folder("llama-gqa");

/// A new folder, which all ranks use.
fs::path folder_of(const std::string& name) {
  const fs::path folder = fs::path("api-adapters") / (name + std::to_string(world().size()));
  if (world().rank() == 0) fs::remove_all(folder), fs::create_directories(folder);
  world().barrier();
  return folder;
}

TransformerDescription adapted(const std::string& base_dtype = "", double dropout = 0.1) {
  auto model = TransformerDescription::from_config(base).lora(
      {.rank = 3, .alpha = 5, .dropout = dropout, .rank_stabilized = true, .targets = {"q_proj", "*_proj"}});
  if (!base_dtype.empty()) model.base_dtype(base_dtype);
  return model;
}

FsdpOptions options_of(int ranks = world().size()) {
  return {.batch_size = sequences_of_update / static_cast<std::size_t>(ranks), .sequence_length = length, .seed = 7};
}

/// Writes this rank's sequences of update number `update`, which counts from 0, as fsdp-train reads them.
void fill(const Batch& batch, std::uint64_t update) {
  static const std::vector<std::int32_t> tokens = read_tokens(base / "train.bin");
  const std::size_t mine = batch.tokens().size(), rank = static_cast<std::size_t>(world().rank());
  for (std::size_t i = 0; i < mine; ++i) {
    const std::size_t at = update * sequences_of_update * length + rank * mine + i;
    batch.tokens()[i] = tokens.at(at), batch.labels()[i] = tokens.at(at + 1);
  }
}

struct Trained {
  std::vector<double> losses, norms;
};
/// Trains on the updates `first` to `last` of the data.
Trained train(FullyShardedDataParallel& model, std::uint64_t first, std::uint64_t last) {
  Trained trained;
  for (std::uint64_t update = first; update < last; ++update) {
    const StepResult result = model.step(1e-2, [&](const Batch& batch) { fill(batch, update); });
    trained.losses.push_back(result.loss), trained.norms.push_back(result.gradient_norm);
  }
  return trained;
}

/// The losses and gradient norms of a run of fsdp-train on the ranks of `ranks`, with the adapters of adapted().
Trained train_by_program(Communicator& ranks, const fs::path& saves, int updates, const std::string& base_dtype = "") {
  const fs::path log = saves.string() + ".jsonl";
  std::vector<std::string> words = {"fsdp-train", (base / "train.bin").string()};
  const auto add = [&](const std::string& option, const std::string& value) { words.insert(words.end(), {option, value}); };
  add("--model", base.string()), add("--lora-rank", "3"), add("--lora-alpha", "5"), add("--lora-dropout", "0.1");
  add("--lora-targets", "q_proj,*_proj"), words.push_back("--use-rslora");
  if (!base_dtype.empty()) add("--base-dtype", base_dtype);
  add("--tokens-per-sample", std::to_string(length)), add("--total-batch-size", std::to_string(sequences_of_update));
  add("--batch-size", std::to_string(sequences_of_update / static_cast<std::size_t>(ranks.size())));
  add("--lr", "1e-2"), add("--seed", "7"), add("--max-update", std::to_string(updates)), add("--log-interval", "1");
  add("--save-dir", saves.string()), add("--log-file", log.string());
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  const TrainCommand command = parse_train_command(static_cast<int>(argv.size()), argv.data(), ranks.size());
  BOOST_TEST_REQUIRE(fsdp::train(command.options, ranks) == 0);
  Trained trained;
  std::ifstream lines(log);
  for (std::string line; std::getline(lines, line);)
    if (const json entry = json::parse(line); entry["type"] == "train")
      trained.losses.push_back(entry["loss"]), trained.norms.push_back(entry["gnorm"]);
  return trained;
}

using Parameters = std::map<std::string, std::vector<float>>;
Parameters parameters_of(FullyShardedDataParallel& model) {  // on rank 0
  Parameters all;
  model.for_each_parameter([&](const std::string& name, const Shape&, std::span<const float> values) {
    all[name] = {values.begin(), values.end()};
  });
  return all;
}
Parameters parameters_in(const TensorSource& adapters) {
  Parameters all;
  for (const std::string& name : adapters.names()) {
    all[name].resize(numel(adapters.shape(name)));
    adapters.read(name, {0, all[name].size()}, all[name].data());
  }
  return all;
}

void equal(const std::vector<double>& found, const std::vector<double>& expected) {
  BOOST_TEST(found == expected, boost::test_tools::per_element());
}

template <class Call>
void refused(const std::string& text, const Call& call) {
  BOOST_CHECK_EXCEPTION(call(), UserError, [&](const UserError& error) {
    const bool is_said = std::string(error.what()).find(text) != std::string::npos;
    BOOST_TEST(is_said, "'" << text << "' is missing in: " << error.what());
    return is_said;
  });
}

}  // namespace

BOOST_AUTO_TEST_CASE(they_are_trained_as_by_fsdp_train) {
  for (const std::string base_dtype : {"", "nf4", "int8"}) {
    BOOST_TEST_CONTEXT("base_dtype '" << base_dtype << "'") {
      const fs::path folder = folder_of("same" + base_dtype);
      const Trained expected = train_by_program(world(), folder / "program", 4, base_dtype);
      Job job;
      FullyShardedDataParallel model(job, adapted(base_dtype), options_of());
      model.load_full(base);
      const Trained found = train(model, 0, 4);
      BOOST_TEST_REQUIRE(expected.losses.size() == 4u);
      BOOST_TEST(expected.losses.back() < expected.losses.front());
      equal(found.losses, expected.losses);
      equal(found.norms, expected.norms);
      const auto saved = open_checkpoint(folder / "program");
      if (world().rank() == 0)
        BOOST_TEST((parameters_of(model) == parameters_in(*saved)));
      else
        parameters_of(model);
    }
  }
}
