// Generating text: from checkpoints, folders and files, at any number of ranks, and during training.
#include <boost/test/unit_test.hpp>

#include "jobs/job.hpp"
#include "support/files.hpp"

using namespace fsdp::test;

namespace {

std::vector<std::string> program(const std::string& name, const std::string& options) {
  std::vector<std::string> words = {FSDP_BIN "/" + name};
  for (const std::string& word : split(options)) words.push_back(word);
  return words;
}

Outcome train(const fs::path& folder, const std::string& more) {
  return run(folder, mpirun(2, "fsdp-train",
                            split("train.bin --arch llama-7b --vocab-size 256 --decoder-layers 2 --decoder-embed-dim 64 "
                                  "--decoder-ffn-embed-dim 128 --decoder-attention-heads 4 --decoder-kv-heads 2 "
                                  "--tokens-per-sample 64 --batch-size 4 --lr 3e-3 --max-update 60 " +
                                  more)));
}

void write_data(const fs::path& folder) {
  std::string text;
  for (int i = 0; i < 500; ++i) text += "all work and no play makes jack a dull boy\n";
  write_file(folder / "text.txt", text);
  BOOST_TEST_REQUIRE(run(folder, program("fsdp-tokenize", "text.txt --tokenizer bytes --out train.bin")).code == 0);
}

/// Trains with the save folder "saves", and consolidates it to the Hugging Face folder "model".
void make_model(const fs::path& folder) {
  write_data(folder);
  const Outcome trained = train(folder, "--save-dir saves");
  BOOST_TEST_REQUIRE(trained.code == 0, trained.output);
  BOOST_TEST_REQUIRE(run(folder, program("fsdp-consolidate", "saves model --format safetensors")).code == 0);
}

/// Parses one JSON object per line.
std::vector<json> lines(const Outcome& outcome) {
  std::vector<json> all;
  std::istringstream stream(outcome.output);
  for (std::string line; std::getline(stream, line);)
    if (line.starts_with("{")) all.push_back(json::parse(line));
  return all;
}

std::vector<double> losses(const fs::path& file) {
  std::vector<double> all;
  for (const json& line : metrics(file, "train")) all.push_back(line["loss"]);
  return all;
}

}  // namespace

