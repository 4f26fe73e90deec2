// Runs each model family through the programs. Training from a Hugging Face folder gives the results of transformers in
// fp32 and bf16, and the model is consolidated, evaluated and sampled from. The models are those of
// tests/golden/families.
#include <cmath>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "checkpoint/tensor_source.hpp"
#include "families.hpp"
#include "jobs/job.hpp"
#include "support/golden.hpp"

using namespace fsdp::test;

namespace {

const char* const kFamilies[] = {"mistral", "qwen2", "qwen3", "phi3", "gemma3_text", "opt", "biogpt", "xglm"};

Outcome tool(const fs::path& folder, const std::string& words) { return run(folder, split(FSDP_BIN "/" + words)); }

Outcome train(const fs::path& folder, int np, const json& one, const std::string& more) {
  const auto text = [&](const char* key) { return std::to_string(one[key].get<std::size_t>()); };
  return run(folder, mpirun(np, "fsdp-train",
                            split("train.bin --tokens-per-sample " + text("T") + " --batch-size 1 --total-batch-size " +
                                  text("B") + " --max-update " + std::to_string(one["steps"].size()) +
                                  " --optimizer sgd --momentum 0 --weight-decay 0 --lr 0.125 --lr-scheduler fixed --clip-norm "
                                  "0 --log-file log.jsonl " +
                                  more)));
}

/// Returns the largest relative differences of losses and of gradient norms.
std::pair<double, double> apart(const fs::path& folder, const json& one) {
  const auto lines = metrics(folder / "log.jsonl", "train");
  BOOST_TEST_REQUIRE(lines.size() == one["steps"].size());
  std::pair<double, double> worst;
  for (std::size_t u = 0; u < lines.size(); ++u) {
    const auto difference = [&](const char* key) {
      return std::abs(lines[u][key].get<double>() / one["steps"][u][key].get<double>() - 1);
    };
    worst = {std::max(worst.first, difference("loss")), std::max(worst.second, difference("gnorm"))};
  }
  fs::remove(folder / "log.jsonl");
  return worst;
}

}  // namespace

BOOST_DATA_TEST_CASE(a_folder_is_trained_and_written_back, boost::unit_test::data::make(kFamilies), family) {
  const auto folder = fresh_folder();
  const json one = family_case(family);
  const std::size_t B = one["B"], T = one["T"];
  write_formula_model(folder / "model", one["config"]);
  write_formula_tokens(folder / "train.bin", one["config"]["vocab_size"], one["steps"].size() * B * T + 1);

  for (const char* strategy : {"full", "hybrid-grad-op --shard-group-size 1 --checkpoint-activations"}) {
    const Outcome outcome = train(
        folder, 2, one, std::string("--model model --save-dir saves-") + strategy[0] + " --sharding-strategy " + strategy);
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    const auto [loss, norm] = apart(folder, one);
    BOOST_TEST_MESSAGE(family << ", " << strategy << ": loss " << loss << ", norm " << norm << " apart");
    BOOST_TEST(loss < 1e-5);
    BOOST_TEST(norm < 1e-5);
  }
  const Outcome low = train(folder, 2, one, "--model model --save-dir saves-bf16 --bf16");
  BOOST_TEST_REQUIRE(low.code == 0, low.output);
  const auto [loss, norm] = apart(folder, one);
  BOOST_TEST_MESSAGE(family << " in bf16: loss " << loss << ", norm " << norm << " apart");
  BOOST_TEST(loss < 0.01);
  BOOST_TEST(norm < 0.03);

  BOOST_TEST_REQUIRE(tool(folder, "fsdp-consolidate saves-f out --format safetensors").code == 0);
  const auto before = fsdp::read_config(folder / "model"), after = fsdp::read_config(folder / "out");
  BOOST_TEST((before == after));
  const json written = read_json(folder / "out" / "config.json");
  BOOST_TEST(written["model_type"] == family);
  const auto tensors = read_tensors(folder / "out" / "model.safetensors"),
             initial = read_tensors(folder / "model" / "model.safetensors");
  BOOST_TEST_REQUIRE(tensors.size() == initial.size());
  // Without rotary positions, a bias of the keys does not change the softmax, so it gets no gradient.
  for (const auto& [name, values] : tensors)
    BOOST_TEST((values != initial.at(name) || name.ends_with("k_proj.bias")), name << " was not trained");
  const std::string rest = " train.bin --json --tokens-per-sample " + std::to_string(T);
  const Outcome of_saves = run(folder, mpirun(2, "fsdp-evaluate", split("saves-f" + rest))),
                of_folder = run(folder, mpirun(2, "fsdp-evaluate", split("out" + rest)));
  BOOST_TEST_REQUIRE(of_saves.code == 0, of_saves.output);
  BOOST_TEST_REQUIRE(of_folder.code == 0, of_folder.output);
  const auto loss_of = [](const Outcome& outcome) {
    return json::parse(outcome.output.substr(outcome.output.find('{')))["loss"];
  };
  BOOST_TEST(loss_of(of_saves) == loss_of(of_folder));
}

