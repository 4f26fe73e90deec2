// Starts with contradictions. Things that a user says twice, or in two places, are compared; a difference is refused or named.
// Tables of docs/reliability.md and docs/running.md list what is compared. Each of their rows has a case here.
#include <algorithm>
#include <set>

#include <boost/test/unit_test.hpp>

#include "jobs/job.hpp"
#include "support/files.hpp"

using namespace fsdp::test;

namespace {

constexpr int goes_on = 0, failed = 1, refused = 2;

/// Returns the first columns of the rows of all tables in a page that begin with "| what | how | if it differs |".
std::set<std::string> rows_of(const std::string& page) {
  std::set<std::string> rows;
  std::istringstream lines(read_file(fs::path(FSDP_DOCS) / page));
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("|")) inside = false;
    if (inside && !line.starts_with("|-")) rows.insert(line.substr(2, line.find(" | ") - 2));
    if (line == "| what | how | if it differs |") inside = true;
  }
  return rows;
}

/// The squares of the numbers from `first` to `last` - 1.
std::string text(int first, int last) {
  std::string all;
  for (int i = first; i < last; ++i) all += std::to_string(i * i) + (i % 8 == 0 ? "\n" : " ");
  return all;
}

/// A folder in which each case begins with the same files, and a record of the rows that have been tried.
class Starts {
 public:
  explicit Starts(fs::path folder) : folder_(std::move(folder)) {}

  const fs::path& folder() const { return folder_; }
  fs::path operator/(const std::string& name) const { return folder_ / name; }

  /// Runs a program on one rank, and requires that it works.
  void prepare(const std::string& program, const std::string& words) {
    const Outcome outcome = run(folder_, mpirun(1, program, split(words)));
    BOOST_TEST_REQUIRE(outcome.code == 0, program << " " << words << "\n" << outcome.output);
  }
  /// A case of the row `row`: the command ends with `code` and prints `says`.
  void check(const std::string& row, const std::vector<std::string>& command, int code, const std::string& says) {
    rows_.insert(row);
    const Outcome outcome = run(folder_, command);
    BOOST_TEST(outcome.code == code, row << ": " << outcome.output);
    BOOST_TEST(outcome.says(says), row << ": '" << says << "' is not in " << outcome.output);
  }
  void check(const std::string& row, const std::string& program, const std::string& words, int code, const std::string& says) {
    check(row, mpirun(1, program, split(words)), code, says);
  }
  /// Another test has a case of this row.
  void is_checked(const std::string& row) { rows_.insert(row); }
  const std::set<std::string>& rows() const { return rows_; }

 private:
  fs::path folder_;
  std::set<std::string> rows_;
};

/// The words that start fsdp-train on two ranks: rank 0 with the arguments `a`, rank 1 with `b` in another folder.
std::vector<std::string> two(const std::string& a, const std::string& b, const std::string& folder_of_b = ".") {
  std::vector<std::string> command = mpirun(1, "fsdp-train", split(a));
  const std::vector<std::string> other = mpirun(1, "fsdp-train", split(b));
  command.push_back(":");
  command.insert(command.end(), {"-np", "1", "-wdir", folder_of_b});
  const auto program =
      std::find_if(other.begin(), other.end(), [](const std::string& w) { return w.ends_with("/fsdp-train"); });
  command.insert(command.end(), program, other.end());
  return command;
}

const std::string model = " --arch gpt2 --decoder-layers 1 --decoder-embed-dim 16 --decoder-attention-heads 2",
                  batch = " --tokens-per-sample 16 --batch-size 2 --lr 1e-2 --no-report";

/// Changes a JSON file.
void change(const fs::path& file, const std::string& key, const json& value) {
  json all = json::parse(read_file(file));
  all[key] = value;
  write_file(file, all.dump());
}

/// Writes what all cases need: texts, tokens, a run of two updates in "saves", its model in "base", adapters over nf4 in
/// "peft", and a tokenizer with a chat template in "tok".
void prepare(Starts& starts) {
  write_file(starts / "a.txt", text(0, 400));
  write_file(starts / "copy.txt", text(0, 400));
  write_file(starts / "v.txt", text(400, 500));
  starts.prepare("fsdp-tokenize", "a.txt --out a.bin");
  starts.prepare("fsdp-tokenize", "v.txt --out v.bin");
  starts.prepare("fsdp-tokenize", "a.txt --train-bpe 300 --tokenizer tok/tokenizer.json --out wide.bin");
  starts.prepare("fsdp-tokenize", "v.txt --train-bpe 300 --tokenizer other/tokenizer.json --out other.bin");
  write_file(starts / "tok/tokenizer_config.json", R"({"eos_token": "5"})");
  write_file(starts / "tok/chat_template.jinja",
             "{% for m in messages %}{{ m.role + ':' + m.content + ' ' }}{% endfor %}"
             "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}");
  starts.prepare("fsdp-train", "a.txt --valid v.txt" + model + batch +
                                   " --keep-best loss --validate-interval-updates 1 --max-update 2 --save-dir saves");
  starts.prepare("fsdp-consolidate", "saves base --format safetensors");
  starts.prepare("fsdp-train", "a.txt --model base --lora-rank 2 --base-dtype nf4" + batch + " --max-update 2 --save-dir lora");
  starts.prepare("fsdp-consolidate", "lora peft --adapter");
}

