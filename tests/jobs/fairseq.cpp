// docs/from-fairseq.md: fairseq's own command runs unchanged on a folder of fairseq-preprocess. Sharding gives the same
// bits as --ddp-backend pytorch_ddp. The page's table of GPU memory is recomputed. Converted checkpoints are evaluated,
// trained and sampled from.
#include <algorithm>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "base/format.hpp"
#include "jobs/job.hpp"
#include "support/files.hpp"
#include "support/golden.hpp"

using namespace fsdp::test;

namespace {

/// Writes a folder like fairseq-preprocess --only-source: tokens of lines of random words, and their dictionary. The index has
/// the format of fairseq's data/indexed_dataset.py.
void write_data_bin(const fs::path& folder, std::size_t words) {
  fs::create_directories(folder);
  std::string dictionary;
  for (std::size_t i = 0; i < words; ++i) dictionary += "word" + std::to_string(i) + " 7\n";
  write_file(folder / "dict.txt", dictionary);
  std::uint32_t state = 1;
  const auto below = [&](std::size_t n) { return (state = state * 1664525u + 1013904223u, (state >> 8) % n); };
  for (const char* split : {"train", "valid"}) {
    std::string tokens, lengths, begins;
    const auto put = [](std::string& to, auto value) { to.append(reinterpret_cast<const char*>(&value), sizeof value); };
    const std::size_t lines = split[0] == 't' ? 200 : 9;
    for (std::size_t line = 0; line < lines; ++line) {
      put(begins, static_cast<std::int64_t>(tokens.size()));
      const std::size_t length = 3 + below(20);
      for (std::size_t i = 0; i < length; ++i) put(tokens, static_cast<std::uint16_t>(i + 1 == length ? 2 : 4 + below(words)));
      put(lengths, static_cast<std::int32_t>(length));
    }
    std::string index("MMIDIDX\0\0", 9);
    put(index, std::uint64_t{1});
    index += '\x08';
    put(index, std::uint64_t{lines});
    write_file(folder / (std::string(split) + ".bin"), tokens);
    write_file(folder / (std::string(split) + ".idx"), index + lengths + begins);
  }
}

/// Returns the arguments of the first command in docs/from-fairseq.md, which is fairseq's example.
std::vector<std::string> command_of_the_page() {
  const std::string page = read_file(fs::path(FSDP_TEST_DATA) / "../../docs/from-fairseq.md");
  const std::size_t begin = page.find("    fsdp-train data-bin/wikitext-103-roberta-bpe-bin"), end = page.find("\n\n", begin);
  BOOST_TEST_REQUIRE(begin != std::string::npos);
  std::vector<std::string> words;
  for (std::string word : split(page.substr(begin, end - begin))) {
    std::erase(word, '"');
    if (word != "\\" && word != "fsdp-train") words.push_back(word);
  }
  return words;
}

/// Returns that command with the sizes of a small model and with the options in `sharding`.
std::vector<std::string> small_command(const std::string& sharding, const std::string& more) {
  std::vector<std::string> words = command_of_the_page();
  const auto backend = std::find(words.begin(), words.end(), "--ddp-backend");
  BOOST_TEST_REQUIRE((backend != words.end()));
  words.erase(backend, backend + 2);
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "--tokens-per-sample") words[i + 1] = "16";
    if (words[i] == "--batch-size") words[i + 1] = "2";
    if (words[i] == "--lr") words[i + 1] = "0.01";
  }
  for (const std::string& word :
       split(sharding + " --decoder-layers 2 --decoder-embed-dim 24 --decoder-attention-heads 3 " + more))
    words.push_back(word);
  return words;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_command_of_fairseq_runs) {
  const auto folder = fresh_folder();
  write_data_bin(folder / "data-bin" / "wikitext-103-roberta-bpe-bin", 33);
  const Outcome outcome = run(folder, mpirun(2, "fsdp-train", small_command("--ddp-backend fully_sharded", "")));
  BOOST_TEST_CONTEXT(outcome.output) {
    BOOST_TEST(outcome.code == 0);
    BOOST_TEST(outcome.times_said("\"type\":\"train\"") == 10u);  // the command's --max-update
    BOOST_TEST(outcome.times_said("\"type\":\"valid\"") == 1u);
    BOOST_TEST(outcome.says("done; nothing is saved (--no-save)"));
  }
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
    BOOST_TEST(!entry.path().filename().string().starts_with("step-"), entry.path());
}

// "Identical results to DDP": losses, gradient norms and all saved state have the same bits.
BOOST_DATA_TEST_CASE(sharded_is_the_same_as_ddp, boost::unit_test::data::make({1, 2, 3, 4}), ranks) {
  const auto folder = fresh_folder();
  write_data_bin(folder / "data-bin" / "wikitext-103-roberta-bpe-bin", 33);
  const auto train = [&](const std::string& name, const std::string& sharding) {
    const std::string files = "--save-dir " + name + " --log-file " + name + ".jsonl";
    std::vector<std::string> words = small_command(sharding, files);
    std::erase(words, "--no-save");
    const Outcome outcome = run(folder, mpirun(ranks, "fsdp-train", words));
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    return metrics(folder / (name + ".jsonl"), "train");
  };
  std::vector<std::pair<std::string, std::string>> ways = {
      {"full", "--ddp-backend fully_sharded"}, {"grad-op", "--ddp-backend fully_sharded --no-reshard-after-forward"}};
  if (ranks % 2 == 0) ways.emplace_back("hybrid", "--sharding-strategy hybrid --shard-group-size " + std::to_string(ranks / 2));
  const std::vector<json> ddp = train("ddp", "--ddp-backend pytorch_ddp");
  BOOST_TEST_REQUIRE(ddp.size() == 10u);
  // fairseq's count: 33 words and 4 special tokens, 16 positions and 2 more, the blocks, and the last norm. The output
  // weights are those of the embedding.
  const std::size_t C = 24, F = 4 * C, block = 4 * (C * C + C) + (C * F + F) + (F * C + C) + 4 * C;
  BOOST_TEST(metrics(folder / "ddp.jsonl", "start").at(0)["parameters"].get<std::size_t>() ==
             (33 + 4) * C + (16 + 2) * C + 2 * block + 2 * C);
  for (const auto& [name, sharding] : ways) {
    const std::vector<json> sharded = train(name, sharding);
    BOOST_TEST_REQUIRE(sharded.size() == ddp.size());
    for (std::size_t u = 0; u < ddp.size(); ++u)
      for (const char* key : {"loss", "gnorm", "loss_scale"}) BOOST_TEST((sharded[u][key] == ddp[u][key]), name << ", " << key);
    const Outcome compared = run(folder, split(FSDP_BIN "/fsdp-inspect " + name + " ddp"));
    BOOST_TEST(compared.code == 0, compared.output);
  }
}

