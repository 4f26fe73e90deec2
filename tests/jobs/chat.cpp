// Training on conversations in JSON lines. They are tokenized with a chat template and a loss mask, and packed into
// sequences with attention within documents. The model is trained, resumed and evaluated on them.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include <boost/test/unit_test.hpp>

#include "jobs/job.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"
#include "support/tokens.hpp"
#include "text/tokenizer.hpp"

using namespace fsdp::test;

namespace {

Outcome tokenize(const fs::path& folder, const std::string& words) {
  return run(folder, split(std::string(FSDP_BIN) + "/fsdp-tokenize " + words));
}

/// Writes a tokenizer folder with a chat template, and conversations with random questions and predictable answers.
fs::path prepare() {
  const fs::path folder = fresh_folder();
  fs::create_directory(folder / "model");
  fs::copy_file(FSDP_TEST_DATA "/tokenizers/chat-tokenizer.json", folder / "model" / "tokenizer.json");
  const std::string chatml =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% "
      "endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  write_file(folder / "model" / "tokenizer_config.json", json{{"chat_template", chatml}, {"eos_token", "<|im_end|>"}}.dump());
  std::mt19937 random(5);
  std::ofstream lines(folder / "chat.jsonl");
  for (int i = 0; i < 150; ++i) {
    std::string question;
    for (std::size_t n = 1 + random() % 12; n > 0; --n) question += static_cast<char>('a' + random() % 26);
    const auto message = [](const char* role, const std::string& text) { return json{{"role", role}, {"content", text}}; };
    json messages = json::array({message("user", question), message("assistant", "God knows.")});
    if (i % 4 == 0) messages.insert(messages.begin(), message("system", "Be short."));
    lines << json{{"messages", messages}}.dump() << "\n";
  }
  return folder;
}

void must(const Outcome& outcome) { BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output); }

std::vector<std::string> options(const std::string& name, const std::string& more,
                                 const std::string& data = "train --mask train.mask") {
  return split(
      data +
      " --valid valid --valid-mask valid.mask --document-attention --break-mode complete --arch gpt2 "
      "--vocab-size 501 --decoder-layers 2 --decoder-embed-dim 32 --decoder-attention-heads 2 --tokens-per-sample 70 "
      "--total-batch-size 12 --lr 2e-2 --lr-scheduler fixed --clip-norm 1 --dropout 0.1 --attention-dropout 0.1 --log-file " +
      name + ".jsonl --save-dir " + name + " " + more);
}