void over_ranks(Starts& starts) {
  const std::string words = "a.txt" + model + batch + " --max-update 1 --save-dir new";
  starts.check("options", two(words, words + " --seed 2"), refused, "--seed is 2 here and 1 on rank 0");
  fs::create_directory(starts / "node2");
  write_file(starts / "node2/a.txt", text(0, 399));
  starts.check("files of data, masks, models, adapters and tokenizers", two(words, words, "node2"), refused,
               "all ranks must read the same files");
  fs::remove(starts / "node2/a.txt");
  fs::create_hard_link(starts / "a.txt", starts / "node2/a.txt");
  const std::string resumes = "a.txt" + model + batch + " --max-update 3 --save-dir saves";
  starts.check("the step to resume", two(resumes, resumes, "node2"), failed, "the ranks see different checkpoints");
  starts.is_checked("the program");  // by comm.launcher
}

/// Resumes the run of prepare() with changed words or files.
void over_starts(Starts& starts) {
  const auto copy = [&] {
    fs::remove_all(starts / "again");
    fs::copy(starts / "saves", starts / "again", fs::copy_options::recursive);
  };
  const auto resume = [&](const std::string& row, const std::string& words, int code, const std::string& says) {
    starts.check(row, "fsdp-train", words + batch + " --max-update 3 --save-dir again", code, says);
  };
  const std::string judged = " --keep-best loss --validate-interval-updates 1";
  copy();
  resume("the model", "a.txt --arch gpt2 --decoder-layers 2 --decoder-embed-dim 16 --decoder-attention-heads 2", refused,
         "holds another model (n_layer: 2 requested, 1 in the checkpoint)");
  resume("the optimizer's states", "a.txt --optimizer lion" + model, refused, "holds the state of --optimizer adamw");
  resume("the average of the weights (`--ema-decay`)", "a.txt --ema-decay 0.9" + model, refused,
         "has no average of the weights for --ema-decay");
  resume("options that change results, such as the optimizer and its schedule, the batch, precision, dropout and `--seed`",
         "a.txt --valid v.txt --weight-decay 0.5" + model + judged, goes_on, "--weight-decay is 0.5 now and was 0.01");
  copy();
  write_file(starts / "b.txt", text(0, 398) + std::to_string(397 * 397) + " " + std::to_string(399 * 399) + " ");
  resume("the data", "b.txt --valid v.txt" + model + judged, goes_on, "the data are read from the start");
  copy();
  resume("the validation data", "a.txt --valid b.txt" + model + judged, goes_on,
         "validations measure something else than before");
  const std::string decays =
      model + batch + " --max-epoch 1 --lr-scheduler cosine --save-interval-updates 10 --save-dir decays";
  starts.prepare("fsdp-train", "v.txt" + decays);
  for (const auto& entry : fs::directory_iterator(starts / "decays"))  // as if it had been killed after update 10
    if (const std::string name = entry.path().filename(); name.starts_with("step-") && name != "step-00000010")
      fs::remove_all(entry.path());
  starts.check("the end of the learning rate's decay", "fsdp-train", "a.txt" + decays, goes_on,
               "the decay of the learning rate");
  copy();
  std::fstream file(starts / "again/step-00000002/rank-00000-of-00001.h5", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(6000);
  file.put('x');
  file.close();
  resume("the checkpoint's files", "a.txt --valid v.txt" + model + judged, goes_on,
         "step-00000002/rank-00000-of-00001.h5 is damaged");
  starts.is_checked("parameters that a program froze (`freeze()`)");                          // by api.freezing
  starts.is_checked("the algorithms of matrix products (`--gemm-algorithms`)");               // by jobs.gpu
  starts.is_checked("the library that computes attention on a GPU (`--attention-backend`)");  // by jobs.gpus
}

void among_files(Starts& starts) {
  const auto evaluate = [&](const std::string& row, const std::string& words, int code, const std::string& says) {
    starts.check(row, "fsdp-evaluate", words + " --tokens-per-sample 16", code, says);
  };
  evaluate("tokens and the model's vocabulary", "base wide.bin", refused, "is outside the vocabulary of 256 tokens");
  const std::string start = model + batch + " --max-update 1 --no-save --save-dir new";
  fs::create_directories(starts / "tuned");
  starts.prepare("fsdp-train", "a.txt --tokenizer tok" + model + batch + " --max-update 1 --save-dir tuned");
  starts.check("a tokenizer and the model's own", "fsdp-generate", "tuned --prompt 16 --max-new-tokens 1 --tokenizer other",
               goes_on, "the tokenizer other is not the model's: token 2");
  starts.check("validation and training data", "fsdp-train", "a.txt --valid copy.txt" + start, goes_on,
               "the data of --valid have the same tokens as the training data");
  evaluate("a mask and its tokens", "base a.bin --mask v.bin", refused, "give the mask that was made with these tokens");
  write_file(starts / "rows.jsonl", "{\"text\": \"19 29\"}\n{\"text\": \"5 99\"}\n");
  starts.prepare("fsdp-tokenize", "rows.jsonl --out rows.bin --format megatron");
  evaluate("documents and `--eos-token-id`", "base rows.bin --break-mode eos --eos-token-id 57", goes_on,
           "stores where 2 documents begin, but token 57 ends 4");

  const std::string tokenize = " --chat --tokenizer tok --format hdf5 --out chat.h5";
  const std::string user = R"({"role": "user", "content": "1 4 9 16 25 36"})";
  write_file(starts / "none.jsonl", "{\"messages\": [" + user + "]}\n");
  starts.check("conversations and their targets", "fsdp-tokenize", "none.jsonl" + tokenize, refused,
               "line 1 of 'none.jsonl' has no target");
  const std::string turn = user + R"(, {"role": "assistant", "content": "49"})";
  write_file(starts / "chat.jsonl", "{\"messages\": [" + turn + ", " + turn + "]}\n");
  starts.check("the end of an answer and the tokens that end generation", "fsdp-tokenize", "chat.jsonl" + tokenize, goes_on,
               " of 2 answers in chat.h5 have no target at which generation ends");
  starts.check("conversations and `--tokens-per-sample`", "fsdp-train",
               "chat.h5 --vocab-size 400 --document-attention --break-mode complete --tokens-per-sample 8 --batch-size 1 "
               "--max-update 1 --no-save --save-dir new --no-report" +
                   model,
               goes_on, "targets are predicted without the beginning of their document");

  evaluate("an adapter and the type of its base", "base a.bin --adapter peft --base-dtype int8", goes_on,
           "were trained over a base model in nf4, but are used over one in int8");
  fs::copy(starts / "peft", starts / "contradicts");
  change(starts / "contradicts/adapter_config.json", "target_modules", {"c_fc"});
  evaluate("an adapter's description and its tensors", "base a.bin --adapter contradicts", refused,
           "does not describe the adapters");
  evaluate("an adapter and its base model", "other_base a.bin --adapter peft", refused, "were trained on another base model");
  fs::copy(starts / "base", starts / "deeper");
  change(starts / "deeper/config.json", "n_layer", 2);
  evaluate("a model's weights and its `config.json`", "deeper a.bin", refused, "transformer.h.1.ln_1.weight: it is missing");
  fs::copy(starts / "base", starts / "scaled");
  change(starts / "scaled/config.json", "scale_attn_by_inverse_layer_idx", true);
  evaluate("entries of a model's `config.json`", "scaled a.bin", refused, "scale_attn_by_inverse_layer_idx");
  starts.check("patterns and names", "fsdp-train", "a.txt --freeze nothing.*" + start, refused,
               "--freeze 'nothing.*' matches no parameter");
}

}  // namespace

BOOST_AUTO_TEST_CASE(each_row_of_the_lists) {
  Starts starts(fresh_folder());
  prepare(starts);
  over_ranks(starts);
  over_starts(starts);
  starts.prepare("fsdp-train", "a.txt" + model + batch + " --max-update 1 --save-dir one");
  starts.prepare("fsdp-consolidate", "one other_base --format safetensors");
  among_files(starts);
  std::set<std::string> listed = rows_of("reliability.md");
  listed.merge(rows_of("running.md"));
  BOOST_TEST(listed.size() > 20u);
  for (const std::string& row : listed) BOOST_TEST(starts.rows().contains(row), "no case for the row: " << row);
  for (const std::string& row : starts.rows()) BOOST_TEST(listed.contains(row), "no row for the case: " << row);
}
