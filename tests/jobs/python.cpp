// Python packages read the files of fsdp. h5py, PyTorch and transformers load them as docs/checkpoint-format.md shows.
// transformers computes the same logits, and PyTorch's optimizer continues from the state. With models made by
// transformers, generated texts, perplexities and choices are the same. The tests are skipped if Python (FSDP_PYTHON,
// else python3) lacks these packages.
#include <array>

#include <boost/test/unit_test.hpp>

#include "checkpoint/tensor_source.hpp"
#include "families.hpp"
#include "jobs/python.hpp"
#include "nn/model_run.hpp"
#include "support/files.hpp"
#include "support/golden.hpp"
#include "text/tokenizer.hpp"

using namespace fsdp::test;

namespace {

const std::string script = script_of_jobs("read_in_python.py");

struct SkipWithoutPython {
  SkipWithoutPython() { skip_without_python(script, "torch, transformers, safetensors and h5py"); }
};
BOOST_TEST_GLOBAL_FIXTURE(SkipWithoutPython);

void consolidate(const fs::path& folder, const std::string& words) {
  must(folder, split(std::string(FSDP_BIN) + "/fsdp-consolidate " + words));
}

void train(const fs::path& folder, int np, const std::string& model, const std::string& words) {
  auto all = split("--tokens-per-sample 32 --total-batch-size 12 --batch-size " + std::to_string(12 / np) + " " + words);
  all.push_back((golden_folder(model) / "train.bin").string());
  must(folder, mpirun(np, "fsdp-train", all));
}

template <class T>
void write_values(const fs::path& path, const std::vector<T>& values) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
}

/// Writes tokens, and the logits after each of them, to the model's folder.
void write_logits(const fs::path& model, const std::vector<std::int32_t>& tokens) {
  const auto source = fsdp::open_tensor_source(model);
  ModelRun whole(source->config());
  const auto& parameters = whole.model.parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p)
    source->read(parameters[p].name, {0, whole.weights[p].size()}, whole.weights[p].data());
  const std::size_t V = source->config().vocab_size;
  const fsdp::StageContext stage = whole.context({1, tokens.size()}, false);
  whole.forward(stage, tokens.data());
  std::vector<float> logits(tokens.size() * V);
  for (std::size_t row = 0; row < tokens.size(); ++row)
    whole.model.head_logits(stage, whole.x.back().data(), std::array{static_cast<std::int32_t>(row)}, logits.data() + row * V);
  write_values(model / "tokens.bin", tokens);
  write_values(model / "logits.bin", logits);
}

std::vector<std::int32_t> tokens_of(const std::string& golden) {
  std::vector<std::int32_t> tokens = read_tokens(golden_folder(golden) / "train.bin");
  tokens.resize(23);
  return tokens;
}

/// Trains a model of a family from its case in tests/golden/families, and consolidates it to the folder `family`.
void write_family(const fs::path& folder, const std::string& family) {
  const json one = family_case(family);
  const std::size_t V = one["config"]["vocab_size"], T = one["T"];
  const std::string name = "start-" + family;
  write_formula_model(folder / name, one["config"]);
  write_formula_tokens(folder / (name + ".bin"), V, 20 * T);
  must(folder, mpirun(2, "fsdp-train",
                      split(name + ".bin --model " + name + " --tokens-per-sample " + std::to_string(T) +
                            " --batch-size 2 --lr 1e-2 --max-update 3 --save-dir saves-" + family)));
  consolidate(folder, "saves-" + family + " " + family + " --format safetensors");
  write_logits(folder / family, formula_tokens(V, T));
}

}  // namespace