double evaluate(const fs::path& folder, int np, const std::string& words) {
  const Outcome outcome = run(folder, mpirun(np, "fsdp-evaluate", split("one valid --tokens-per-sample 70 --json " + words)));
  must(outcome);
  return json::parse(outcome.output.substr(outcome.output.find('{')))["loss"];
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_model_learns_the_answers_alone) {
  const fs::path folder = prepare();
  const Outcome tokenized = tokenize(
      folder, "chat.jsonl --chat --tokenizer model --format megatron --out train --valid-out valid --valid-fraction 0.2");
  must(tokenized);
  CHECK_CONTAINS(tokenized.output, "train.mask.bin: 1 for tokens of answers, 0 for others");
  const auto mask = tokens_of(folder / "train.mask.bin");
  const auto counted = static_cast<std::uint64_t>(std::count(mask.begin(), mask.end(), 1u));
  BOOST_TEST_REQUIRE(counted > 0u);
  BOOST_TEST(mask.size() == tokens_of(folder / "train.bin").size());

  must(run(folder, mpirun(1, "fsdp-train", options("one", "--batch-size 12 --max-epoch 8"))));
  const auto one = metrics(folder / "one.jsonl", "train");
  BOOST_TEST(one.back()["tokens"] == 8 * counted);
  BOOST_TEST(one.back()["loss"].get<double>() < 0.5);

  // Two ranks train the first half. Three ranks with another micro-batch size train the second half.
  const auto half = std::to_string(one.size() / 2), all = std::to_string(one.size());
  must(run(folder, mpirun(2, "fsdp-train", options("many", "--batch-size 3 --max-epoch 8 --max-update " + half))));
  must(run(folder, mpirun(3, "fsdp-train", options("many", "--batch-size 2 --max-epoch 8 --max-update " + all))));
  const auto many = metrics(folder / "many.jsonl", "train");
  BOOST_TEST_REQUIRE(many.size() == one.size());
  for (std::size_t u = 0; u < one.size(); ++u) {
    BOOST_TEST(many[u]["tokens"] == one[u]["tokens"]);
    BOOST_TEST(std::abs(many[u]["loss"].get<double>() - one[u]["loss"].get<double>()) < (u < 5 ? 1e-5 : 0.05));
  }

  // HDF5 files contain their masks, so --mask is not needed.
  must(tokenize(folder, "chat.jsonl --chat --tokenizer model --format hdf5 --out h.h5 --valid-out v.h5 --valid-fraction 0.2"));
  BOOST_TEST(!fs::exists(folder / "h.mask.h5"));
  must(run(folder, mpirun(2, "fsdp-train", options("hdf5", "--batch-size 6 --max-update 2", "h.h5"))));
  for (std::size_t u = 0; const json& line : metrics(folder / "hdf5.jsonl", "train")) {
    BOOST_TEST(line["tokens"] == one[u]["tokens"]);
    BOOST_TEST(std::abs(line["loss"].get<double>() - one[u++]["loss"].get<double>()) < 1e-5);
  }

  // If one data set has its own mask and another has none, the run prints a notice, unless --mask names all masks.
  const std::string both = "train:0.5,h.h5:0.5", told = "all tokens of 'train.bin' count in the loss";
  const Outcome half_masked = run(folder, mpirun(1, "fsdp-train", options("both", "--batch-size 12 --max-update 1", both)));
  must(half_masked);
  BOOST_TEST(half_masked.times_said(told) == 1u, half_masked.output);
  const Outcome masked = run(
      folder, mpirun(1, "fsdp-train", options("masked", "--batch-size 12 --max-update 1", both + " --mask train.mask,h.h5")));
  must(masked);
  BOOST_TEST(!masked.says(told), masked.output);

  // The last validation loss is that of fsdp-evaluate with the mask. The model has not learned to predict the
  // questions.
  const double answers = evaluate(folder, 2, "--mask valid.mask --document-attention --break-mode complete");
  BOOST_TEST(std::abs(metrics(folder / "one.jsonl", "valid").back()["loss"].get<double>() - answers) < 1e-5);
  BOOST_TEST(answers < 0.5);
  std::vector<std::uint16_t> others;
  for (const std::uint32_t counts : tokens_of(folder / "valid.mask.bin")) others.push_back(counts == 1 ? 0 : 1);
  write_token_file(folder / "others.bin", others);
  BOOST_TEST(evaluate(folder, 1, "--mask others.bin --document-attention --break-mode complete") > 3);
  // Without --document-attention, tokens also attend to other documents, so the loss differs.
  BOOST_TEST(std::abs(evaluate(folder, 1, "--mask valid.mask --break-mode complete") - answers) > 1e-4);

  // Lines with CRLF endings are the same messages, and a line of spaces is no message.
  for (const auto& entry : fs::directory_iterator(folder / "one"))
    if (entry.is_directory()) fs::copy(folder / "model", entry.path());
  const auto answers_to = [&](const std::string& lines) {
    write_file(folder / "lines", lines);
    const Outcome talk =
        run(folder, {"sh", "-c", FSDP_BIN "/fsdp-generate one --chat --temperature 0 --max-new-tokens 8 < lines"});
    must(talk);
    return talk.output;
  };
  BOOST_TEST(answers_to("abc\r\n \r\n  \nxyz\r\n") == answers_to("abc\nxyz\n"));

  // An answer ends at the template's end token, even if the base model's file names another one. The consolidated
  // folder lists both, so that generation with transformers ends there, too.
  for (const auto& entry : fs::directory_iterator(folder / "one"))
    if (entry.is_directory()) write_file(entry.path() / "generation_config.json", R"({"eos_token_id": 0, "max_length": 99})");
  const auto end = *fsdp::open_tokenizer((folder / "model").string())->find("<|im_end|>");
  const std::string prompt = "<|im_start|>user\nabc<|im_end|>\n<|im_start|>assistant\n";
  const Outcome ended =
      run(folder,
          mpirun(2, "fsdp-generate", {"one", "--prompt", prompt, "--temperature", "0", "--max-new-tokens", "30", "--json"}));
  must(ended);
  CHECK_CONTAINS(ended.output, "\"finish\":\"end_token\"");
  CHECK_CONTAINS(ended.output, "(eos: generation_config.json 0, tokenizer_config.json " + std::to_string(end) +
                                   ", the chat template " + std::to_string(end) + "); a text ends at each");
  must(run(folder, split(FSDP_BIN "/fsdp-consolidate one whole --format safetensors")));
  for (const char* name : {"config.json", "generation_config.json"})
    BOOST_TEST(json::parse(std::ifstream(folder / "whole" / name))["eos_token_id"] == (json{0, end}), name);
}

BOOST_AUTO_TEST_CASE(training_reads_conversations_itself) {
  const fs::path folder = prepare();
  must(tokenize(folder, "chat.jsonl --chat --tokenizer model --format megatron --out all --valid-out valid"));
  must(tokenize(folder, "chat.jsonl --chat --tokenizer model --format megatron --out all"));
  const std::string chat = "chat.jsonl --chat --tokenizer model";
  must(run(folder, mpirun(2, "fsdp-train", options("two", "--batch-size 6 --max-update 3", "all --mask all.mask"))));
  must(run(folder, mpirun(2, "fsdp-train", options("one", "--batch-size 6 --max-update 3 --eval-on-start", chat))));
  const auto two = metrics(folder / "two.jsonl", "train"), one = metrics(folder / "one.jsonl", "train");
  BOOST_TEST_REQUIRE((one.size() == 3u && two.size() == 3u));
  for (std::size_t u = 0; u < one.size(); ++u) {
    BOOST_TEST(one[u]["tokens"] == two[u]["tokens"]);
    BOOST_TEST(one[u]["loss"] == two[u]["loss"]);
  }
  // The loss before the first update is that of the initial model; it changes nothing else, and a resumed run does not
  // repeat it.
  const auto valid = metrics(folder / "one.jsonl", "valid");
  BOOST_TEST_REQUIRE(valid.size() == 2u);
  BOOST_TEST(valid.front()["step"] == 0);
  BOOST_TEST(std::abs(valid.front()["loss"].get<double>() - std::log(501)) < 0.3);
  BOOST_TEST(valid.back()["loss"] == metrics(folder / "two.jsonl", "valid").back()["loss"]);
  const Outcome more =
      run(folder, mpirun(1, "fsdp-train", options("one", "--batch-size 6 --max-update 4 --eval-on-start", chat)));
  must(more);
  BOOST_TEST(more.says("already in one/tokens/chat-"), more.output);
  BOOST_TEST(metrics(folder / "one.jsonl", "valid").size() == 3u);

  // The index of the mask is damaged: all files of the tokens are made again.
  for (const auto& entry : fs::directory_iterator(folder / "one" / "tokens"))
    if (entry.path().string().ends_with(".mask.idx")) fs::resize_file(entry.path(), fs::file_size(entry.path()) - 1);
  const Outcome mended = run(folder, mpirun(1, "fsdp-train", options("one", "--batch-size 6 --max-update 5", chat)));
  must(mended);
  BOOST_TEST(mended.times_said("because that file is damaged") == 1u, mended.output);
  BOOST_TEST(!mended.says("read from the start"), mended.output);

  // The same for evaluation. Another template makes the tokens anew.
  const Outcome evaluated = run(
      folder, mpirun(1, "fsdp-evaluate", split("one chat.jsonl --chat --tokens-per-sample 70 --break-mode complete --json")));
  must(evaluated);
  must(run(folder, mpirun(1, "fsdp-evaluate", split("one all --mask all.mask --tokens-per-sample 70 --break-mode complete"))));
  const json config = json::parse(std::ifstream(folder / "model" / "tokenizer_config.json"));
  write_file(folder / "model" / "chat_template.jinja", "{{ bos_token }}" + config["chat_template"].get<std::string>());
  const Outcome anew =
      run(folder, mpirun(1, "fsdp-train", options("one", "--batch-size 6 --max-update 6 --reset-dataloader", chat)));
  must(anew);
  BOOST_TEST(anew.says("the way to read it has changed"), anew.output);

  const Outcome of_tokens = run(folder, mpirun(2, "fsdp-train", options("bad", "--max-update 1", "all --chat")));
  BOOST_TEST((of_tokens.code == 2 && of_tokens.says("--chat changes nothing (the data are tokens already)")), of_tokens.output);
  write_file(folder / "model" / "chat_template.jinja", "{{ raise_exception('No ' ~ messages | length) }}");
  const Outcome raised = run(folder, mpirun(2, "fsdp-train", options("bad", "--max-update 1", chat)));
  BOOST_TEST((raised.code == 2 && raised.says("line 1 of 'chat.jsonl' is no conversation (the chat template refuses it: No 3 "
                                              "(model/chat_template.jinja, line 1, column ")),
             raised.output);
}

