// Multiple-choice questions: fsdp-evaluate computes the same losses as with the same tokens as its data. The losses of single
// targets, in files. jobs.python compares both with transformers.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "h5/h5.hpp"
#include "jobs/job.hpp"
#include "support/files.hpp"
#include "support/tokens.hpp"

using namespace fsdp::test;

namespace {

struct Question {
  std::string context;
  std::vector<std::string> choices;
  std::size_t answer;
};

/// Questions whose tokens are bytes, with spaces at the end of a context, characters of several bytes, and contexts longer than
/// the model's longest sequence.
const std::vector<Question> questions = {
    {"In the beginning", {" God", " the earth and the heaven", "x"}, 0},
    {"In the beginning ", {"God", "was the word"}, 1},
    {"and the", {" earth", " h\u00e9aven", "\U0001f600\U0001f600"}, 2},
    {"the heaven and the earth. In the beginning God created the heaven and the earth. In the", {" beginning", " end"}, 0},
    {"G", {"od created", "old", "reat", "o"}, 3},
    {"created", {" the heaven", " the heaven and the earth. In the beginning God"}, 1}};

json evaluate(const fs::path& folder, int np, const std::string& line) {
  const Outcome outcome = run(folder, mpirun(np, "fsdp-evaluate", split(line + " --json")));
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
  return json::parse(outcome.output.substr(outcome.output.find('{')));
}

/// Returns the sum of the losses of all bytes except the first.
double loss_of(const fs::path& folder, const std::string& text) {
  if (text.size() < 2) return 0;
  std::vector<std::uint16_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  write_token_file(folder / "one.bin", tokens);
  const json found = evaluate(folder, 1, "saves one.bin --tokens-per-sample 64");
  return found["loss"].get<double>() * found["tokens"].get<double>();
}

std::size_t least(const std::vector<double>& values) {
  return static_cast<std::size_t>(std::min_element(values.begin(), values.end()) - values.begin());
}

std::size_t characters(std::string text) {
  text.erase(0, text.find_first_not_of(' '));
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

/// Trains a model on a little text.
fs::path trained_model() {
  const auto folder = fresh_folder();
  std::string text;
  for (int i = 0; i < 200; ++i) text += "In the beginning God created the heaven and the earth. ";
  write_file(folder / "text", text);
  BOOST_TEST_REQUIRE(run(folder, {FSDP_BIN "/fsdp-tokenize", "text", "--out", "train.bin"}).code == 0);
  const Outcome trained =
      run(folder, mpirun(2, "fsdp-train",
                         split("train.bin --arch gpt2 --vocab-size 256 --decoder-layers 2 --decoder-embed-dim 48 "
                               "--decoder-attention-heads 4 --tokens-per-sample 64 --batch-size 4 --lr 3e-3 --max-update 12 "
                               "--save-dir saves")));
  BOOST_TEST_REQUIRE(trained.code == 0, trained.output);
  return folder;
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_choice_with_the_least_loss) {
  const fs::path folder = trained_model();
  std::string lines;
  double right = 0, per_token = 0, per_character = 0;
  for (const Question& question : questions) {
    lines += json{{"context", question.context}, {"choices", question.choices}, {"answer", question.answer}}.dump() + "\n\n";
    std::vector<double> all, by_token, by_character;
    for (const std::string& choice : question.choices) {
      // A text longer than 64 tokens and a target is cut at its beginning.
      const std::string whole = question.context + choice;
      const std::string seen = whole.size() > 65 ? whole.substr(whole.size() - 65) : whole;
      const bool ends_in_space = question.context.back() == ' ';
      const std::size_t tokens = choice.size() + (ends_in_space ? 1 : 0);  // the space is scored with the choice
      const double loss = loss_of(folder, seen) - loss_of(folder, seen.substr(0, seen.size() - tokens));
      all.push_back(loss);
      by_token.push_back(loss / static_cast<double>(tokens));
      by_character.push_back(loss / static_cast<double>(characters(choice)));
    }
    right += least(all) == question.answer;
    per_token += least(by_token) == question.answer;
    per_character += least(by_character) == question.answer;
  }
  BOOST_TEST(right != per_token);  // the metrics differ on these questions
  write_file(folder / "questions.jsonl", "\xef\xbb\xbf{\"id\":NaN," + lines.substr(1));
  const double n = static_cast<double>(questions.size());
  for (const auto& [np, B] : {std::pair<int, int>{1, 8}, {1, 1}, {2, 3}, {3, 8}}) {
    const json found = evaluate(folder, np, "saves --multiple-choice questions.jsonl --batch-size " + std::to_string(B));
    BOOST_TEST(found["questions"] == questions.size());
    BOOST_TEST(found["acc"].get<double>() == right / n);
    BOOST_TEST(found["acc_per_token"].get<double>() == per_token / n);
    BOOST_TEST(found["acc_norm"].get<double>() == per_character / n);
    BOOST_TEST(found["acc_stderr"].get<double>() == std::sqrt(right / n * (1 - right / n) / (n - 1)),
               boost::test_tools::tolerance(1e-12));
  }
  const Outcome table = run(folder, mpirun(2, "fsdp-evaluate", split("saves --multiple-choice questions.jsonl")));
  BOOST_TEST(table.says("6 questions of questions.jsonl"), table.output);
  BOOST_TEST(table.says("acc_norm       likeliest per character"), table.output);

  // The same questions in llm.c's format. A space at the end of a context is moved to the beginning of its choices.
  std::string words;
  const auto put = [&](std::size_t word) { words += {static_cast<char>(word & 255), static_cast<char>(word >> 8)}; };
  const auto put_tokens = [&](const std::string& text) {
    put(text.size());
    for (const char c : text) put(static_cast<unsigned char>(c));
  };
  std::size_t number = 0;
  for (const Question& question : questions) {
    const std::size_t begin = words.size();
    for (const std::size_t word : {std::size_t{65535}, std::size_t{0}, number++, question.answer, question.choices.size()})
      put(word);
    const bool ends_in_space = question.context.back() == ' ';
    put_tokens(ends_in_space ? question.context.substr(0, question.context.size() - 1) : question.context);
    for (const std::string& choice : question.choices) put_tokens(ends_in_space ? " " + choice : choice);
    const std::size_t bytes = words.size() - begin;
    words[begin + 2] = static_cast<char>(bytes & 255), words[begin + 3] = static_cast<char>(bytes >> 8);
  }
  std::string file(1024, '\0');
  const std::int32_t header[] = {20240522, 1, static_cast<std::int32_t>(questions.size())};
  std::memcpy(file.data(), header, sizeof header);
  write_file(folder / "questions.bin", file + words);
  const json found = evaluate(folder, 2, "saves --multiple-choice questions.bin");
  BOOST_TEST(found["acc"].get<double>() == right / n);
  BOOST_TEST(found["acc_per_token"].get<double>() == per_token / n);
  BOOST_TEST(!found.contains("acc_norm"));

  // Each mistake is reported once, and the job exits with status 2.
  const auto refused = [&](const std::string& name, const std::string& contents, const std::string& why,
                           const std::string& more = "") {
    write_file(folder / name, contents);
    const Outcome outcome = run(folder, mpirun(2, "fsdp-evaluate", split("saves --multiple-choice " + name + more)));
    BOOST_TEST(outcome.code == 2, outcome.output);
    BOOST_TEST(outcome.times_said(why) == 1u, outcome.output);
  };
  const std::string good = lines.substr(0, lines.find('\n') + 1);
  refused("bad.jsonl", good + "no json\n", "line 2 of 'bad.jsonl' is no question (it is not JSON");
  refused("bad.jsonl", R"({"choices":["a","b"],"answer":0})", "line 1 of 'bad.jsonl' is no question (no context");
  refused("bad.jsonl", R"({"context":"","choices":["a","b"],"answer":0})",
          "line 1 of 'bad.jsonl' is no question (a context without tokens");
  refused("bad.jsonl", R"({"context":"a","choices":["a"],"answer":0})", "line 1 of 'bad.jsonl' is no question (no two choices");
  refused("bad.jsonl", R"({"context":"a","choices":["a",""],"answer":0})",
          "line 1 of 'bad.jsonl' is no question (a choice that adds no token");
  refused("bad.jsonl", R"({"context":"a","choices":["a",7],"answer":0})",
          "line 1 of 'bad.jsonl' is no question (a choice that is no text");
  refused("bad.jsonl", R"({"context":"a","choices":["a","b"],"answer":2})",
          "line 1 of 'bad.jsonl' is no question (no answer from 0 to 1");
  refused("bad.jsonl", "\n\n", "no questions in bad.jsonl");
  refused("long.jsonl", R"({"context":"a","choices":["a","123456789"],"answer":0})",
          "has a choice of 9 tokens (a sequence has 8)", " --tokens-per-sample 8");
  refused("cut.bin", (file + words).substr(0, 1100), "it is cut");
  refused("more.bin", file + words + "ab", "2 bytes follow its examples");
  refused("bad.jsonl", good, "DATA and --multiple-choice are both given", " --data train.bin");
  const Outcome neither = run(folder, mpirun(2, "fsdp-evaluate", split("saves")));
  BOOST_TEST(neither.code == 2);
  BOOST_TEST(neither.says("MODEL and DATA, or MODEL and --multiple-choice FILE, are needed"), neither.output);
}

BOOST_AUTO_TEST_CASE(losses_of_targets_in_files) {
  const fs::path folder = trained_model();
  // A third of the targets do not count. The last sequence is short.
  std::vector<std::uint16_t> tokens, mask;
  for (std::size_t i = 0; i < 1001; ++i) tokens.push_back("In the beginning God"[i % 20]), mask.push_back(i % 3 != 2);
  write_token_file(folder / "some.bin", tokens);
  write_token_file(folder / "mask.bin", mask);
  const std::string data = "saves some.bin --mask mask.bin --tokens-per-sample 48 --batch-size 2 --per-token ";
  const json found = evaluate(folder, 1, data + "one.jsonl");
  std::ifstream lines(folder / "one.jsonl");
  std::vector<std::uint32_t> written;
  std::vector<float> values;
  std::size_t sequences = 0;
  double sum = 0;
  for (std::string text; std::getline(lines, text); ++sequences) {
    const json line = json::parse(text);
    BOOST_TEST(line["sequence"] == sequences);
    for (std::size_t i = 0; i < line["tokens"].size(); ++i) {
      const std::size_t at = 48 * sequences + line["positions"][i].get<std::size_t>();
      BOOST_TEST_REQUIRE((at < tokens.size() && mask[at] == 1));
      BOOST_TEST(line["tokens"][i] == tokens[at]);
      written.push_back(line["tokens"][i]), values.push_back(line["logprobs"][i]);
      sum += line["logprobs"][i].get<double>();
    }
  }
  BOOST_TEST(sequences == 21u);
  BOOST_TEST(found["tokens"] == written.size());
  BOOST_TEST(found["loss"].get<double>() == -sum / static_cast<double>(written.size()), boost::test_tools::tolerance(1e-6));
  BOOST_TEST((found["mean_token_accuracy"].get<double>() > 0.1 && found["mean_token_accuracy"].get<double>() < 1));
  BOOST_TEST((found["entropy"].get<double>() > 0.1 && found["entropy"].get<double>() < std::log(256)));

  for (const int np : {2, 3}) {
    const json more = evaluate(folder, np, data + std::to_string(np) + ".jsonl");
    BOOST_TEST(read_file(folder / (std::to_string(np) + ".jsonl")) == read_file(folder / "one.jsonl"));
    for (const char* const key : {"loss", "mean_token_accuracy", "entropy"}) BOOST_TEST(more[key] == found[key], key);
  }
  evaluate(folder, 2, data + "two.h5");
  const auto file = fsdp::h5::File::open(folder / "two.h5");
  std::vector<float> read(values.size());
  file.dataset("logprobs").read({0, read.size()}, read.data());
  BOOST_TEST(read == values);
  std::vector<std::int64_t> numbers(values.size());
  file.integers("tokens").read({0, numbers.size()}, numbers.data());
  BOOST_TEST((std::vector<std::uint32_t>(numbers.begin(), numbers.end()) == written));
  file.integers("sequences").read({0, numbers.size()}, numbers.data());
  BOOST_TEST((numbers.front() == 0 && numbers.back() == 20));

  for (const auto& [words, text] :
       {std::pair(data + "one.jsonl", "--per-token one.jsonl exists (it is not overwritten)"),
        {data + "no/where.jsonl", "--per-token no/where.jsonl is in no folder (no does not exist)"},
        {std::string("saves --multiple-choice q.jsonl --per-token x"), "--per-token changes nothing"}}) {
    const Outcome outcome = run(folder, mpirun(2, "fsdp-evaluate", split(words)));
    BOOST_TEST((outcome.code == 2 && outcome.times_said(text) == 1u), outcome.output);
  }
}