BOOST_AUTO_TEST_CASE(others_read_what_is_written) {
  const auto folder = fresh_folder();
  for (const char* family : {"mistral", "qwen2", "qwen3", "opt", "biogpt", "xglm"}) write_family(folder, family);
  for (const std::string name : {"llama-gqa", "llama3-tied"}) {
    train(folder, 2, name, "--model " + golden_folder(name).string() + " --lr 1e-2 --max-update 3 --save-dir saves-" + name);
    consolidate(folder, "saves-" + name + " " + name + " --format safetensors");
    consolidate(folder, "saves-" + name + " " + name + "-cut --format safetensors --max-shard-size 100KB --dtype bf16");
    for (const std::string kind : {"", "-cut"}) write_logits(folder / (name + kind), tokens_of(name));
  }
  const std::string more = "--model " + golden_folder("gpt2-tied").string() +
                           " --lr 1e-3 --weight-decay 0 --save-dir checkpoints --log-file train.jsonl --max-update ";
  train(folder, 3, "gpt2-tied", more + "100");
  consolidate(folder, "checkpoints model --format safetensors --with-optimizer");
  consolidate(folder, "checkpoints model.h5 --with-optimizer");
  write_logits(folder / "model", tokens_of("gpt2-tied"));
  train(folder, 2, "gpt2-tied", more + "104");
  // A model trained on text, with a tokenizer made by fsdp-tokenize.
  std::string sentences;
  for (int i = 0; i < 200; ++i) sentences += "In the beginning, " + std::to_string(i) + " times, God cr\u00e9ated the heaven\n";
  write_file(folder / "text.txt", sentences);
  must(folder, split(FSDP_BIN "/fsdp-tokenize text.txt --train-bpe 300 --tokenizer own --out own.bin"));
  must(folder, mpirun(2, "fsdp-train",
                      split("text.txt --tokenizer own --arch llama-7b --decoder-layers 1 --decoder-embed-dim 32 "
                            "--decoder-ffn-embed-dim 64 --decoder-attention-heads 4 --tokens-per-sample 32 --batch-size 2 "
                            "--max-update 2 --save-dir saves-own")));
  consolidate(folder, "saves-own spoken --format safetensors");
  write_values(folder / "spoken" / "ids.bin", fsdp::open_tokenizer((folder / "own").string())->encode(sentences));
  const Outcome read =
      run(folder, {python(), script, FSDP_TEST_DATA "/../../docs/checkpoint-format.md", golden_folder("gpt2-tied").string()});
  BOOST_TEST(read.code == 0, read.output);
  for (const char* text : {"model: (23, 211) logits", "llama3-tied-cut: (23, 223) logits", "update 104: loss", "mistral: (",
                           "qwen2: (", "qwen3: (", "opt: (", "biogpt: (", "xglm: (", "spoken: "})
    BOOST_TEST(read.says(text), read.output);
  BOOST_TEST_MESSAGE(read.output);
}

// Other tests read the folders of tests/golden/fairseq, which tools/fairseq-to-hf made from checkpoints in fairseq's
// format.
BOOST_AUTO_TEST_CASE(checkpoints_of_fairseq_are_converted) {
  const auto folder = fresh_folder();
  const fs::path data = fs::path(FSDP_TEST_DATA) / "fairseq", tool = fs::path(FSDP_TEST_DATA) / "../../tools/fairseq-to-hf";
  must(folder, {python(), (data / "make.py").string(), "."});
  for (const std::string name : {"learned", "sinusoidal"}) {
    must(folder, {python(), tool.string(), name + ".pt", name});
    for (const char* file : {"config.json", "model.safetensors"})
      BOOST_TEST((read_file(folder / name / file) == read_file(data / name / file)), name << "/" << file);
  }
  const Outcome refused = run(folder, {python(), tool.string(), "refused.pt", "refused"});
  BOOST_TEST(refused.code == 1);
  BOOST_TEST(refused.says("the model is none that fsdp has (it has no norm after the last block); see docs/from-fairseq.md"),
             refused.output);
  BOOST_TEST(!fs::exists(folder / "refused"));
  const auto expect_refused = [&](const std::string& checkpoint, const std::string& to, const std::string& why) {
    const Outcome outcome = run(folder, {python(), tool.string(), checkpoint, to});
    BOOST_TEST(outcome.code == 1, outcome.output);
    BOOST_TEST(outcome.says(why), outcome.output);
    BOOST_TEST(!outcome.says("Traceback"), outcome.output);
  };
  expect_refused("learned.pt", "learned", "learned/model.safetensors is there already");
  const auto broken = [&](const std::string& how, const std::string& why) {
    must(folder, {python(), "-c",
                  "import torch\nc = torch.load('learned.pt', weights_only=False)\nw = c['model']\ns = vars(c['args'])\n" +
                      how + "\ntorch.save(c, 'broken.pt')"});
    expect_refused("broken.pt", "broken", why);
    BOOST_TEST(!fs::exists(folder / "broken"));
  };
  broken("del w['decoder.layers.1.fc2.bias']", "decoder.layers.1.fc2.bias is missing");
  broken("w['decoder.layers.0.fc2.weight'] = w['decoder.layers.0.fc2.weight'][:, 1:]",
         "has the shape [18, 21], and [18, 22] fits");
  broken("w['decoder.layers.0.extra'] = w['decoder.version']", "layers.0.extra is no tensor of such a model");
  broken("s['decoder_attention_heads'] = 4", "a width of 18 is not a multiple of 4 heads");
}