BOOST_AUTO_TEST_CASE(what_is_wrong_is_said) {
  const fs::path folder = prepare();
  must(tokenize(folder, "chat.jsonl --chat --tokenizer model --format megatron --out train --valid-out valid"));
  must(tokenize(folder, "chat.jsonl --chat --tokenizer model --out t.bin"));
  const auto refused = [&](const Outcome& outcome, const std::string& text) {
    BOOST_TEST(outcome.code == 2, outcome.output);
    CHECK_CONTAINS(outcome.output, text);
  };
  const auto train_on = [&](const std::string& data) {
    return run(folder, mpirun(2, "fsdp-train", options("bad", "--max-update 1", data)));
  };
  refused(train_on("train --mask valid.mask"), "a mask has one number for each token");
  refused(train_on("train --mask train"), "a mask has 1 for tokens that count");
  refused(train_on("t.bin --mask t.mask.bin"), "name the token that ends them by --eos-token-id");
  write_file(folder / "bad.jsonl", R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})"
                                   "\n"
                                   R"({"text":"b"})"
                                   "\n");
  refused(tokenize(folder, "bad.jsonl --chat --tokenizer model --out b.bin"),
          "it has neither \"messages\" nor both \"prompt\" and \"completion\"");
  BOOST_TEST((!fs::exists(folder / "b.bin") && !fs::exists(folder / "b.mask.bin")));
  write_file(folder / "model" / "tokenizer_config.json", R"({"chat_template":"{{ messages[0]['content'] }}"})");
  refused(tokenize(folder, "chat.jsonl --chat --tokenizer model --out b.bin"),
          "it has no loop that writes the messages one by one");
  write_file(folder / "plain.jsonl", R"({"prompt":"a b","completion":" c"})"
                                     "\n");
  must(tokenize(folder, "plain.jsonl --chat --append-eos --eos-token <|im_end|> --tokenizer model --out p.bin"));
  const auto mask = tokens_of(folder / "p.mask.bin");
  BOOST_TEST((mask.size() > 2 && mask.front() == 0u && mask.back() == 1u));  // the end token belongs to the completion
}

