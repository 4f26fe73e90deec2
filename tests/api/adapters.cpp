// Adapters (LoRA) through the API, also over a quantized base model: the same bits as a run of fsdp-train, checkpoints that
// either of them resumes at any number of ranks, PEFT's folders, the planned memory, and mistakes.
#include "mpi_main.hpp"

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include <fsdp/fsdp.hpp>

#include "checkpoint/adapter.hpp"
#include "kernels/threads.hpp"
#include "options/options.hpp"
#include "support.hpp"
#include "support/golden.hpp"
#include "train/train.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t length = 32, sequences_of_update = 6;
const fs::path base = golden_folder("llama-gqa");

fs::path new_folder(const std::string& name) { return test::new_folder("api-adapters", name); }

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
Trained train_by_program(Communicator& ranks, const fs::path& saves, int updates, const std::string& base_dtype = "",
                         const std::string& precision = "fp32") {
  const fs::path log = saves.string() + ".jsonl";
  std::vector<std::string> words = {"fsdp-train", (base / "train.bin").string()};
  const auto add = [&](const std::string& option, const std::string& value) { words.insert(words.end(), {option, value}); };
  add("--model", base.string()), add("--lora-rank", "3"), add("--lora-alpha", "5"), add("--lora-dropout", "0.1");
  add("--lora-targets", "q_proj,*_proj"), words.push_back("--use-rslora");
  if (!base_dtype.empty()) add("--base-dtype", base_dtype);
  add("--tokens-per-sample", std::to_string(length)), add("--total-batch-size", std::to_string(sequences_of_update));
  add("--batch-size", std::to_string(sequences_of_update / static_cast<std::size_t>(ranks.size())));
  add("--lr", "1e-2"), add("--seed", "7"), add("--max-update", std::to_string(updates)), add("--log-interval", "1");
  add("--precision", precision), add("--save-dir", saves.string()), add("--log-file", log.string());
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

}  // namespace

BOOST_AUTO_TEST_CASE(they_are_trained_as_by_fsdp_train) {
  std::set<double> first_losses;
  using Case = std::pair<std::string, std::string>;
  for (const auto& [base_dtype, precision] :
       {Case("", "fp32"), Case("nf4", "fp32"), Case("int8", "fp32"), Case("nf4", "bf16")}) {
    BOOST_TEST_CONTEXT("base_dtype '" << base_dtype << "', " << precision) {
      const fs::path folder = new_folder("same" + base_dtype + precision);
      const Trained expected = train_by_program(world(), folder / "program", 4, base_dtype, precision);
      Job job;
      FsdpOptions options = options_of();
      options.param_dtype = precision;
      FullyShardedDataParallel model(job, adapted(base_dtype), options);
      model.load_full(base);
      const Trained found = train(model, 0, 4);
      BOOST_TEST_REQUIRE(expected.losses.size() == 4u);
      BOOST_TEST(expected.losses.back() < expected.losses.front());
      BOOST_TEST(first_losses.insert(found.losses.front()).second);
      equal(found.losses, expected.losses);
      equal(found.norms, expected.norms);
      const Parameters mine = parameters_of(model);
      model.save(folder / "api");
      if (world().rank() != 0) continue;
      const auto by_program = open_checkpoint(folder / "program"), by_api = open_checkpoint(folder / "api");
      BOOST_TEST((mine == parameters_in(*by_program)));
      const CheckpointHeader &a = by_api->header(), &b = by_program->header();
      BOOST_TEST(a.base->path == b.base->path);
      BOOST_TEST(a.base->sum == b.base->sum);
      BOOST_TEST(a.model_folder == b.model_folder);
      BOOST_TEST(a.model.to_json() == b.model.to_json());
    }
  }
}