BOOST_AUTO_TEST_CASE(answers_are_those_of_others) {
  const auto folder = fresh_folder();
  must(folder, {python(), script_of_jobs("answer_in_python.py"), FSDP_TEST_DATA "/tokenizers/chat-tokenizer.json"});
  must(folder, split(FSDP_BIN "/fsdp-tokenize text.txt --tokenizer bytes --out text.bin"));
  const json expected = json::parse(std::ifstream(folder / "expected.json"));
  const auto said = [&](int np, const std::string& program, const std::string& words) {
    const Outcome outcome = run(folder, mpirun(np, program, split(words + " --json")));
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    return outcome.output.substr(outcome.output.find('{'));
  };
  const auto number = [&](const char* name) { return std::to_string(expected[name].get<int>()); };
  for (const auto& [name, theirs] : expected["models"].items())
    for (const int np : {1, 3}) {
      BOOST_TEST_CONTEXT(name << " at " << np << " ranks") {
        // With three texts at a time, a new text takes the place of each finished one.
        std::istringstream texts(said(np, "fsdp-generate",
                                      name +
                                          " --prompts prompts.txt --temperature 0 --batch-size 3 "
                                          "--max-new-tokens " +
                                          number("new_tokens")));
        json answers = json::array();
        for (std::string line; std::getline(texts, line);) answers.push_back(json::parse(line)["tokens"]);
        BOOST_TEST((answers == theirs["answers"]), answers << " instead of " << theirs["answers"]);
        const std::string file = name + std::to_string(np) + ".jsonl";
        const json loss = json::parse(
            said(np, "fsdp-evaluate", name + " text.bin --per-token " + file + " --tokens-per-sample " + number("length")));
        std::vector<double> logprobs;
        std::ifstream lines(folder / file);
        for (std::string line; std::getline(lines, line);)
          for (const auto values = json::parse(line)["logprobs"].get<std::vector<double>>(); const double one : values)
            logprobs.push_back(one);
        const auto wanted = theirs["logprobs"].get<std::vector<double>>();
        BOOST_TEST_REQUIRE(logprobs.size() == wanted.size());
        for (std::size_t i = 0; i < wanted.size(); ++i) BOOST_TEST(std::abs(logprobs[i] - wanted[i]) < 1e-5);
        BOOST_TEST(loss["entropy"].get<double>() == theirs["entropy"].get<double>(), boost::test_tools::tolerance(1e-6));
        BOOST_TEST(loss["mean_token_accuracy"] == theirs["mean_token_accuracy"]);
        BOOST_TEST(loss["tokens"] == theirs["tokens"]);
        BOOST_TEST(loss["loss"].get<double>() == theirs["loss"].get<double>(), boost::test_tools::tolerance(1e-6));
        BOOST_TEST(loss["ppl"].get<double>() == theirs["ppl"].get<double>(), boost::test_tools::tolerance(1e-5));
        const json choices = json::parse(said(np, "fsdp-evaluate", name + " --multiple-choice questions.jsonl"));
        for (const char* const kind : {"acc", "acc_per_token", "acc_norm"})
          BOOST_TEST(choices[kind].get<double>() == theirs[kind].get<double>(), boost::test_tools::tolerance(1e-12));
      }
    }
  for (const int np : {1, 3}) {
    std::istringstream texts(said(np, "fsdp-generate", "chat --chat --prompts rows.jsonl --temperature 0 --max-new-tokens 20"));
    json answers = json::array();
    for (std::string line; std::getline(texts, line);) answers.push_back(json::parse(line)["tokens"]);
    BOOST_TEST((answers == expected["conversations"]), answers << " instead of " << expected["conversations"]);
  }
}