BOOST_AUTO_TEST_CASE(prompts_of_a_file_at_any_number_of_ranks) {
  const auto folder = fresh_folder();
  make_model(folder);
  BOOST_TEST_REQUIRE(run(folder, program("fsdp-consolidate", "saves model.h5 --format hdf5")).code == 0);
  write_file(folder / "prompts.txt",
             "\xef\xbb\xbf"
             "all w\n\nno pl\r\njack\nmakes jack a dull\nb\n");
  write_file(folder / "prompts.jsonl",
             "{\"prompt\":\"all w\"}\n{\"id\":7,\"prompt\":\"no pl\"}\n{\"prompt\":\"jack\"}\n{\"prompt\":\"makes jack a "
             "dull\"}\n{\"prompt\":\"b\"}\n");
  write_file(
      folder / "prompts.json",
      "\xef\xbb\xbf[{\"prompt\":\"all w\"},\n{\"id\":NaN,\"prompt\":\"no pl\"},{\"prompt\":\"jack\"},{\"prompt\":\"makes "
      "jack a dull\"},\n{\"prompt\":\"b\"}]");

  const std::string ask = " --temperature 0 --max-new-tokens 30 --json --prompts prompts";
  const auto expected = lines(run(folder, program("fsdp-generate", "saves --batch-size 1" + ask + ".txt")));
  BOOST_TEST_REQUIRE(expected.size() == 5u);
  BOOST_TEST(expected[0]["prompt"] == "all w");
  BOOST_TEST(expected[0]["text"] == "ork and no play makes jack a d");
  BOOST_TEST(expected[0]["finish"] == "length");
  BOOST_TEST(expected[0]["tokens"].size() == 30u);
  BOOST_TEST(expected[1]["prompt"] == "no pl");
  BOOST_TEST(expected[3]["prompt_tokens"] == 17);
  BOOST_TEST(expected[3]["index"] == 3);
  for (const auto& [np, what] : {std::pair(1, "model --batch-size 3" + ask + ".jsonl"), std::pair(2, "saves" + ask + ".txt"),
                                 std::pair(2, "model.h5 --sharding-strategy none" + ask + ".txt"),
                                 std::pair(3, "model --batch-size 1" + ask + ".json")}) {
    const Outcome other = run(folder, mpirun(np, "fsdp-generate", split(what)));
    BOOST_TEST_REQUIRE(other.code == 0, other.output);
    BOOST_TEST((lines(other) == expected), other.output);
  }
  const Outcome text =
      run(folder, mpirun(2, "fsdp-generate", split("saves --temperature 0 --max-new-tokens 9 --prompts prompts.txt")));
  BOOST_TEST(text.says("--- prompt 1\nall work and n\n--- prompt 2\nno play makes \n--- prompt 3\njack a dull b\n"),
             text.output);

  // What ends a text, and the reported reason.
  const auto ending = [&](const std::string& options) {
    return lines(run(folder, program("fsdp-generate", "model --temperature 0 --json --prompts one.txt " + options))).at(0);
  };
  write_file(folder / "one.txt", "all w");
  json one = ending("--stop nothing --stop makes");
  BOOST_TEST(one["text"] == "ork and no play ");
  BOOST_TEST(one["finish"] == "stop_string");
  write_file(folder / "model" / "generation_config.json", "{\"eos_token_id\": [300, 10]}");
  one = ending("");
  BOOST_TEST(one["text"] == "ork and no play makes jack a dull boy");
  BOOST_TEST(one["finish"] == "end_token");
  BOOST_TEST(one["tokens"].back() == 10);
  // The penalty outweighs every logit, so no token occurs twice.
  one = ending("--repetition-penalty 1e9 --max-new-tokens 30");
  const json unlike = one["tokens"];
  std::vector<int> tokens = unlike;
  std::sort(tokens.begin(), tokens.end());
  BOOST_TEST((std::adjacent_find(tokens.begin(), tokens.end()) == tokens.end()));
  // The model's generation_config.json sets values that no option sets. Settings that are not supported are named.
  write_file(
      folder / "model" / "generation_config.json",
      R"({"repetition_penalty": 1e9, "temperature": 0.5, "stop_strings": "q", "eos_token_id": [300, 10], "num_beams": 1, "min_new_tokens": 3, "my_rule": 1, "max_new_tokens": 9,
                 "suppress_tokens": [7], "bad_words_ids": null})");
  BOOST_TEST(ending("--max-new-tokens 30")["tokens"] == unlike);
  BOOST_TEST(ending("--repetition-penalty 1 --stop ull")["text"] == "ork and no play makes jack a d");
  const Outcome told = run(folder, program("fsdp-generate", "model --prompt x --max-new-tokens 1 --temperature 0"));
  BOOST_TEST(told.says("from the model's generation_config.json: repetition-penalty 1000000000, stop \"q\""), told.output);
  BOOST_TEST(told.says("generation_config.json have no effect here: min_new_tokens, my_rule, suppress_tokens (texts"),
             told.output);
  for (const char* const wrong :
       {R"({"top_p": 0})", R"({"top_k": 2.5})", R"({"stop_strings": [1]})", R"({"eos_token_id": "10"})"}) {
    write_file(folder / "model" / "generation_config.json", wrong);
    const Outcome refused = run(folder, program("fsdp-generate", "model --prompt x"));
    BOOST_TEST(refused.code == 2, refused.output);
    BOOST_TEST(refused.says("is not accepted (it "), refused.output);
  }
  fs::remove(folder / "model" / "generation_config.json");
  write_file(folder / "model" / "special_tokens_map.json", R"({"eos_token": {"content": "\n"}})");
  BOOST_TEST(ending("")["finish"] == "end_token");
  fs::remove(folder / "model" / "special_tokens_map.json");
  write_file(folder / "model" / "generation_config.json", R"({"do_sample": false, "top_p": "x"})");
  one = lines(run(folder, program("fsdp-generate", "model --json --top-p 1 --prompts one.txt --max-new-tokens 5"))).at(0);
  BOOST_TEST(one["text"] == "ork a");
  fs::remove(folder / "model" / "generation_config.json");
  // In bf16 and fp16 the model still knows its text by heart.
  for (const char* const precision : {"--bf16", "--fp16"}) {
    const Outcome low = run(
        folder,
        mpirun(2, "fsdp-generate", {"saves", "--prompt", "all w", "--temperature", "0", "--max-new-tokens", "36", precision}));
    BOOST_TEST(low.says("all work and no play makes jack a dull bo"), low.output);
  }
}