// Before a run users see what they train on; rows that train nothing are refused, or left out and counted.
BOOST_AUTO_TEST_CASE(the_data_are_counted) {
  const fs::path folder = prepare();
  const auto row = [](const json& roles, const std::string& text = "God knows.") {
    json messages = json::array();
    for (const json& role : roles) messages.push_back({{"role", role}, {"content", role == "user" ? "abc" : text}});
    return json{{"messages", messages}}.dump() + "\n";
  };
  const std::string good = row({"user", "assistant"}), mixed = row({"user", "assistant", "user", "gpt"}),
                    empty = row({"user", "assistant"}, ""), no_answer = row({"user", "gpt"});
  write_file(folder / "good.jsonl", good + mixed + empty);
  write_file(folder / "rows.jsonl", good + mixed + "\n" + no_answer + row({"user"}) + empty);
  write_file(folder / "none.jsonl", no_answer + row({"user"}));
  const std::string of_model =
      " --chat --tokenizer model --arch gpt2 --vocab-size 501 --decoder-layers 1 --decoder-embed-dim 16 "
      "--decoder-attention-heads 1 --document-attention --break-mode complete --tokens-per-sample 8 --batch-size 1 --save-dir ";
  const auto train = [&](const std::string& words, const std::string& save, int np = 1) {
    return run(folder, mpirun(np, "fsdp-train", split(words + of_model + save)));
  };
  const std::string refused =
      "line 4 of 'rows.jsonl' has no target (none of its messages is an answer, which has the role "
      "\"assistant\"; its roles: gpt 1, user 1)";
  for (const Outcome& outcome :
       {tokenize(folder, "rows.jsonl --chat --tokenizer model --out t.bin"), train("rows.jsonl --max-update 1", "bad", 2),
        train("rows.jsonl --dry-run", "bad"), train("good.jsonl --max-update 1 --valid rows.jsonl", "bad")}) {
    BOOST_TEST(outcome.code == 2, outcome.output);
    CHECK_CONTAINS(outcome.output, refused);
  }
  const Outcome none = train("none.jsonl --max-update 1 --skip-invalid", "bad");
  BOOST_TEST(none.code == 2, none.output);
  CHECK_CONTAINS(none.output, "the text has no row that can be used (all 2 are left out; the first is line 1 of 'none.jsonl'");

  const Outcome dry = train("rows.jsonl --skip-invalid --valid good.jsonl --dry-run", "planned");
  must(dry);
  BOOST_TEST(!fs::exists(folder / "planned"));
  const Outcome first = train("rows.jsonl --skip-invalid --valid good.jsonl --max-update 1", "saves", 2);
  must(first);
  const Outcome resumed = train("rows.jsonl --skip-invalid --valid good.jsonl --max-update 2", "saves");
  must(resumed);
  for (const Outcome* outcome : {&dry, &first, &resumed}) {
    CHECK_CONTAINS(outcome->output, "data: 'rows.jsonl': 3 conversations, 2 more left out, 3 answers,");
    CHECK_CONTAINS(outcome->output, "1 of them empty (only the token that ends it is learned)");
    CHECK_CONTAINS(outcome->output,
                   "data: 'rows.jsonl' begins: <|im_start|>user\\nabc<|im_end|>\\n<|im_start|>assistant\\n[[God "
                   "knows.<|im_end|>]]\\n");
    CHECK_CONTAINS(outcome->output,
                   "2 of 5 conversations in 'rows.jsonl' are left out, 2 of them because they have no target; "
                   "roles: assistant 3, gpt 2, user 6 (the first is line 4 of 'rows.jsonl'");
    CHECK_CONTAINS(outcome->output, "1 message in 'good.jsonl' of the role \"gpt\"");
    CHECK_CONTAINS(outcome->output, "targets are predicted without the beginning of their conversation");
  }
  const json data = metrics(folder / "saves" / "metrics.jsonl", "start").back()["data"];
  BOOST_TEST_REQUIRE(data.size() == 2u);
  BOOST_TEST(data[0]["name"] == "'rows.jsonl'");
  BOOST_TEST((data[0]["skipped"] == 2 && data[0]["without_target"] == 2 && data[0]["rows"] == 3), data[0]);
  BOOST_TEST((data[1]["split"] == "valid" && !data[1].contains("skipped")), data[1]);
  const json sequences = metrics(folder / "saves" / "metrics.jsonl", "start").front()["first_sequences"];
  BOOST_TEST_REQUIRE(sequences.size() == 3u);
  BOOST_TEST(sequences[0]["data"] == "'rows.jsonl'");
  BOOST_TEST(sequences[0]["text"].back()["is_target"] == true, sequences[0]);
  const std::string page = read_file(folder / "saves" / "report.html");
  for (const char* words : {"<section id=\"data\">", "<td>3 conversations, 2 more left out", "<mark>God "})
    CHECK_CONTAINS(page, words);

  const Outcome evaluated = run(folder, mpirun(1, "fsdp-evaluate",
                                               split("saves good.jsonl --chat --break-mode complete "
                                                     "--document-attention --tokens-per-sample 8")));
  must(evaluated);
  CHECK_CONTAINS(evaluated.output, "data: 'good.jsonl': 3 conversations");
  CHECK_CONTAINS(evaluated.output, "targets are predicted without the beginning of their conversation");
  for (const auto& [name, content, text] : {std::tuple("q.jsonl", "{\"question\": \"a\", \"answer\": \"b\"}\n",
                                                       "line 1 of 'q.jsonl' is a question with its answer"),
                                            {"e.jsonl", "", "cannot read 'e.jsonl' (it is empty)"},
                                            {"p.parquet", "PAR1....", "is a Parquet file that cannot be read (it was cut)"}}) {
    write_file(folder / name, content);
    const Outcome outcome = train(std::string(name) + " --max-update 1", "bad");
    BOOST_TEST(outcome.code == 2, outcome.output);
    CHECK_CONTAINS(outcome.output, text);
  }
}

