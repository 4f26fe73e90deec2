// Epochs: every target counts once, at any number of ranks, and the last update has a smaller batch if sequences remain.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <tuple>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "jobs/job.hpp"
#include "support/files.hpp"
#include "support/golden.hpp"
#include "support/tokens.hpp"

using namespace fsdp::test;

namespace {

constexpr std::size_t T = 32;

/// Writes the first tokens of a golden run: 31 sequences and a part of 19 tokens.
void write_tokens(const fs::path& file, std::size_t count = 31 * T + 20) {
  std::ifstream in(golden_folder("gpt2-tied") / "train.bin", std::ios::binary);
  std::vector<char> bytes(1024 + 2 * count);
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  BOOST_TEST_REQUIRE(in.good());
  const auto tokens = static_cast<std::int32_t>(count);
  std::copy_n(reinterpret_cast<const char*>(&tokens), 4, bytes.begin() + 8);
  std::ofstream(file, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::vector<std::string> options(const std::string& name, std::size_t B, const std::string& more) {
  return split(
      "tokens.bin --arch gpt2 --vocab-size 211 --decoder-layers 2 --decoder-embed-dim 48 --decoder-attention-heads 4 "
      "--tokens-per-sample 32 --total-batch-size 12 --lr 3e-3 --lr-scheduler cosine --warmup-updates 2 --clip-norm 1 "
      "--log-file " +
      name + ".jsonl --save-dir " + name + " --batch-size " + std::to_string(B) + " " + more);
}

std::vector<json> train(const fs::path& folder, int np, const std::string& name, std::size_t B, const std::string& more,
                        const std::string& data = "tokens.bin") {
  std::vector<std::string> words = options(name, B, more);
  words.front() = data;
  const Outcome outcome = run(folder, mpirun(np, "fsdp-train", words));
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
  return metrics(folder / (name + ".jsonl"), "train");
}

}  // namespace

BOOST_AUTO_TEST_CASE(two_passes_at_any_number_of_ranks) {
  const auto folder = fresh_folder();
  write_tokens(folder / "tokens.bin");
  for (const std::string order : {"", "--shuffle "}) {
    const std::string of = order.empty() ? "file" : "shuffled";
    const auto one = train(folder, 1, of + "-1", 12, order + "--max-epoch 2");
    BOOST_TEST_REQUIRE(one.size() == 6u);  // 64 sequences in batches of 12: the last batch has 4
    BOOST_TEST(one.back()["tokens"] == 2 * (31 * T + 19));
    BOOST_TEST(one.back()["lr"].get<double>() == 0.0);  // the cosine schedule ends with the data
    for (const auto& [np, B] : {std::pair<int, std::size_t>{2, 2}, {3, 4}, {4, 1}}) {
      const auto many = train(folder, np, of + "-" + std::to_string(np), B, order + "--max-epoch 2");
      BOOST_TEST_REQUIRE(many.size() == one.size());
      for (std::size_t u = 0; u < one.size(); ++u) {
        BOOST_TEST(many[u]["tokens"] == one[u]["tokens"]);
        BOOST_TEST(std::abs(many[u]["loss"].get<double>() - one[u]["loss"].get<double>()) < 5e-6);
        BOOST_TEST(std::abs(many[u]["gnorm"].get<double>() / one[u]["gnorm"].get<double>() - 1) < 1e-5);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_finished_pass_is_nothing_to_do_and_another_one_goes_on) {
  const auto folder = fresh_folder();
  write_tokens(folder / "tokens.bin");
  train(folder, 2, "saves", 3, "--max-epoch 1");
  const Outcome again = run(folder, mpirun(2, "fsdp-train", options("saves", 3, "--max-epoch 1")));
  BOOST_TEST(again.code == 0, again.output);
  BOOST_TEST(again.says("all passes over the data are done; raise --max-epoch"), again.output);
  const auto both = train(folder, 2, "saves", 3, "--max-epoch 2");
  BOOST_TEST_REQUIRE(both.size() == 6u);  // three per epoch, of 12, 12 and 8 sequences
  BOOST_TEST(both[2]["tokens"] == 31 * T + 19);
  BOOST_TEST(both[3]["tokens"] == 31 * T + 19 + 12 * T);
  BOOST_TEST(both[5]["tokens"] == 2 * (31 * T + 19));
  // MFU counts all computed positions. In the last update of a pass, a micro-batch has fewer sequences, and another has none,
  // of which only a few columns are computed.
  for (std::size_t u = 0; u < both.size(); ++u) {
    const json &line = both[u], &first = both[u < 3 ? 0 : 3];  // from the same start, with the same measured peak
    const auto share = [](const json& of) { return of["mfu"].get<double>() / of["positions_per_second"].get<double>(); };
    const double positions = 1e-3 * line["positions_per_second"].get<double>() * line["ms"].get<double>();
    if (u % 3 == 2) {
      BOOST_TEST((positions < 12.0 * T && positions > 7 * T + 19), line.dump());
      BOOST_TEST(std::abs((1 - line["padding"].get<double>()) * positions - (7 * T + 19)) < 1e-6, line.dump());
      continue;
    }
    BOOST_TEST(std::abs(positions / (12.0 * T) - 1) < 1e-6, line.dump());
    BOOST_TEST(std::abs(share(line) / share(first) - 1) < 1e-6, line.dump());
  }
  const Outcome neither = run(folder, mpirun(2, "fsdp-train", options("none", 3, "")));
  BOOST_TEST(neither.code == 2);
  BOOST_TEST(neither.says("give --max-update N or --max-epoch N"), neither.output);
  auto words = options("warm", 3, "--max-epoch 1");
  *(std::find(words.begin(), words.end(), "--warmup-updates") + 1) = "4";
  const Outcome warm = run(folder, mpirun(2, "fsdp-train", words));
  BOOST_TEST(warm.code == 2, warm.output);
  BOOST_TEST(warm.says("is more than the 3 updates of the schedule"), warm.output);
}

/// Writes the tokens of a file as a data set of Megatron (NAME.bin and NAME.idx), with documents that end at `ends`.
void write_megatron(const fs::path& name, const fs::path& tokens, const std::vector<std::size_t>& ends) {
  const std::string bytes = read_file(tokens).substr(1024);
  write_file(name.string() + ".bin", bytes);
  std::string index("MMIDIDX\0\0\1\0\0\0\0\0\0\0\10", 18);
  const auto put = [&](auto value) { index.append(reinterpret_cast<const char*>(&value), sizeof value); };
  put(std::uint64_t{ends.size()});
  put(std::uint64_t{ends.size() + 1});
  for (std::size_t d = 0; d < ends.size(); ++d) put(static_cast<std::int32_t>(ends[d] - (d == 0 ? 0 : ends[d - 1])));
  for (std::size_t d = 0; d < ends.size(); ++d) put(static_cast<std::int64_t>(2 * (d == 0 ? 0 : ends[d - 1])));
  for (std::size_t d = 0; d <= ends.size(); ++d) put(static_cast<std::int64_t>(d));
  write_file(name.string() + ".idx", index);
}

BOOST_AUTO_TEST_CASE(formats_and_mixtures) {
  const auto folder = fresh_folder();
  write_tokens(folder / "tokens.bin");
  const std::vector<std::size_t> ends = {100, 500, 540, 31 * T + 20};
  write_megatron(folder / "mmap", folder / "tokens.bin", ends);
  const auto expected = train(folder, 2, "llm.c", 2, "--max-update 4 --shuffle");
  const auto mmap = train(folder, 3, "saves", 4, "--max-update 4 --shuffle --valid mmap", "mmap.idx");
  for (std::size_t u = 0; u < 4; ++u) {
    BOOST_TEST(std::abs(mmap[u]["loss"].get<double>() - expected[u]["loss"].get<double>()) < 5e-6);
    BOOST_TEST(mmap[u]["data_wait_ms"].get<double>() <= mmap[u]["ms"].get<double>());  // the wait is part of it
  }
  // The batch size is that of training, because another batch size may sum in another order.
  const Outcome valid =
      run(folder, mpirun(2, "fsdp-evaluate", split("saves mmap --tokens-per-sample 32 --batch-size 4 --json")));
  BOOST_TEST_REQUIRE(valid.code == 0, valid.output);
  BOOST_TEST(std::abs(json::parse(valid.output.substr(valid.output.find('{')))["loss"].get<double>() -
                      metrics(folder / "saves.jsonl", "valid").back()["loss"].get<double>()) < 1e-9);

  // Documents of 100, 400, 40 and 472 tokens give 4 + 13 + 2 + 15 sequences. Each document has one target fewer than
  // tokens.
  const auto whole = train(folder, 2, "eos", 2, "--max-epoch 1 --break-mode eos", "mmap");
  BOOST_TEST(whole.back()["tokens"] == 31 * T + 20 - 4);
  BOOST_TEST(whole.size() == 3u);  // 34 sequences in batches of 12

  // A mixture has the same sequences at any number of ranks, even if the run is stopped and resumed. If its weights
  // change, the data are read from the start.
  write_tokens(folder / "few.bin", 5 * T + 1);
  const std::string mixture = "tokens.bin:0.7,few.bin:0.3";
  const auto one = train(folder, 1, "mix-1", 12, "--max-update 6 --total-num-update 6", mixture);
  train(folder, 3, "mix-3", 2, "--max-update 2 --total-num-update 6", mixture);
  const auto rest = train(folder, 2, "mix-3", 3, "--max-update 6 --total-num-update 6", mixture);
  BOOST_TEST_REQUIRE(rest.size() == 6u);
  for (std::size_t u = 0; u < 6; ++u) BOOST_TEST(std::abs(rest[u]["loss"].get<double>() - one[u]["loss"].get<double>()) < 5e-6);
  std::vector<std::string> words = options("mix-3", 6, "--max-update 7 --total-num-update 7");
  words.front() = "tokens.bin:0.6,few.bin:0.4";
  const Outcome other = run(folder, mpirun(2, "fsdp-train", words));
  BOOST_TEST(other.code == 0, other.output);
  BOOST_TEST(other.says("warning: the data are mixed or cut in another way than before: the data are read from the start"),
             other.output);
}

/// Validation and evaluation by documents give the mean loss of all pieces evaluated one by one, at any number of
/// ranks.
BOOST_AUTO_TEST_CASE(validation_by_documents) {
  const auto folder = fresh_folder();
  constexpr std::size_t count = 107;
  write_tokens(folder / "tokens.bin", count);
  write_megatron(folder / "mmap", folder / "tokens.bin", {20, 30, 60, 100, count});
  const auto ids = tokens_of(folder / "tokens.bin");
  json vocabulary;
  const auto text_of = [](std::size_t id) { return "t" + std::to_string(id) + "."; };
  for (std::size_t id = 0; id < 211; ++id) vocabulary[text_of(id)] = id;
  write_file(folder / "tokenizer.json", json{{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}},
                                             {"decoder", {{"type", "Fuse"}}}}
                                            .dump());
  train(folder, 3, "eos", 4, "--max-update 4 --break-mode eos --valid mmap", "mmap");
  train(folder, 2, "complete", 3, "--max-update 4 --break-mode complete --valid mmap", "mmap");

  const auto evaluate = [&](int np, const std::string& words) {
    const Outcome outcome =
        run(folder, mpirun(np, "fsdp-evaluate", split(words + " --tokens-per-sample 32 --json --tokenizer tokenizer.json")));
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    return json::parse(outcome.output.substr(outcome.output.find('{')));
  };
  // With `eos`, a document of 40 tokens takes two sequences. `complete` joins the first two documents, which have 30
  // tokens.
  using Ends = std::vector<std::size_t>;
  for (const auto& [mode, ends, ranks] : {std::tuple{std::string("eos"), Ends{20, 30, 60, 100, count}, std::vector{1, 3}},
                                          std::tuple{std::string("complete"), Ends{30, 60, 100, count}, std::vector{2, 4}}}) {
    double loss = 0, targets = 0, bytes = 0;
    for (std::size_t begin = 0; const std::size_t end : ends) {
      std::vector<std::uint16_t> piece(ids.begin() + static_cast<std::ptrdiff_t>(begin),
                                       ids.begin() + static_cast<std::ptrdiff_t>(end));
      write_token_file(folder / "piece.bin", piece);
      const json found = evaluate(1, mode + " piece.bin");
      const auto predicted = static_cast<double>(end - begin - 1);
      BOOST_TEST(found["tokens"] == end - begin - 1);
      loss += found["loss"].get<double>() * predicted;
      targets += predicted;
      for (std::size_t t = begin + 1; t < end; ++t) bytes += static_cast<double>(text_of(ids[t]).size());
      begin = end;
    }
    loss /= targets;
    BOOST_TEST(std::abs(metrics(folder / (mode + ".jsonl"), "valid").back()["loss"].get<double>() - loss) < 1e-6);
    for (const int np : ranks) {
      const json found = evaluate(np, mode + " mmap --batch-size 2 --break-mode " + mode);
      BOOST_TEST(found["tokens"] == targets);
      BOOST_TEST(std::abs(found["loss"].get<double>() - loss) < 1e-6);
      BOOST_TEST(std::abs(found["bits_per_byte"].get<double>() - loss / std::log(2) * targets / bytes) < 1e-6);
    }
    // Without --break-mode, sequences run across documents, so the loss differs.
    if (mode == "eos") BOOST_TEST(std::abs(evaluate(2, "eos mmap")["loss"].get<double>() - loss) > 1e-4);
  }
}

/// With attention within documents, every packing that cuts no document gives the same loss: that of each document
/// evaluated by itself (docs/targets.md).
BOOST_AUTO_TEST_CASE(document_attention_does_not_depend_on_the_packing) {
  const auto folder = fresh_folder();
  write_tokens(folder / "tokens.bin", 41);
  write_megatron(folder / "mmap", folder / "tokens.bin", {5, 12, 13, 22, 38, 41});
  std::vector<double> losses;
  for (const auto& [ranks, batch, packing] : {std::tuple(1, 6, "--break-mode eos"),
                                              {2, 1, "--break-mode complete --tokens-per-sample 16"},
                                              {3, 2, "--break-mode complete --tokens-per-sample 64"},
                                              {2, 1, "--break-mode none --tokens-per-sample 40"}}) {
    const std::string name = "saves-" + std::to_string(losses.size());
    std::vector<std::string> words = split(
        std::string("mmap --arch llama-7b --vocab-size 211 --decoder-layers 2 --decoder-embed-dim 48 --decoder-ffn-embed-dim "
                    "96 --decoder-attention-heads 4 --lr 3e-3 --max-update 1 --max-epoch 1 --document-attention --valid mmap "
                    "--seed 3 --total-batch-size 6 --threads 1 --batch-size ") +
        std::to_string(batch) + " --log-file " + name + ".jsonl --save-dir " + name + " " + packing +
        (losses.empty() ? " --tokens-per-sample 32" : ""));
    const Outcome outcome = run(folder, mpirun(ranks, "fsdp-train", words));
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    const json trained = metrics(folder / (name + ".jsonl"), "train").back(),
               valid = metrics(folder / (name + ".jsonl"), "valid").back();
    BOOST_TEST(trained["tokens"] == 35);
    BOOST_TEST(valid["tokens"] == 35);
    losses.push_back(trained["loss"].get<double>());
    BOOST_TEST(std::abs(losses.back() - losses.front()) < 1e-6);
    const Outcome evaluated =
        run(folder, mpirun(ranks, "fsdp-evaluate",
                           split("saves-0 mmap --json --document-attention --batch-size 6 " + std::string(packing))));
    BOOST_TEST_REQUIRE(evaluated.code == 0, evaluated.output);
    const json found = json::parse(evaluated.output.substr(evaluated.output.find('{')));
    BOOST_TEST(found["tokens"] == 35);
    BOOST_TEST(std::abs(found["loss"].get<double>() - metrics(folder / "saves-0.jsonl", "valid").back()["loss"].get<double>()) <
               1e-6);
  }
}

BOOST_AUTO_TEST_CASE(data_that_do_not_go_with_the_model_or_the_options) {
  const auto folder = fresh_folder();
  write_tokens(folder / "tokens.bin");
  const auto outcome = [&](const std::string& data, const std::string& more) {
    std::vector<std::string> words = options("saves", 6, "--max-update 4 " + more);
    words.front() = data;
    return run(folder, mpirun(2, "fsdp-train", words));
  };
  const auto refused = [&](const std::string& data, const std::string& more, const std::string& why) {
    const Outcome found = outcome(data, more);
    BOOST_TEST(found.code == 2, found.output);
    BOOST_TEST(found.says(why), found.output);
  };
  refused("tokens.bin:0.5,tokens.bin", "", "has weights for some of its data sets");
  refused("none*.bin", "", "no file matches 'none*.bin'");
  refused("tokens.bin", "--break-mode eos", "name the token that ends them by --eos-token-id, or leave out --break-mode");
  refused("tokens.bin", "--eos-token-id 3", "--eos-token-id changes nothing");
  write_megatron(folder / "mmap", folder / "tokens.bin", {31 * T + 20});
  refused("mmap", "--break-mode eos --valid tokens.bin", "tokens.bin' does not store where documents begin");
  refused("tokens.bin", "--valid tokens.bin:1,tokens.bin:1", "has weights");
  for (const auto& [vocabulary, words_of_warning] :
       {std::pair("2000", "but the model's vocabulary has 2000 tokens (were the data made with its tokenizer?)"),
        std::pair("66000", "'tokens.bin' stores tokens in 16 bits, up to 65535, and the model has 66000 tokens (")}) {
    auto words = options("small", 6, "--max-update 2 --no-save --valid tokens.bin");
    *(std::find(words.begin(), words.end(), "--vocab-size") + 1) = vocabulary;
    const Outcome other = run(folder, mpirun(2, "fsdp-train", words));
    BOOST_TEST(other.code == 0, other.output);
    BOOST_TEST(other.says(words_of_warning), other.output);
    BOOST_TEST(other.times_said("warning: ") >= 1u, other.output);
  }
}

// Each rank has a folder of its own, as ranks on nodes with local disks. One file of the last rank differs.
BOOST_AUTO_TEST_CASE(files_that_differ_between_nodes_are_named_before_the_first_update) {
  const auto folder = fresh_folder();
  const std::vector<std::string> nodes = {"n0", "n1", "n2"};
  const auto copy_to_all = [&] {
    for (const std::string& node : nodes) {
      fs::remove_all(folder / node);
      fs::create_directories(folder / node / "model");
      for (const char* const file : {"config.json", "model.safetensors"})
        fs::copy_file(golden_folder("gpt2-tied") / file, folder / node / "model" / file);
      for (const char* const file : {"train.bin", "valid.bin"}) write_tokens(folder / node / file);
    }
  };
  const auto job = [&](const std::string& program, const std::string& words) {
    std::vector<std::string> command;
    for (const std::string& node : nodes) {
      const std::vector<std::string> one = mpirun(1, program, split(words), {"-wdir", (folder / node).string()});
      const auto launcher = split(FSDP_MPIRUN);
      if (command.empty()) {
        command = one;
        continue;
      }
      command.push_back(":");
      command.insert(command.end(), one.begin() + std::ssize(launcher), one.end());
    }
    return run(folder, command);
  };
  const std::string train =
      "train.bin --model model --valid valid.bin --tokens-per-sample 16 --batch-size 2 --max-update 1 --no-save --save-dir " +
      (folder / "saves").string();
  copy_to_all();
  const Outcome same = job("fsdp-train", train);
  BOOST_TEST(same.code == 0, same.output);
  const auto refused = [&](const std::string& program, const std::string& words, const std::string& why) {
    const Outcome found = job(program, words);
    BOOST_TEST(found.code == 2, found.output);
    BOOST_TEST(found.says(why), found.output);
    BOOST_TEST(found.times_said(program + ": ") == 1u, found.output);
    BOOST_TEST(found.times_said("step ") == 0u, found.output);
    copy_to_all();
  };
  write_tokens(folder / "n2" / "train.bin", 20 * T);
  refused("fsdp-train", train, "train.bin (2304 bytes) on rank 2 (");
  const auto change = [&](const std::string& file) {
    std::string bytes = read_file(folder / "n2" / file);
    bytes[bytes.size() - 2] ^= 1;
    write_file(folder / "n2" / file, bytes);
  };
  change("valid.bin");
  refused("fsdp-train", train, "valid.bin has other contents on rank 2 (");
  change("model/model.safetensors");
  refused("fsdp-evaluate", "model train.bin --tokens-per-sample 16", "model/model.safetensors has other contents on rank 2 (");
  write_file(folder / "n2" / "model" / "generation_config.json", "{}");
  for (const std::string& node : nodes) {
    fs::create_directory(folder / node / "own");
    fs::copy_file(FSDP_TEST_DATA "/tokenizers/chat-tokenizer.json", folder / node / "own" / "tokenizer.json");
  }
  refused("fsdp-generate", "model --tokenizer own --prompt Hi --max-new-tokens 1",
          "model/generation_config.json (2 bytes) on rank 2 (");
}

BOOST_AUTO_TEST_CASE(group_norms_add_up) {
  const auto folder = fresh_folder();
  write_tokens(folder / "tokens.bin");
  const std::string more = "--max-update 3 --log-group-norms --lr-scale *wte*=0.5 ";
  const auto full = train(folder, 3, "full", 4, more),
             none = train(folder, 3, "none", 4, more + "--sharding-strategy none --fp16");
  for (const json& line : full) {
    double squares = 0;
    for (const auto& [group, norm] : line["gnorms"].items()) squares += norm.get<double>() * norm.get<double>();
    BOOST_TEST(std::abs(std::sqrt(squares) / line["gnorm"].get<double>() - 1) < 1e-12);
    BOOST_TEST(line["gnorms"].size() == 3u);
    BOOST_TEST(line["gnorms"].contains("decay, lr x 0.5"));
  }
  for (std::size_t u = 0; u < full.size(); ++u)
    for (const auto& [group, norm] : full[u]["gnorms"].items())
      BOOST_TEST(std::abs(none[u]["gnorms"][group].get<double>() / norm.get<double>() - 1) < 0.05);
  const Outcome nowhere =
      run(folder, mpirun(1, "fsdp-train", split("tokens.bin --arch gpt2 --max-update 1 --log-group-norms --log-file none")));
  BOOST_TEST(nowhere.code == 2);
  BOOST_TEST(nowhere.says("give --log-file FILE"), nowhere.output);
}