BOOST_AUTO_TEST_CASE(the_table_of_the_13b_model_is_what_is_planned) {
  const std::string page = read_file(fs::path(FSDP_TEST_DATA) / "../../docs/from-fairseq.md");
  const auto folder = fresh_folder();
  const struct {
    const char *arch, *name;
    int nodes, ranks;
  } rows[] = {{"transformer_lm_gpt3_13", "13 billion", 1, 1},
              {"transformer_lm_gpt3_13", "13 billion", 1, 8},
              {"transformer_lm_gpt3_13", "13 billion", 16, 8},
              {"transformer_lm_gpt3_175", "175 billion", 16, 8}};
  for (const auto& row : rows) {
    const Outcome outcome =
        run(folder, split(fsdp::format(FSDP_BIN "/fsdp-plan --arch {} --tokens-per-sample 2048 --batch-size 8 --fp16 "
                                                "--cpu-offload --checkpoint-activations --optimizer cpu_adam --device cuda "
                                                "--nodes {} --ranks-per-node {} --json",
                                       row.arch, row.nodes, row.ranks)));
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    for (const json& strategy : json::parse(outcome.output)["strategies"]) {
      if (strategy["strategy"] != "full") continue;
      const json& memory = strategy["recomputing"]["memory"];
      const std::string line = fsdp::format("| {} | {} | {} | {} |", row.name, row.nodes * row.ranks,
                                            fsdp::format_bytes(memory["total"].get<double>()),
                                            fsdp::format_bytes(memory["offloaded"].get<double>()));
      BOOST_TEST(page.find(line) != std::string::npos, "docs/from-fairseq.md lacks " << line);
    }
  }
}

// tools/fairseq-to-hf made these folders; python.cpp makes them again if Python has torch.
BOOST_DATA_TEST_CASE(a_converted_checkpoint_goes_through_the_programs, boost::unit_test::data::make({"learned", "sinusoidal"}),
                     name) {
  const auto folder = fresh_folder();
  const fs::path data = fs::path(FSDP_TEST_DATA) / "fairseq";
  const json record = read_json(data / "losses.json");
  std::vector<std::int32_t> header(256);
  const auto tokens = record["tokens"].get<std::vector<std::uint16_t>>();
  header[0] = 20240520, header[1] = 1, header[2] = static_cast<std::int32_t>(tokens.size());
  write_file(folder / "tokens.bin", std::string(reinterpret_cast<const char*>(header.data()), 1024) +
                                        std::string(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()));
  const std::string model = (data / name).string(), T = std::to_string(record["T"].get<int>());
  const Outcome evaluated =
      run(folder, mpirun(2, "fsdp-evaluate", split(model + " tokens.bin --tokens-per-sample " + T + " --json")));
  BOOST_TEST_REQUIRE(evaluated.code == 0, evaluated.output);
  const std::string said = evaluated.output.substr(evaluated.output.find('{'));
  const double loss = json::parse(said)["loss"], expected = record["losses"][name];
  BOOST_TEST(loss == expected, boost::test_tools::tolerance(1e-6));
  const Outcome trained = run(folder, mpirun(2, "fsdp-train",
                                             split("tokens.bin --model " + model + " --tokens-per-sample " + T +
                                                   " --batch-size 1 --max-update 2 --lr 1e-2 --log-file log.jsonl")));
  BOOST_TEST_REQUIRE(trained.code == 0, trained.output);
  const auto lines = metrics(folder / "log.jsonl", "train");
  BOOST_TEST(lines.at(1)["loss"].get<double>() > 0);
}

BOOST_AUTO_TEST_CASE(architectures_and_families_that_are_not_here) {
  const auto folder = fresh_folder();
  write_data_bin(folder / "data-bin", 33);
  const auto refused = [&](const std::string& words, const std::string& text) {
    const Outcome outcome = run(folder, mpirun(2, "fsdp-train", split("data-bin --max-update 1 " + words)));
    BOOST_TEST(outcome.code == 2, outcome.output);
    BOOST_TEST(outcome.says(text), outcome.output);
    BOOST_TEST(outcome.times_said("fsdp-train: ") == 1u);
  };
  refused("--arch transformer_lm_wiki103", "--arch transformer_lm_wiki103 is not supported (its embedding and its softmax");
  fs::create_directory(folder / "mamba");
  write_file(folder / "mamba" / "config.json", R"({"model_type": "mamba", "vocab_size": 37})");
  refused("--model mamba", "model_type \"mamba\" is not supported (known are gpt2, llama,");
}