BOOST_AUTO_TEST_CASE(the_end_of_an_answer_is_learned_or_a_warning_shows_it) {
  const fs::path folder = prepare();
  const auto tokenizer = fsdp::open_tokenizer((folder / "model" / "tokenizer.json").string());
  const fsdp::TokenId end = *tokenizer->find("<|im_end|>"), start = *tokenizer->find("<|im_start|>");
  write_file(folder / "two.jsonl", json{{"messages",
                                         {{{"role", "user"}, {"content", "a"}},
                                          {{"role", "assistant"}, {"content", "b"}},
                                          {{"role", "user"}, {"content", "c"}},
                                          {{"role", "assistant"}, {"content", "d"}}}}}
                                           .dump() +
                                       "\n");
  // Returns the number of targets that end generation; `warned` is the number of answers without one.
  const auto ends = [&](const std::string& chat_template, const std::string& more, int warned) {
    write_file(folder / "model" / "tokenizer_config.json",
               json{{"chat_template", chat_template}, {"eos_token", "<|im_end|>"}}.dump());
    const Outcome outcome = tokenize(folder, "two.jsonl --chat --tokenizer model --out t.bin" + more);
    must(outcome);
    const bool says = outcome.says(std::to_string(warned) + " of 2 answers in t.bin have no target at which generation ends");
    BOOST_TEST(says == (warned > 0), outcome.output);
    std::size_t learned = 0;
    const auto tokens = tokens_of(folder / "t.bin"), mask = tokens_of(folder / "t.mask.bin");
    for (std::size_t i = 0; i < tokens.size(); ++i)
      learned +=
          mask[i] == 1 && (tokens[i] == static_cast<std::uint32_t>(end) || tokens[i] == static_cast<std::uint32_t>(start));
    return learned;
  };
  const std::string next_role =
                        "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}{% endfor %}"
                        "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}",
                    generation =
                        "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}"
                        "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %} <|im_end|>{% endfor %}",
                    blank =
                        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
                        "{% if add_generation_prompt %}assistant: {% endif %}",
                    last_only =
                        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if loop.last and m.role == 'assistant' "
                        "%}<|im_end|>{% else %} "
                        "{% endif %}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
  BOOST_TEST(ends(next_role, " --append-eos", 1) == 1u);
  BOOST_TEST(ends(generation, "", 0) == 2u);
  BOOST_TEST(ends(blank, "", 2) == 0u);
  BOOST_TEST(ends(blank, " --append-eos", 1) == 1u);
  BOOST_TEST(ends(last_only, "", 1) == 1u);
  write_file(folder / "model" / "generation_config.json", json{{"eos_token_id", {end, start}}}.dump());
  BOOST_TEST(ends(next_role, " --append-eos", 0) == 2u);
}

BOOST_AUTO_TEST_CASE(rows_cost_what_they_are_long) {
  const fs::path folder = prepare();
  must(tokenize(folder, "chat.jsonl --chat --tokenizer model --format megatron --out rows"));
  const auto train = [&](int np, const std::string& name, const std::string& more) {
    return run(folder, mpirun(np, "fsdp-train",
                              split("rows --mask rows.mask --arch gpt2 --vocab-size 501 --decoder-layers 2 "
                                    "--decoder-embed-dim 32 --decoder-attention-heads 2 --total-batch-size 12 --lr 2e-2 "
                                    "--dropout 0.1 --decoder-learned-pos=true --log-file " +
                                    name + ".jsonl --save-dir " + name + " " + more)));
  };
  const auto updates = [&](const std::string& name) { return metrics(folder / (name + ".jsonl"), "train"); };
  // T only limits the rows. (A table of learned positions has as many rows as the model says.)
  const std::string eos = "--batch-size 4 --break-mode eos --max-update 3 --tokens-per-sample ";
  must(train(1, "short", eos + "70")), must(train(1, "long", eos + "600"));
  const auto rows = updates("short"), longer = updates("long");
  BOOST_TEST_REQUIRE(rows.size() == 3u);
  for (std::size_t u = 0; u < rows.size(); ++u) {
    BOOST_TEST((rows[u]["loss"] == longer[u]["loss"] && rows[u]["gnorm"] == longer[u]["gnorm"]));
    BOOST_TEST(rows[u]["padding"] == longer[u]["padding"]);
  }
  must(train(1, "whole", eos + "70 --pad-to-multiple-of 70"));
  BOOST_TEST(updates("whole")[0]["padding"].get<double>() > rows[0]["padding"].get<double>() + 0.1);
  BOOST_TEST(std::abs(updates("whole")[2]["loss"].get<double>() - rows[2]["loss"].get<double>()) < 1e-5);

  // A pass is the same at any number of ranks, and after a resume.
  const std::string grouped = "--break-mode eos --tokens-per-sample 70 --shuffle --group-by-length --max-epoch 1 ",
                    packed =
                        "--break-mode complete --tokens-per-sample 70 --document-attention --packing best-fit --max-epoch 1 ";
  std::vector<std::uint64_t> targets;
  for (const std::string& way : {grouped, packed}) {
    const std::string name = way == grouped ? "grouped" : "packed";
    const Outcome all = train(1, name, way + "--batch-size 2");
    must(all);
    must(train(2, name + "2", way + "--batch-size 2 --max-update 3")), must(train(3, name + "2", way + "--batch-size 2"));
    const auto one = updates(name), two = updates(name + "2");
    BOOST_TEST_REQUIRE((one.size() == two.size() && one.size() > 3));
    for (std::size_t u = 0; u < one.size(); ++u) {
      BOOST_TEST(one[u]["tokens"] == two[u]["tokens"]);
      BOOST_TEST(std::abs(one[u]["loss"].get<double>() - two[u]["loss"].get<double>()) < (u < 5 ? 1e-5 : 1e-2));
      BOOST_TEST(two[u]["rank_balance"].get<double>() <= 1);
    }
    BOOST_TEST(one[1]["padding"].get<double>() < 0.5 * rows[1]["padding"].get<double>());
    targets.push_back(one.back()["tokens"]);
  }
  BOOST_TEST(targets[0] == targets[1]);

  const Outcome other = train(2, "grouped2", "--break-mode eos --tokens-per-sample 70 --shuffle --max-epoch 1 --batch-size 2");
  CHECK_CONTAINS(other.output, "mixed or cut in another way than before: the data are read from the start");
  const Outcome lost =
      train(1, "lost", "--break-mode eos --tokens-per-sample 20 --long-rows truncate --batch-size 4 --max-update 1");
  must(lost);
  CHECK_CONTAINS(lost.output, "long rows truncated (");
  for (const auto& [words, message] :
       {std::pair{"--break-mode eos --long-rows drop --tokens-per-sample 3", "give a larger --tokens-per-sample, or truncate"},
        {"--long-rows drop --tokens-per-sample 20", "it goes with --break-mode complete or eos"},
        {"--break-mode complete --packing best-fit --tokens-per-sample 20", "with --document-attention"},
        {"--group-by-length --tokens-per-sample 20", "all sequences are full"}}) {
    const Outcome refused = train(2, "refused", std::string(words) + " --batch-size 2 --max-update 1");
    BOOST_TEST(refused.code != 0);
    CHECK_CONTAINS(refused.output, message);
  }
}