BOOST_AUTO_TEST_CASE(checkpoints_move_between_programs_and_numbers_of_ranks) {
  for (const std::string base_dtype : {"", "nf4"}) {
    const fs::path folder = new_folder("moved" + base_dtype);
    Job job;
    FullyShardedDataParallel first(job, adapted(base_dtype), options_of());
    first.load_full(base);
    train(first, 0, 2);
    first.save(folder / "saves");
    // The rest of the run, by the same object, by another one under another strategy, and by fsdp-train. A checkpoint of the
    // API has no position in the data, so that fsdp-train reads them from the beginning.
    const Trained expected = train(first, 0, 2);
    FsdpOptions options = options_of();
    options.sharding_strategy = "NO_SHARD", options.activation_checkpointing = true;
    FullyShardedDataParallel second(job, adapted(base_dtype), options);
    second.load(folder / "saves");
    BOOST_TEST(second.updates() == 2u);
    equal(train(second, 0, 2).losses, expected.losses);
    const Parameters mine = parameters_of(first), theirs = parameters_of(second);
    BOOST_TEST((mine == theirs));
    equal(train_by_program(world(), folder / "saves", 4, base_dtype).losses, expected.losses);

    // A run of fsdp-train on one rank. The sums of more ranks have another order.
    Trained of_one;
    const auto one = world().split(world().rank() == 0 ? 0 : 1, 0);
    if (world().rank() == 0) train_by_program(*one, folder / "one", 2, base_dtype);
    world().barrier();
    FullyShardedDataParallel third(job, adapted(base_dtype), options_of());
    third.load(folder / "one");
    const Parameters loaded = parameters_of(third);
    const fs::path again = third.save(folder / "again");
    if (world().rank() == 0) {
      BOOST_TEST((open_checkpoint(folder / "one")->header().progress.data.sequences == 2 * sequences_of_update));
      BOOST_TEST((open_checkpoint(again)->header().progress.data == DataPosition{}));
      BOOST_TEST((loaded == parameters_in(*open_checkpoint(folder / "one"))));
      of_one = train_by_program(*one, folder / "one", 4, base_dtype);
    }
    world().barrier();
    const Trained rest = train(third, 2, 4);
    if (world().rank() != 0) continue;
    BOOST_TEST_REQUIRE(of_one.losses.size() == 4u);
    for (std::size_t i = 0; i < 2; ++i) BOOST_TEST(std::abs(of_one.losses[2 + i] - rest.losses[i]) < 1e-5);
  }
}

BOOST_AUTO_TEST_CASE(they_are_exchanged_with_peft) {
  const fs::path folder = new_folder("peft");
  Job job;
  FsdpOptions options = options_of();
  options.ema_decay = 0.5;
  FullyShardedDataParallel first(job, adapted("nf4"), options);
  first.load_full(base);
  train(first, 0, 3);
  const fs::path step = first.save(folder / "saves");
  first.save_full(folder / "peft");
  first.save_full(folder / "average", true);
  const auto batch = [](const Batch& b) { fill(b, 5); };
  const Parameters mine = parameters_of(first);
  const double loss = first.evaluate(batch), of_average = first.evaluate(batch, true);
  BOOST_TEST(loss != of_average);
  for (const fs::path& from : {folder / "peft", step}) {
    FullyShardedDataParallel second(job, TransformerDescription::from_config(base).lora(from, 0.1).base_dtype("nf4"), options);
    second.load_full(base);
    BOOST_TEST(second.evaluate(batch) != loss);
    second.load_adapter(from);
    const Parameters theirs = parameters_of(second);
    BOOST_TEST((mine == theirs));
    BOOST_TEST(second.evaluate(batch) == loss);
    BOOST_TEST(second.evaluate(batch, true) == loss);  // the average begins with them
    second.load_adapter(folder / "average");
    BOOST_TEST(second.evaluate(batch) == of_average);
    second.load_full(base);  // the adapters begin anew
    BOOST_TEST(second.evaluate(batch) != of_average);
  }
  // Without adapters, the model of a checkpoint has them in its weights. It may be the base model of others.
  FullyShardedDataParallel plain(job, adapted("nf4"), options_of()),
      merged(job, TransformerDescription::from_config(base), options_of()),
      more(job, TransformerDescription::from_config(base).lora({.rank = 2}), options_of());
  plain.load_full(base);
  plain.load_adapter(step);
  merged.load_full(step);
  more.load_full(step);
  BOOST_TEST(merged.evaluate(batch) == plain.evaluate(batch), boost::test_tools::tolerance(1e-6));
  BOOST_TEST(more.evaluate(batch) == merged.evaluate(batch));
}

BOOST_AUTO_TEST_CASE(memory_is_as_planned) {
  Job job;
  for (const std::string base_dtype : {"", "nf4"}) {
    const auto estimated = [&](const ModelDescription& model) {
      return estimate_memory(model, options_of(), job.size(), "cpu", kernels::threads());
    };
    FullyShardedDataParallel model(job, adapted(base_dtype), options_of());
    model.load_full(base);
    train(model, 0, 1);
    BOOST_TEST(model.peak_bytes() == model.memory().total);
    BOOST_TEST(estimated(adapted(base_dtype)).total == model.memory().total);
    const auto parameters = [&](const ModelDescription& description) { return estimated(description).parts.front(); };
    BOOST_TEST(parameters(adapted(base_dtype)).first == "parameters");
    const std::size_t whole = parameters(TransformerDescription::from_config(base)).second;
    BOOST_TEST((parameters(adapted(base_dtype)).second < whole) == !base_dtype.empty());
  }
}

