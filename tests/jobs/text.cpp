// Training on text: tokens of a tokenizer, a model trained on them, its generated text and its bits per byte.
#include <boost/test/unit_test.hpp>

#include <cmath>

#include "base/system.hpp"
#include "jobs/job.hpp"
#include "support/files.hpp"
#include "text/tokenizer.hpp"
#include "text/utf8.hpp"

using namespace fsdp::test;

namespace {

const std::string tokenizers = FSDP_TEST_DATA "/tokenizers/";

Outcome tool(const fs::path& folder, const std::string& line) {
  std::vector<std::string> words = split(line);
  words[0] = FSDP_BIN "/" + words[0];
  return run(folder, words);
}

Outcome train(const fs::path& folder, int ranks, const std::string& data_and_more) {
  return run(folder,
             mpirun(ranks, "fsdp-train",
                    split(data_and_more + " --arch llama-7b --decoder-layers 1 --decoder-embed-dim 32 "
                                          "--decoder-ffn-embed-dim 64 --decoder-attention-heads 4 --tokens-per-sample 32 "
                                          "--total-batch-size 12 --lr 3e-3 --threads 1")));
}

std::string sentences(int n) {
  std::string text;
  for (int i = 0; i < n; ++i)
    text += "In the beginning, for the " + std::to_string(i) + "th time, God cr\u00e9ated the heaven and the earth.\n";
  return text;
}

}  // namespace