BOOST_AUTO_TEST_CASE(a_model_whose_weights_are_no_numbers_is_not_heard) {
  const auto folder = fresh_folder();
  make_model(folder);
  std::string weights = read_file(folder / "model" / "model.safetensors");
  for (std::size_t i = weights.size() - 4096; i < weights.size(); ++i) weights[i] = static_cast<char>(0xff);  // NaN
  write_file(folder / "model" / "model.safetensors", weights);
  write_file(folder / "questions.jsonl", "{\"context\":\"all w\",\"choices\":[\"ork\",\"alk\"],\"answer\":0}\n");
  for (const int np : {1, 3}) {
    const Outcome spoken = run(folder, mpirun(np, "fsdp-generate", split("model --no-verify --prompt all --max-new-tokens 5")));
    BOOST_TEST(spoken.code == 2, spoken.output);
    BOOST_TEST(spoken.times_said("model.safetensors holds weights that are not finite") == 1u, spoken.output);
    for (const char* const what :
         {"model train.bin --no-verify --tokens-per-sample 64", "model --no-verify --multiple-choice questions.jsonl"}) {
      const Outcome evaluated = run(folder, mpirun(np, "fsdp-evaluate", split(what)));
      BOOST_TEST(evaluated.code == 2, evaluated.output);
      BOOST_TEST(evaluated.times_said("model.safetensors holds weights that are not finite") == 1u, evaluated.output);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_model_says_something_while_it_trains) {
  const auto folder = fresh_folder();
  write_data(folder);
  const Outcome silent = train(folder, "--save-dir silent --log-file silent.jsonl");
  BOOST_TEST_REQUIRE(silent.code == 0, silent.output);
  const Outcome speaks =
      train(folder, "--save-dir speaks --log-file speaks.jsonl --sample-interval-updates 30 --sample-prompt makes");
  BOOST_TEST_REQUIRE(speaks.code == 0, speaks.output);
  BOOST_TEST(speaks.says("key-value cache"), speaks.output);
  BOOST_TEST(speaks.says("\nsample 30: makes"), speaks.output);
  BOOST_TEST(speaks.says("\nsample 60: makes"), speaks.output);
  BOOST_TEST(speaks.times_said("\nsample ") == 2u, speaks.output);
  BOOST_TEST(!silent.says("sample"), silent.output);
  BOOST_TEST(losses(folder / "speaks.jsonl") == losses(folder / "silent.jsonl"), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(mistakes_are_said_once) {
  const auto folder = fresh_folder();
  write_data(folder);
  BOOST_TEST_REQUIRE(train(folder, "--save-dir saves --max-update 1").code == 2);  // train() also sets --max-update
  BOOST_TEST_REQUIRE(
      run(folder, mpirun(1, "fsdp-train",
                         split("train.bin --arch gpt2 --vocab-size 256 --decoder-layers 1 --decoder-embed-dim 32 "
                               "--decoder-attention-heads 2 --tokens-per-sample 32 --max-update 1 --save-dir saves")))
          .code == 0);
  write_file(folder / "bad.jsonl", "{\"prompt\":\"a\"}\n{\"text\":\"b\"}\n");
  write_file(folder / "empty.txt", "\n\n");
  const std::pair<const char*, const char*> mistakes[] = {
      {"saves --prompts bad.jsonl", "line 2 of 'bad.jsonl' has no prompt (it has no \"prompt\": a prompt in JSON is an object"},
      {"saves --prompts empty.txt", "no prompts in empty.txt (all of its lines are empty)"},
      {"saves --prompts none.txt", "cannot read 'none.txt' (No such file or directory)"},
      {"saves --prompts bad.jsonl --prompt a", "--prompt and --prompts are both given"},
      {"saves --repetition-penalty 0", "--repetition-penalty '0' is not accepted (out of range)"},
      {"--prompt a", "MODEL is missing"},
  };
  for (const auto& [words, says] : mistakes) {
    const Outcome outcome = run(folder, mpirun(2, "fsdp-generate", split(words)));
    BOOST_TEST(outcome.code == 2, outcome.output);
    BOOST_TEST(outcome.times_said(says) == 1u, outcome.output);
  }
  const std::string train_on =
      "train.bin --arch gpt2 --decoder-layers 1 --decoder-embed-dim 32 --decoder-attention-heads 2 "
      "--tokens-per-sample 32 --max-update 1 --save-dir other ";
  const std::pair<const char*, const char*> of_training[] = {
      {"--sample-interval-updates 1", "--sample-interval-updates needs a tokenizer (the model has 50257 tokens"},
      {"--sample-prompt a", "--sample-prompt"},
  };
  for (const auto& [words, says] : of_training) {
    const Outcome outcome = run(folder, mpirun(2, "fsdp-train", split(train_on + words)));
    BOOST_TEST(outcome.code == 2, outcome.output);
    BOOST_TEST(outcome.says(says), outcome.output);
  }
}