// If the embedding is tied, the padding token's row is still trained as a row of the output layer. The expected numbers
// are from transformers (make_references.py, with this pad_token_id).
BOOST_AUTO_TEST_CASE(lookups_of_the_padding_token_train_nothing) {
  const json steps[] = {{{{"loss", 3.4418458938598633}, {"gnorm", 1.0688336156010292}},
                         {{"loss", 3.5388071537017822}, {"gnorm", 1.164817261424493}},
                         {{"loss", 3.6341476440429688}, {"gnorm", 1.2335401483370745}}},
                        {{{"loss", 4.6224684715271}, {"gnorm", 3.3102493797741968}},
                         {{"loss", 4.645071506500244}, {"gnorm", 3.3803218003641575}},
                         {{"loss", 4.439474582672119}, {"gnorm", 2.5423142966750585}}}};
  const std::pair<const char*, int> models[] = {{"opt", 27}, {"qwen2", 68}};  // the first is tied, the second is not
  for (std::size_t i = 0; i < 2; ++i) {
    const auto folder = fresh_folder();
    json one = family_case(models[i].first);
    one["config"]["pad_token_id"] = models[i].second, one["steps"] = steps[i];
    write_formula_model(folder / "model", one["config"]);
    write_formula_tokens(folder / "train.bin", one["config"]["vocab_size"],
                         3 * one["B"].get<std::size_t>() * one["T"].get<std::size_t>() + 1);
    const Outcome outcome = train(folder, 2, one, "--model model --save-dir saves");
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    const auto [loss, norm] = apart(folder, one);
    BOOST_TEST((loss < 1e-5 && norm < 1e-5), models[i].first << ": loss " << loss << ", norm " << norm << " apart");
    // A resumed run keeps the pad_token_id that it began with.
    one["config"]["pad_token_id"] = nullptr;
    write_formula_model(folder / "model", one["config"]);
    const Outcome resumed = train(folder, 2, one, "--model model --save-dir saves");
    BOOST_TEST(resumed.code == 0, resumed.output);
    BOOST_TEST(resumed.says("pad_token_id is " + std::to_string(models[i].second) + " in "), resumed.output);
  }
}

BOOST_DATA_TEST_CASE(what_is_a_byte_a_token_can_be_sampled, boost::unit_test::data::make(kFamilies), family) {
  const auto folder = fresh_folder();
  json one = family_case(family);
  one["config"]["vocab_size"] = 256;
  write_formula_model(folder / "model", one["config"]);
  // The text is longer than the model's longest sequence, so the window slides.
  const Outcome greedy = tool(folder, "fsdp-generate model --prompt ab --temperature 0 --max-new-tokens 40");
  BOOST_TEST_REQUIRE(greedy.code == 0, greedy.output);
  BOOST_TEST(greedy.output.size() >= 42u);
  BOOST_TEST(tool(folder, "fsdp-generate model --prompt ab --temperature 0 --max-new-tokens 40").output == greedy.output);
}

// Frequencies that depend on the length of a sequence are not those of its documents, nor of questions of other lengths.
BOOST_AUTO_TEST_CASE(lengths_that_decide_the_frequencies_do_not_mix) {
  const auto folder = fresh_folder();
  json one = family_case("mistral");
  const int T = one["T"];
  one["config"]["rope_parameters"] = {{"rope_type", "dynamic"}, {"rope_theta", 1e4}, {"factor", 4.0}};
  one["config"]["vocab_size"] = 256;
  for (const int positions : {T - 1, T}) {
    one["config"]["max_position_embeddings"] = positions;
    write_formula_model(folder / "model", one["config"]);
    write_formula_tokens(folder / "train.bin", one["config"]["vocab_size"], 1000);
    const Outcome documents = train(folder, 2, one, "--model model --document-attention --eos-token-id 3");
    BOOST_TEST(documents.code == (positions < T ? 2 : 0), documents.output);
    BOOST_TEST(documents.says("frequencies depend on the length") == (positions < T), documents.output);
    std::ofstream(folder / "questions.jsonl")
        << json{{"context", "ab"}, {"choices", {"c", "d"}}, {"answer", 0}} << "\n"
        << json{{"context", std::string(static_cast<std::size_t>(T), 'a')}, {"choices", {"c", "d"}}, {"answer", 1}} << "\n";
    const Outcome questions = tool(folder, "fsdp-evaluate model --multiple-choice questions.jsonl");
    BOOST_TEST(questions.code == (positions < T ? 2 : 0), questions.output);
  }
  one["T"] = 4 * T + 1;
  const Outcome longer = train(folder, 2, one, "--model model");
  BOOST_TEST(longer.code == 2);
  BOOST_TEST(longer.says("longer than the model's " + std::to_string(4 * T) + " positions"), longer.output);
}