// Prompts of a file go through the template of a run's adapters over a quantized base, at any number of ranks.
BOOST_AUTO_TEST_CASE(conversations_of_a_file_are_answered) {
  const fs::path folder = prepare();
  const std::string
      data = "chat.jsonl --chat --tokenizer model ",
      small =
          "--arch llama-7b --vocab-size 501 --decoder-layers 2 --decoder-embed-dim 64 --decoder-ffn-embed-dim 128 "
          "--decoder-attention-heads 4 --decoder-kv-heads 2 ",
      shape = "--tokens-per-sample 64 --document-attention --break-mode complete --batch-size 4 ";
  must(run(folder, mpirun(1, "fsdp-train", split(data + small + shape + "--max-update 1 --save-dir first"))));
  must(run(folder, split(FSDP_BIN "/fsdp-consolidate first base --format safetensors")));
  // Another template is learned, which no file of the model has. 150 conversations are 35 to 40 sequences, so that a pass takes
  // no whole number of updates.
  write_file(
      folder / "short.jinja",
      "{% for m in messages %}<|im_start|>{{ m.role[0] }}:{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}"
      "<|im_start|>a:{% endif %}");
  const std::string tune =
      "chat.jsonl --chat --chat-template short.jinja --model base --valid chat.jsonl --lora-rank 4 --base-dtype "
      "nf4 --lora-targets all-linear --lr 1e-2 --warmup-ratio 0.1 --lr-scheduler linear --min-lr-ratio 0.1 "
      "--save-dir tuned --validate-interval-epochs 1 --keep-best loss --max-epoch 3 " +
      shape;
  must(run(folder, mpirun(2, "fsdp-train", split(tune + "--max-update 12"))));
  must(run(folder, mpirun(1, "fsdp-train", split(tune + "--update-freq 2"))));
  BOOST_TEST(read_file(folder / "tuned" / "best" / "chat_template.jinja") == read_file(folder / "short.jinja"));
  const auto lines = metrics(folder / "tuned" / "metrics.jsonl", "train");
  const double sequences = metrics(folder / "tuned" / "metrics.jsonl", "start").front()["data"][0]["sequences"].get<double>();
  std::vector<json> validated;
  for (const json& line : metrics(folder / "tuned" / "metrics.jsonl", "valid")) validated.push_back(line["step"]);
  std::vector<json> due = {std::ceil(sequences / 8), std::ceil(2 * sequences / 8), std::ceil(3 * sequences / 8)};
  due.insert(due.begin() + (due[0] <= 12 && 12 < due[1] ? 1 : 2), 12);  // at the end of the first start
  due.erase(std::unique(due.begin(), due.end()), due.end());
  BOOST_TEST((validated == due), json(validated) << " validated, " << json(due) << " due");
  // fsdp-tokenize with this template makes the same tokens, and the checkpoint's template the same loss.
  must(tokenize(folder, "chat.jsonl --chat --chat-template short.jinja --tokenizer base --format megatron --out all"));
  for (const auto& entry : fs::directory_iterator(folder / "tuned" / "tokens"))
    for (const std::string end : {".mask.bin", ".bin"})
      if (entry.path().string().ends_with(end)) {
        BOOST_TEST((read_file(entry.path()) == read_file(folder / ("all" + end))), entry.path());
        break;
      }
  const Outcome evaluated = run(folder, mpirun(2, "fsdp-evaluate", split("tuned chat.jsonl --chat --json " + shape)));
  must(evaluated);
  const json valid = metrics(folder / "tuned" / "metrics.jsonl", "valid").back(),
             found = json::parse(evaluated.output.substr(evaluated.output.find("{\"")));
  for (const char* const key : {"loss", "mean_token_accuracy", "entropy"})
    BOOST_TEST(std::abs(found[key].get<double>() - valid[key].get<double>()) < 1e-6, key);
  for (const json& line : lines)
    BOOST_TEST((line["mean_token_accuracy"].get<double>() >= 0 && line["mean_token_accuracy"].get<double>() <= 1 &&
                line["entropy"].get<double>() > 0 && line["entropy"].get<double>() <= std::log(501)));
  BOOST_TEST(lines.back()["lr"].get<double>() == 1e-3, boost::test_tools::tolerance(1e-9));

  write_file(folder / "rows.jsonl",
             R"({"messages":[{"role":"user","content":"abc"},{"role":"assistant","content":"God knows."}]}
{"messages":[{"role":"system","content":"Be short."},{"role":"user","content":"x"},{"role":"assistant","content":"y"},{"role":"user","content":"zz"}]}
{"prompt":"one more question"}

{"prompt":[{"role":"user","content":"w"}],"completion":[{"role":"assistant","content":"No."}],"id":7}
{"prompt":"no template","completion":" here"}
)");
  const auto answers = [&](int np, const std::string& model) {
    const Outcome outcome = run(folder, mpirun(np, "fsdp-generate",
                                               split(model + " --chat --prompts rows.jsonl --json --temperature 0 "
                                                             "--max-new-tokens 12")));
    must(outcome);
    std::vector<json> all;
    std::istringstream stream(outcome.output);
    for (std::string line; std::getline(stream, line);)
      if (line.starts_with("{")) all.push_back(json::parse(line));
    return all;
  };
  const auto one = answers(1, "tuned/best");
  BOOST_TEST_REQUIRE(one.size() == 5u);
  BOOST_TEST(one[0]["prompt"] == "<|im_start|>u:abc<|im_end|><|im_start|>a:");
  BOOST_TEST(one[0]["text"] == "God knows.");
  BOOST_TEST(one[0]["finish"] == "end_token");
  BOOST_TEST((one[0]["reference"] == "God knows." && !one[1].contains("reference") && one[3]["reference"] == "No."));
  BOOST_TEST(one[1]["prompt"] ==
             "<|im_start|>s:Be "
             "short.<|im_end|><|im_start|>u:x<|im_end|><|im_start|>a:y<|im_end|><|im_start|>u:zz<|im_end|><|im_start|>a:");
  BOOST_TEST((one[4]["prompt"] == "no template" && one[4]["reference"] == " here"));
  BOOST_TEST((answers(3, "tuned/best --batch-size 1") == one));
  BOOST_TEST((answers(2, "base --base-dtype nf4 --adapter tuned/best --chat-template short.jinja") == one));
  BOOST_TEST(answers(2, "base")[0]["prompt"] == "<|im_start|>user\nabc<|im_end|>\n<|im_start|>assistant\n");

  const auto refused = [&](const std::string& options, const std::string& text) {
    const Outcome outcome = run(folder, mpirun(2, "fsdp-generate", split(options)));
    BOOST_TEST(outcome.code == 2, outcome.output);
    BOOST_TEST(outcome.times_said(text) == 1u, outcome.output);
  };
  write_file(folder / "bad.jsonl", R"({"prompt":"a"}
{"messages":[{"role":"assistant","content":"b"}]}
)");
  // The data of a training run, in another form.
  write_file(folder / "forms.jsonl", R"({"conversations":[{"from":"human","value":"abc"},{"from":"gpt","value":"God knows."}]}
)");
  const Outcome other = run(folder, mpirun(1, "fsdp-generate",
                                           split("tuned/best --chat --prompts forms.jsonl --json-format sharegpt --json "
                                                 "--temperature 0 --max-new-tokens 12")));
  must(other);
  const json of_form = json::parse(other.output.substr(other.output.find('{')));
  BOOST_TEST((of_form["text"] == one[0]["text"] && of_form["reference"] == "God knows."), other.output);
  refused("base --chat --prompts forms.jsonl",
          "is in ShareGPT's form (\"conversations\", \"from\" and \"value\"); give "
          "--json-format sharegpt");
  refused("base --chat --prompts bad.jsonl",
          "line 2 of 'bad.jsonl' cannot be answered (its only message is an answer, so there is "
          "nothing to answer)");
  refused("base --prompts rows.jsonl", "line 1 of 'rows.jsonl' has no prompt");
  refused("base --chat --json", "--json does not go with a talk");
  refused("base --chat --prompts rows.jsonl --chat-template model/tokenizer.json",
          "is no file with one chat template (it has none)");
  refused("base --prompt a --chat-template short.jinja", "--chat-template changes nothing (it is only for --chat)");
}