BOOST_AUTO_TEST_CASE(text_is_trained_on_directly_and_its_tokenizer_travels) {
  const auto folder = fresh_folder();
  write_file(folder / "text.txt", sentences(300));
  write_file(folder / "valid.json",
             "[{\"text\": \"In the beginning\"},\n{\"text\": \"the heaven and the earth\", \"n\": NaN}]");
  fs::create_directory(folder / "own");
  fs::copy(tokenizers + "smollm2.json", folder / "own" / "tokenizer.json");
  write_file(folder / "own" / "tokenizer_config.json", R"({"eos_token": "<|im_start|>"})");
  const std::string command = "text.txt --valid valid.json --tokenizer own --save-dir saves --log-file m.jsonl --max-update ";
  const Outcome first = train(folder, 2, command + "6 --batch-size 6");
  BOOST_TEST_REQUIRE(first.code == 0, first.output);
  BOOST_TEST(first.says("text: tokenizing "), first.output);
  BOOST_TEST(first.times_said("text: 'text.txt' has ") == 1u, first.output);
  // A tokenizer takes some 60 MiB, which are not the training's.
  if (fsdp::restart_process_peak()) {
    const std::string used = "the process         ", expected = "MiB used since its texts were tokens, ";
    BOOST_TEST_REQUIRE(first.says(expected), first.output);
    const auto number_behind = [&](const std::string& words) {
      return std::stod(first.output.substr(first.output.find(words) + words.size()));
    };
    const double more = number_behind(used) - number_behind(expected);
    BOOST_TEST(more < 25, first.output);
    BOOST_TEST((more < 1 || first.says(" MiB more: code that was loaded when it first ran, and memory of libraries")),
               first.output);
  }

  // The tokens are those of fsdp-tokenize, made once; 3 ranks go on where 2 have stopped, as 2 would have.
  BOOST_TEST_REQUIRE(tool(folder, "fsdp-tokenize text.txt --tokenizer own --out tokens.bin").code == 0);
  fs::copy(folder / "saves", folder / "saves-2", fs::copy_options::recursive);
  const Outcome second = train(folder, 3, command + "12 --batch-size 4");
  BOOST_TEST_REQUIRE(second.code == 0, second.output);
  BOOST_TEST(second.says("already in"), second.output);
  BOOST_TEST(!second.says("text: tokenizing "), second.output);
  BOOST_TEST(!second.says("read from the start"), second.output);
  const Outcome by_tokens =
      train(folder, 2, "tokens.bin --tokenizer own --save-dir saves-2 --log-file t.jsonl --max-update 12 --batch-size 6");
  BOOST_TEST_REQUIRE(by_tokens.code == 0, by_tokens.output);
  BOOST_TEST(!by_tokens.says("read from the start"), by_tokens.output);
  const auto of_text = metrics(folder / "m.jsonl", "train"), of_tokens = metrics(folder / "t.jsonl", "train");
  BOOST_TEST_REQUIRE(!of_text.empty());
  BOOST_TEST_REQUIRE(!of_tokens.empty());
  BOOST_TEST(of_text.back()["loss"].get<double>() == of_tokens.back()["loss"].get<double>(),
             boost::test_tools::tolerance(1e-5));
  const auto valid = metrics(folder / "m.jsonl", "valid");
  const auto own = fsdp::open_tokenizer((folder / "own").string());
  const std::size_t documents = own->encode("In the beginning").size() + own->encode("the heaven and the earth").size();
  BOOST_TEST(valid.back()["tokens"].get<std::size_t>() == documents + 2 - 1);  // an end behind each

  // Its tokenizer lies in each step, goes into a consolidated folder, and is found there.
  const fs::path step = folder / "saves" / "step-00000012";
  BOOST_TEST(read_file(step / "tokenizer.json") == read_file(folder / "own" / "tokenizer.json"));
  fs::remove_all(folder / "own");
  BOOST_TEST_REQUIRE(tool(folder, "fsdp-consolidate saves out --format safetensors").code == 0);
  BOOST_TEST(json::parse(read_file(folder / "out" / "config.json"))["eos_token_id"] == own->find("<|im_start|>").value());
  const Outcome spoken = tool(folder, "fsdp-generate out --prompt In --temperature 0 --max-new-tokens 20");
  BOOST_TEST_REQUIRE(spoken.code == 0, spoken.output);
  BOOST_TEST(spoken.output.starts_with("In"), spoken.output);
  BOOST_TEST(tool(folder, "fsdp-generate saves --prompt In --temperature 0 --max-new-tokens 20").output == spoken.output);
  const auto loss_on = [&](int ranks, const std::string& what) {
    const Outcome outcome = run(folder, mpirun(ranks, "fsdp-evaluate", split(what + " --json --tokens-per-sample 32")));
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    return json::parse(outcome.output.substr(outcome.output.find('{')))["loss"].get<double>();
  };
  BOOST_TEST(loss_on(2, "saves text.txt") == loss_on(2, "out tokens.bin"));

  // A short text is a sequence as long as it is, with the same bits at any number of ranks.
  write_file(folder / "short.txt", sentences(1));
  const auto loss_of_short = [&](int ranks) {
    const Outcome outcome = run(folder, mpirun(ranks, "fsdp-evaluate", split("saves short.txt --json")));
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    return json::parse(outcome.output.substr(outcome.output.find('{')))["loss"].get<double>();
  };
  BOOST_TEST(loss_of_short(1) == loss_of_short(3));
  write_file(folder / "token.txt", "I");
  const Outcome too_short = tool(folder, "fsdp-evaluate saves token.txt");
  BOOST_TEST(too_short.code == 2);
  BOOST_TEST(too_short.says("'token.txt' has nothing to predict (1 tokens"), too_short.output);

  // Tokens that are not those that were written are made anew, and training goes on with these.
  const auto cache = [&] {
    for (const auto& entry : fs::directory_iterator(folder / "saves" / "tokens"))
      if (entry.path().extension() == ".bin" && entry.path().filename().string().starts_with("text-")) return entry.path();
    throw std::runtime_error("there are no tokens of the text");
  }();
  const std::string whole = read_file(cache);
  fs::path index = cache;
  for (const fs::path& damaged : {cache, index.replace_extension(".idx")}) {
    write_file(damaged, read_file(damaged).replace(60, 1, 1, '\x7f'));
    const std::string resume = "text.txt --valid valid.json --save-dir saves --batch-size 6 --max-update ";
    const Outcome anew = train(folder, 2, resume + (damaged == cache ? "12" : "13"));
    BOOST_TEST_REQUIRE(anew.code == 0, anew.output);
    BOOST_TEST(anew.says("nothing to do"), anew.output);
    BOOST_TEST(!anew.says("anew"), anew.output);
    const Outcome mended = train(folder, 2, resume + (damaged == cache ? "13" : "14"));
    BOOST_TEST_REQUIRE(mended.code == 0, mended.output);
    BOOST_TEST(mended.times_said("anew, because that file is damaged") == 1u, mended.output);
    BOOST_TEST(!mended.says("read from the start"), mended.output);
    BOOST_TEST((read_file(cache) == whole));
  }

  // A run that goes on needs no --tokenizer: the checkpoint has it. Another text is noticed, also of the same length.
  std::string other = sentences(300);
  other[other.size() - 3] = 'z';
  write_file(folder / "text.txt", other);
  const Outcome changed = train(folder, 2, "text.txt --save-dir saves --max-update 15 --batch-size 6");
  BOOST_TEST_REQUIRE(changed.code == 0, changed.output);
  BOOST_TEST(changed.says("anew, because the text, its tokenizer or the way to read it has changed"), changed.output);
  BOOST_TEST(changed.says("read from the start"), changed.output);
}