BOOST_AUTO_TEST_CASE(mistakes_are_refused) {
  const fs::path folder = new_folder("mistakes"), other = golden_folder("gpt2-tied");
  Job job;
  const auto make = [&](const ModelDescription& model, const FsdpOptions& options = options_of()) {
    return std::make_unique<FullyShardedDataParallel>(job, model, options);
  };
  const auto of = [&](Lora lora) { return TransformerDescription::from_config(base).lora(std::move(lora)); };
  refused("lora().rank '0' is not accepted", [&] { make(of({})); });
  refused("lora().rank '70000' is not accepted", [&] { make(of({.rank = 70000})); });
  refused("lora().alpha '0' is not accepted", [&] { make(of({.rank = 2, .alpha = 0})); });
  refused("lora().dropout '1' is not accepted", [&] { make(of({.rank = 2, .dropout = 1})); });
  refused("lora().targets 'query' matches no module", [&] { make(of({.rank = 2, .targets = {"q_proj", "query"}})); });
  refused("lora().targets 'query' matches no module",
          [&] { estimate_memory(of({.rank = 2, .targets = {"query"}}), options_of(), 2); });
  refused("base_dtype() needs lora().rank or lora(folder) (quantized matrices cannot be trained",
          [&] { make(TransformerDescription::from_config(base).base_dtype("nf4")); });
  refused("base_dtype() 'fp4' is not accepted", [&] { make(adapted("fp4")); });
  refused("absent does not exist", [&] { make(TransformerDescription::from_config(base).lora(folder / "absent")); });
  FsdpOptions options = options_of();
  options.freeze = {"*norm*"};
  refused("do not go with adapters", [&] { make(adapted(), options); });
  if (job.size() > 1) refused("('lora {", [&] { make(of({.rank = 2, .alpha = job.rank() == 1 ? 3.0 : 4.0})); });

  const auto model = make(adapted());
  const auto batch = [](const Batch& b) { fill(b, 0); };
  const auto without_base = "adapters have no base model (they change a model that is trained already); call load_full()";
  refused(without_base, [&] { model->step(1e-3, batch); });
  refused(without_base, [&] { model->save(folder / "saves"); });
  refused(without_base, [&] { model->load_adapter(folder / "saves"); });
  refused("is another model than the adapters' base model (model_type: \"llama\" requested, \"gpt2\" in that model)",
          [&] { model->load_full(other); });
  refused("the base model of adapters is loaded as a whole", [&] { model->load_full(base, {.ignore_missing = {"*"}}); });
  model->load_full(base);
  refused("the model has no parameter 'x'", [&] { model->set_parameter("x", {}); });
  refused("is a parameter of the base model, which adapters do not change",
          [&] { model->set_parameter("lm_head.weight", {}); });
  model->step(1e-2, batch);
  model->save(folder / "saves");
  refused("cannot write adapters to", [&] { model->save_full(folder / "adapters.h5"); });
  model->save_full(folder / "peft");

  const auto loads = [&](const TransformerDescription& description) { make(description)->load(folder / "saves"); };
  refused("holds another model (no adapters requested (lora()), adapters in the checkpoint)",
          [&] { loads(TransformerDescription::from_config(base)); });
  refused("holds another model (lora: {", [&] { loads(of({.rank = 2})); });
  refused("holds another model (base_dtype: \"nf4\" requested, nothing in the checkpoint)", [&] { loads(adapted("nf4")); });
  const auto adds = [&](const TransformerDescription& description) {
    const auto to = make(description);
    to->load_full(base);
    to->load_adapter(folder / "peft");
  };
  refused("load_adapter() needs a model with adapters", [&] { adds(TransformerDescription::from_config(base)); });
  refused("give lora() the rank and targets of these adapters, or their folder", [&] { adds(of({.rank = 2})); });
  refused("(those of the model have scale 1)", [&] { adds(of({.rank = 3, .alpha = 3, .targets = {"*_proj"}})); });

  // A base model with one other element is another model.
  if (world().rank() == 0) {
    fs::copy(base, folder / "copy", fs::copy_options::recursive);
    std::fstream weights(folder / "copy" / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    weights.seekp(-1, std::ios::end);
    weights.put('\x3c');
  }
  world().barrier();
  const auto changed = make(adapted());
  changed->load_full(folder / "copy");
  refused("were trained on another base model than", [&] { changed->load(folder / "saves"); });
  refused("were trained on another base model than", [&] { changed->load_adapter(folder / "peft"); });
  changed->save(folder / "others");
  world().barrier();
  if (world().rank() == 0) fs::rename(folder / "copy", folder / "elsewhere");
  world().barrier();
  refused("which does not exist; put that model back, or give its new place (load_full())",
          [&] { make(adapted())->load(folder / "others"); });
  const auto moved = make(adapted());
  moved->load_full(folder / "elsewhere");
  moved->load(folder / "others");
  refused("freeze and train_only do not go with adapters", [&] { moved->freeze({"*norm*"}); });
}