// fsdp-data finds what costs a run, in texts and in tokens, before a model is there.
BOOST_AUTO_TEST_CASE(data_are_proved_before_a_run) {
  const fs::path folder = prepare();
  const auto row = [](const std::string& question, const std::string& answer, const std::string& role = "assistant") {
    return json{{"messages", {{{"role", "user"}, {"content", question}}, {{"role", role}, {"content", answer}}}}}.dump() + "\n";
  };
  const auto repeated = [](const std::string& word, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += word;
    return text;
  };
  const std::string good = row("abc", "God knows."), twice = row("Who?", "I.");
  write_file(folder / "rows.jsonl", good + twice + row("def", "God.", "gpt") + twice + row(repeated("long ", 100), "no") +
                                        row("ghi", repeated("never ", 100)) + row("jkl", "") + "{\"text\": 1}\n");
  write_file(folder / "v.jsonl", row("mno", "Yes.") + good);
  const auto prove = [&](const std::string& words) {
    const std::string T = words.find("--tokens-per-sample") == words.npos ? " --tokens-per-sample 40" : "";
    return run(folder, split(std::string(FSDP_BIN) + "/fsdp-data " + words + T));
  };
  const std::string of_rows = "rows.jsonl --valid v.jsonl --chat --tokenizer model --break-mode eos ";
  const Outcome bad = prove(of_rows + "--json --html page.html");
  BOOST_TEST(bad.code == 1, bad.output);
  const json report = json::parse(bad.output.substr(bad.output.find("{\n")));
  BOOST_TEST(report["ok"] == false);
  std::map<std::string, std::string> found;
  for (const json& each : report["findings"])
    found[each["check"].get<std::string>() + " of " + each["source"].get<std::string>()] = each["message"];
  const std::map<std::string, std::string> expected = {
      {"invalid-rows of 'rows.jsonl'", "2 of 8 conversations in 'rows.jsonl' are left out"},
      {"unknown-roles of 'rows.jsonl'", "1 message in 'rows.jsonl' of the role \"gpt\""},
      {"long-prompts of 'rows.jsonl'", "(the first is line 5 of 'rows.jsonl')"},
      {"cut-answers of 'rows.jsonl'", "(the first is line 6 of 'rows.jsonl')"},
      {"late-targets of 'rows.jsonl'", "are predicted without the beginning"},
      {"idle-sequences of 'rows.jsonl'", "that have no target and are not computed: "},
      {"duplicates of 'rows.jsonl'", "(the first is line 4 of 'rows.jsonl', as line 2 of 'rows.jsonl')"},
      {"empty-answers of 'rows.jsonl'", "answers in 'rows.jsonl' that are empty: 1;"},
      {"in-training of 'v.jsonl'", "(the first is line 2 of 'v.jsonl', as line 1 of 'rows.jsonl')"}};
  BOOST_TEST(found.size() == expected.size(), bad.output);
  for (const auto& [check, message] : expected) {
    BOOST_TEST_REQUIRE(found.contains(check), check);
    CHECK_CONTAINS(found[check], message);
  }
  CHECK_CONTAINS(read_file(folder / "page.html"), "<section id=\"findings\">");
  CHECK_CONTAINS(read_file(folder / "page.html"), "<mark>God knows.&lt;|im_end|&gt;</mark>");

  // Training on the same data counts the same.
  const Outcome trained = run(
      folder, mpirun(1, "fsdp-train",
                     split("rows.jsonl --chat --skip-invalid --tokenizer model --break-mode eos --tokens-per-sample 40 --arch "
                           "gpt2 --decoder-layers 1 --decoder-embed-dim 16 --decoder-attention-heads 1 --max-update 1 "
                           "--save-dir saves")));
  must(trained);
  const json of_run = metrics(folder / "saves" / "metrics.jsonl", "start").back()["data"][0];
  for (const char* key :
       {"rows", "skipped", "answers", "tokens", "targets", "sequences", "padding", "cut_rows", "late_targets"})
    BOOST_TEST(of_run[key] == report["sources"][0][key], key << ": " << report["sources"][0]);

  const Outcome allowed = prove(of_rows + "--allow invalid-rows,unknown-roles,long-prompts,cut-answers,in-training");
  BOOST_TEST(allowed.code == 0, allowed.output);
  CHECK_CONTAINS(allowed.output, "[[God knows.<|im_end|>");
  CHECK_CONTAINS(allowed.output, "No check fails.");

  // In tokens, answers are runs of the mask.
  must(tokenize(folder, "rows.jsonl --chat --skip-invalid --tokenizer model --format megatron --out t"));
  const Outcome tokens = prove("t --mask t.mask --tokenizer model --break-mode eos --json");
  BOOST_TEST(tokens.code == 1, tokens.output);
  const json of_tokens = json::parse(tokens.output.substr(tokens.output.find("{\n")))["sources"][0];
  for (const char* key : {"rows", "answers", "tokens", "targets", "sequences", "cut_answers", "long_prompts", "duplicates"})
    BOOST_TEST(of_tokens[key] == report["sources"][0][key], key << ": " << of_tokens);
  // All tokens of texts count, and a configuration for more ranks is read.
  write_file(folder / "texts.jsonl", R"({"text": "abc abc"}
{"text": ""}
{"text": "abc"}
)");
  const Outcome texts = prove("texts.jsonl --tokenizer model --break-mode eos --json --total-batch-size 16 --batch-size 2");
  BOOST_TEST(texts.code == 0, texts.output);
  const json of_texts = json::parse(texts.output.substr(texts.output.find("{\n")))["sources"][0];
  BOOST_TEST((of_texts["rows"] == 3 && of_texts["empty_rows"] == 1 && !of_texts.contains("answers")), of_texts);
  BOOST_TEST(of_texts["targets"] == of_texts["tokens"].get<int>() - 3);
  must(prove("texts.jsonl --json-field text --arch gpt2 --break-mode eos"));
  for (const auto& [words, message] :
       {std::pair("t --mask t.mask --arch gpt2 --vocab-size 50", "are not in the model's vocabulary"),
        std::pair("t --mask t.mask --tokenizer model --eos-token-id 499 --break-mode eos", "has no token 499"),
        std::pair("t --mask t.mask --tokenizer model --break-mode eos --long-rows drop --tokens-per-sample 2",
                  "has no sequence with a target"),
        std::pair("t --mask t.mask --allow cut-answer", "--allow 'cut-answer' is no check"),
        std::pair("t --mask t.mask,t.mask", "has 1 data sets, but 't.mask,t.mask' has 2 masks"),
        std::pair("texts.jsonl --tokenizer model --mask t.mask", "is text, which has no mask of its own"),
        std::pair("texts.jsonl --tokenizer model", "'texts.jsonl' has no whole sequence"),
        std::pair("t --mask t.mask --valid t:0.5", "has weights"),
        std::pair("rows.jsonl,texts.jsonl --chat --tokenizer model --html rows.jsonl", "'rows.jsonl' would be written over"),
        std::pair("rows.jsonl --chat --tokenizer model --html no/page.html", "cannot write 'no/page.html'"),
        std::pair("rows.jsonl --tokenizer model", "read such lines by --chat"),
        std::pair("t:0.5,texts.jsonl:0.5 --tokenizer model", "'texts.jsonl' has no whole sequence"),
        std::pair("t,rows.jsonl --tokenizer model --chat", "1 have a loss mask, and 1 do not"),
        std::pair("t --mask t.mask --eos-token-id 1", "--eos-token-id changes nothing"),
        std::pair("t --valid-mask t.mask", "--valid-mask changes nothing"),
        std::pair("rows.jsonl --chat", "is text, but no tokenizer is known; give --tokenizer, or --model DIR"),
        std::pair("", "no data are given")}) {
    const Outcome outcome = prove(words);
    BOOST_TEST((outcome.code == 1 || outcome.code == 2), outcome.output);
    CHECK_CONTAINS(outcome.output, message);
  }
}