// With options for documents, each plain text is a document, and tokens made without these options are not used.
BOOST_AUTO_TEST_CASE(plain_texts_are_documents) {
  const auto folder = fresh_folder();
  fs::create_directory(folder / "texts");
  std::string all;
  for (int i = 1; i <= 5; ++i) {
    write_file(folder / "texts" / (std::to_string(i) + ".txt"), sentences(i));
    all += json{{"text", sentences(i)}}.dump() + "\n";
  }
  write_file(folder / "all.jsonl", all);
  const std::string more = " --max-update 2 --batch-size 12 --restore none --log-file ";
  const auto loss = [&](const std::string& data) {
    fs::remove(folder / "m.jsonl");
    const Outcome outcome = train(folder, 1, data + more + "m.jsonl --save-dir none --no-save");
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    return std::pair(metrics(folder / "m.jsonl", "train").back()["loss"].get<double>(), outcome);
  };
  loss("texts");
  for (const std::string documents : {" --document-attention", " --break-mode eos"}) {
    const auto [of_texts, outcome] = loss("texts" + documents);
    BOOST_TEST(!outcome.says("is one document"), outcome.output);
    BOOST_TEST(outcome.says(documents == " --document-attention" ? "anew, because the text" : "already in"), outcome.output);
    BOOST_TEST(of_texts == loss("all.jsonl" + documents).first);
  }
  const auto [alone, outcome] = loss("texts/5.txt --document-attention");
  BOOST_TEST(outcome.says("warning: 'texts/5.txt' is one document: --document-attention changes little"), outcome.output);
  const Outcome in_both = loss("texts --valid texts/2.txt").second;
  BOOST_TEST(in_both.times_said("warning: ") == 1u, in_both.output);
  BOOST_TEST(in_both.says("warning: 'texts/2.txt' is in the training data and in --valid (the model is"), in_both.output);
}

BOOST_AUTO_TEST_CASE(a_run_that_is_stopped_while_it_tokenizes_goes_on) {
  const auto folder = fresh_folder();
  write_file(folder / "text.txt", sentences(50'000));  // 4 MB
  const std::string tokenizer = " --tokenizer " + tokenizers + "smollm2.json";
  fs::create_directory(folder / "saves");
  write_file(folder / "saves" / "stop", "");
  const std::string command = "text.txt --save-dir saves --max-update 1 --collective-timeout 2s --batch-size ";
  const Outcome stopped = train(folder, 2, command + "6" + tokenizer);
  BOOST_TEST(stopped.code == 75, stopped.output);
  BOOST_TEST(stopped.times_said("stopped on request after ") == 1u, stopped.output);
  BOOST_TEST(!fs::exists(folder / "saves" / "stop"));
  const Outcome done = train(folder, 3, command + "4" + tokenizer);
  BOOST_TEST_REQUIRE(done.code == 0, done.output);
  BOOST_TEST(done.says("resuming after "), done.output);
  BOOST_TEST_REQUIRE(tool(folder, "fsdp-tokenize text.txt --format megatron --out whole" + tokenizer).code == 0);
  for (const auto& entry : fs::directory_iterator(folder / "saves" / "tokens")) {
    const std::string extension = entry.path().extension();
    if (extension == ".json") continue;
    const bool same = read_file(entry.path()) == read_file(folder / ("whole" + extension));
    BOOST_TEST(same, entry.path());
  }
}

BOOST_AUTO_TEST_CASE(what_is_no_text_is_refused) {
  const auto folder = fresh_folder();
  const auto refusal = [&](const std::string& data) {
    const Outcome outcome = train(folder, 2, data + " --max-update 1 --batch-size 6");
    BOOST_TEST(outcome.code == 2, outcome.output);
    BOOST_TEST(!fs::exists(folder / "checkpoints" / "step-00000001"));
    return outcome.output;
  };
  const auto check = [&](const std::string& data, const std::string& says) {
    const std::string output = refusal(data);
    BOOST_TEST(output.find(says) != std::string::npos, output);
  };
  write_file(folder / "text.txt", sentences(50));
  write_file(folder / "binary", std::string("\x01\x02\0\xff", 4) + sentences(3));
  check("binary", "'binary' is not a token file that can be used");
  write_file(folder / "late", sentences(20) + std::string(1, '\0') + sentences(20));
  check("late", "'late' is no text (it has a byte of 0 at byte ");
  write_file(folder / "utf16", std::string("\xff\xfe"
                                           "a\0b\0",
                                           6));
  check("utf16", "'utf16' is text in UTF-16");
  write_file(folder / "empty.txt", "");
  check("empty.txt", "it is empty");
  check("text.txt --tokenizer nowhere", "there is no tokenizer 'nowhere'");
  check("text.txt --tokenizer " + tokenizers + "smollm2.json --vocab-size 300",
        "), which the model does not have (its tokens are 0 to 299)");
  write_file(folder / "bad.jsonl", "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n");
  check("bad.jsonl", "line 2 of 'bad.jsonl' cannot be used (it has no \"text\")");
  write_file(folder / "blank.jsonl", "\n\n");
  check("blank.jsonl", "has no tokens");
  write_file(folder / "chat.jsonl", R"({"messages": [{"role": "user", "content": "a"}]})");
  check("chat.jsonl", "it is a conversation); make tokens of such lines as \"Tokens\" in docs/running.md shows");
  // fsdp-tokenize says the same.
  const auto check_tokenizing = [&](const std::string& data, const std::string& says) {
    const Outcome outcome = tool(folder, "fsdp-tokenize " + data + " --out no.bin");
    BOOST_TEST(outcome.code == 2, outcome.output);
    BOOST_TEST(outcome.says(says), outcome.output);
    BOOST_TEST(!fs::exists(folder / "no.bin"));
  };
  write_file(folder / "text.gz", "\x1f\x8b\x08 and so on");
  for (const std::string data : {"text.gz", "text.txt text.gz"})
    check_tokenizing(data, "(it is compressed by gzip); unpack it");
  check("text.gz", "(it is compressed by gzip); unpack it");
  check_tokenizing("utf16", "'utf16' is text in UTF-16");
  // What is no text is refused by both, unless its bytes are the tokens.
  const std::string llama = " --tokenizer " + tokenizers + "smollm2.json";
  write_file(folder / "utf32", std::string("\xff\xfe\0\0a\0\0\0", 8));
  write_file(folder / "utf32be", std::string("\0\0\xfe\xff\0\0\0a", 8));
  for (const std::string name : {"utf32", "utf32be"}) {
    check(name, "' is text in UTF-32");
    check_tokenizing(name, "' is text in UTF-32");
  }
  check_tokenizing("late" + llama, "'late' is no text (it has a byte of 0 at byte ");
  check_tokenizing("binary" + llama, "'binary' is no text (its beginning has control characters");
  BOOST_TEST(tool(folder, "fsdp-tokenize binary late --out bytes.bin").code == 0);
  check_tokenizing("chat.jsonl", "it is a conversation)");
  fs::create_directory(folder / "broken");
  fs::copy(tokenizers + "smollm2.json", folder / "broken" / "tokenizer.json");
  write_file(folder / "broken" / "tokenizer_config.json", "{\"eos_token\": ");
  check_tokenizing("text.txt --append-eos --tokenizer broken",
                   "'broken/tokenizer_config.json' is not a JSON object (it ends too early");
  fs::create_directory(folder / "both");
  write_file(folder / "both" / "a.jsonl", "{\"text\": \"a\"}\n");
  write_file(folder / "both" / "b.txt", "b");
  check("both", "'both/a.jsonl' is JSON and 'both/b.txt' is not");
  // A tokenizer that is named goes into the checkpoint, so that it is looked at with tokens, too: they may be the model's.
  BOOST_TEST_REQUIRE(tool(folder, "fsdp-tokenize text.txt --out tokens.bin").code == 0);
  const Outcome named = train(
      folder, 1,
      "tokens.bin --vocab-size 300 --max-update 1 --batch-size 12 --save-dir named --tokenizer " + tokenizers + "smollm2.json");
  BOOST_TEST(named.code == 0, named.output);
  BOOST_TEST(named.says("warning: the tokenizer has 500 tokens and the model 300: "), named.output);
  // All data are looked at before the texts become tokens.
  for (const std::string missing : {"text.txt,none.bin", "text.txt:0.5,empty.txt:0.5", "text.txt --valid none.bin",
                                    "text.txt --mask none.bin", "text.txt --valid tokens.bin --valid-mask text.txt"}) {
    fs::remove_all(folder / "checkpoints");
    check(missing,
          missing.find("none.bin") != missing.npos ? "data 'none.bin' does not exist" : "is not a token file that can be used");
    BOOST_TEST(!fs::exists(folder / "checkpoints" / "tokens"), missing);
  }
  // Side by side with tokens, in a mixture: the default are bytes, and so is the vocabulary.
  const Outcome mixed = train(folder, 2, "text.txt:0.5,tokens.bin:0.5 --max-update 2 --batch-size 6");
  BOOST_TEST(mixed.code == 0, mixed.output);
  const Outcome planned = train(folder, 1, "text.txt --dry-run --batch-size 12 --save-dir planned");
  BOOST_TEST(planned.code == 0, planned.output);
  BOOST_TEST(!fs::exists(folder / "planned"));
}

BOOST_AUTO_TEST_CASE(a_model_learns_the_tokens_of_a_tokenizer_and_speaks_with_it) {
  const auto folder = fresh_folder();
  std::string text;
  for (int i = 0; i < 400; ++i) text += "In the beginning God cr\u00e9ated the heaven and the earth \U0001f600. ";
  write_file(folder / "text.txt", text);
  const std::string with = " --tokenizer " + tokenizers + "smollm2.json";
  BOOST_TEST_REQUIRE(tool(folder, "fsdp-tokenize text.txt --out train.bin" + with).code == 0);
  const Outcome trained = run(
      folder, mpirun(2, "fsdp-train",
                     split("train.bin --arch llama-7b --vocab-size 500 --decoder-layers 2 --decoder-embed-dim 64 "
                           "--decoder-ffn-embed-dim 128 --decoder-attention-heads 4 --tokens-per-sample 64 --batch-size 4 --lr "
                           "3e-3 --max-update 60 --save-dir saves")));
  BOOST_TEST_REQUIRE(trained.code == 0, trained.output);
  BOOST_TEST_REQUIRE(tool(folder, "fsdp-consolidate saves out --format safetensors").code == 0);

  // It has learned its text by heart, and goes on with whole characters.
  const std::string ask = " --prompt In --temperature 0 --max-new-tokens 60";
  const Outcome spoken = tool(folder, "fsdp-generate saves" + ask + with);
  BOOST_TEST_REQUIRE(spoken.code == 0, spoken.output);
  BOOST_TEST(spoken.output.starts_with("In the beginning God cr\u00e9ated the heaven and the earth \U0001f600. In the"),
             spoken.output);
  BOOST_TEST(fsdp::valid_until(spoken.output) == spoken.output.size());
  // The tokenizer that lies in a model's folder is the model's.
  const Outcome unknown = tool(folder, "fsdp-generate out" + ask);
  BOOST_TEST(unknown.code == 2);
  BOOST_TEST(unknown.says("no tokenizer next to it"), unknown.output);
  fs::copy(tokenizers + "smollm2.json", folder / "out" / "tokenizer.json");
  BOOST_TEST(tool(folder, "fsdp-generate out" + ask).output == spoken.output);
  // A token more than the model has is no matter until a text holds it.
  fs::copy(folder / "out", folder / "padded");
  json padded = json::parse(std::ifstream(folder / "out" / "tokenizer.json"));
  padded["added_tokens"].push_back({{"id", 500},
                                    {"content", "[PAD]"},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
  write_file(folder / "padded" / "tokenizer.json", padded.dump());
  write_file(folder / "pad.txt", text + "[PAD]" + text);
  const Outcome same = tool(folder, "fsdp-generate padded" + ask);
  BOOST_TEST(same.says(spoken.output), same.output);
  BOOST_TEST(same.says("the tokenizer has 501 tokens and the model 500"), same.output);
  const std::string short_job =
      " --model padded --tokens-per-sample 32 --batch-size 2 --max-update 1 --sample-interval-updates 1 ";
  const Outcome tuned = run(folder, mpirun(2, "fsdp-train", split("text.txt --save-dir tuned --sample-prompt In" + short_job)));
  BOOST_TEST(tuned.code == 0, tuned.output);
  const auto refuses = [&](const std::vector<std::string>& command) {
    const Outcome refused = run(folder, command);
    BOOST_TEST(refused.code == 2, refused.output);
    BOOST_TEST(refused.says("holds the token '[PAD]' (500"), refused.output);
    BOOST_TEST(refused.says("which the model does not have (its tokens are 0 to 499)"), refused.output);
  };
  refuses(mpirun(2, "fsdp-train", split("pad.txt --save-dir refused" + short_job)));
  refuses(mpirun(2, "fsdp-train", split("text.txt --save-dir refused --sample-prompt [PAD]" + short_job)));
  refuses(mpirun(2, "fsdp-evaluate", split("padded pad.txt --tokens-per-sample 32")));
  refuses(mpirun(2, "fsdp-generate", split("padded --prompt [PAD]")));

  // Bits per byte are those of the text: all targets, so without the first token's bytes.
  const Outcome evaluated = run(folder, mpirun(2, "fsdp-evaluate", split("out train.bin --json --tokens-per-sample 64")));
  BOOST_TEST_REQUIRE(evaluated.code == 0, evaluated.output);
  const json result = json::parse(evaluated.output);
  const auto tokenizer = fsdp::open_tokenizer((folder / "out").string());
  const auto ids = tokenizer->encode(text);
  BOOST_TEST(result["tokens"].get<std::size_t>() == ids.size() - 1);
  const double bytes = static_cast<double>(text.size() - tokenizer->decode({ids[0]}).size());
  BOOST_TEST(result["bits_per_byte"].get<double>() ==
                 result["loss"].get<double>() / std::log(2.0) * static_cast<double>(ids.size() - 1) / bytes,
             boost::test_tools::tolerance(1e-12));
  const Outcome shown = run(folder, mpirun(2, "fsdp-evaluate", split("out train.bin --tokens-per-sample 64")));
  BOOST_TEST(shown.says("bits per token"), shown.output);
  BOOST_TEST(shown.says("bits per byte"), shown.output);
}
