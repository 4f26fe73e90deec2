// Whole jobs with damaged files, disks that fail during reads, old `stop` and `save` files, and data that disappear: no good
// file is lost, and every program reports the fault.
#include <algorithm>
#include <set>

#include <sys/stat.h>
#include <boost/test/unit_test.hpp>

#include "jobs/fault.hpp"
#include "support/golden.hpp"

using namespace fsdp::test;

namespace {

std::vector<std::string> options(int np, const std::string& save_dir, std::size_t updates, const std::string& more = "",
                                 const std::string& data = "") {
  auto words = split(
      "--arch gpt2 --vocab-size 211 --decoder-layers 2 --decoder-embed-dim 48 --decoder-attention-heads 4 --tokens-per-sample "
      "32 --total-batch-size 12 --save-dir " +
      save_dir + " --log-file " + save_dir + ".jsonl --max-update " + std::to_string(updates) + " --batch-size " +
      std::to_string(12 / np) + (more.find("--lr ") == std::string::npos ? " --lr 3e-3 " : " ") +
      (more.find("--save-interval-updates") == std::string::npos ? "--save-interval-updates 2 " : "") + more);
  words.push_back(data.empty() ? (golden_folder("gpt2-tied") / "train.bin").string() : data);
  return words;
}

Outcome train(const fs::path& folder, int np, const std::string& save_dir, std::size_t updates, const std::string& more = "",
              const std::vector<std::string>& before = {}) {
  return run(folder, mpirun(np, "fsdp-train", options(np, save_dir, updates, more), before));
}

Outcome tool(const fs::path& folder, const std::string& words, const std::vector<std::string>& before = {}) {
  std::vector<std::string> command = before;
  for (const std::string& word : split(std::string(FSDP_BIN) + "/" + words)) command.push_back(word);
  return run(folder, command);
}

/// What is in a save folder besides the metrics and the page.
std::set<std::string> names(const fs::path& folder) {
  std::set<std::string> all;
  for (const auto& entry : fs::directory_iterator(folder)) all.insert(entry.path().filename().string());
  all.erase("metrics.jsonl");
  all.erase("report.html");
  return all;
}

std::string read_whole(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void overwrite(const fs::path& path, std::size_t at, const std::string& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(at));
  file << bytes;
}

const fs::path train_data() { return golden_folder("gpt2-tied") / "train.bin"; }

}  // namespace

BOOST_AUTO_TEST_CASE(a_damaged_index_is_set_aside_and_the_step_before_goes_on) {
  const auto folder = fresh_folder();
  for (const int np : {1, 2}) {
    const std::string saves = "saves" + std::to_string(np);
    BOOST_TEST_REQUIRE(train(folder, np, saves, 4).code == 0);
    overwrite(folder / saves / "step-00000004" / "checkpoint.h5", 2560, std::string(512, '\0'));
    const Outcome outcome = train(folder, np, saves, 6, "--collective-timeout 5s");
    BOOST_TEST(outcome.code == 0, outcome.output);
    BOOST_TEST(outcome.says("It was renamed to " + saves + "/step-00000004.damaged"));
    BOOST_CHECK((names(folder / saves) ==
                 std::set<std::string>{"step-00000002", "step-00000004", "step-00000004.damaged", "step-00000006"}));
  }
}

BOOST_AUTO_TEST_CASE(damaged_numbers_are_refused_by_every_program) {
  const auto folder = fresh_folder();
  BOOST_TEST_REQUIRE(train(folder, 2, "saves", 2).code == 0);
  BOOST_TEST_REQUIRE(tool(folder, "fsdp-consolidate saves model.h5").code == 0);
  BOOST_TEST_REQUIRE(tool(folder, "fsdp-consolidate saves model --format safetensors").code == 0);
  const fs::path rank_file = folder / "saves" / "step-00000002" / "rank-00001-of-00002.h5";
  overwrite(rank_file, fs::file_size(rank_file) / 5, "damage");
  overwrite(folder / "model.h5", fs::file_size(folder / "model.h5") / 2, "damage");
  overwrite(folder / "model" / "model.safetensors", fs::file_size(folder / "model" / "model.safetensors") / 2, "damage");
  const std::string data = train_data();
  for (const std::string source : {"saves", "model.h5", "model"}) {
    for (const std::string& command :
         {"fsdp-evaluate " + source + " " + data + " --tokens-per-sample 32", "fsdp-inspect " + source,
          "fsdp-consolidate " + (source == "saves" ? source : std::string("saves")) + " out"}) {
      const Outcome refused = tool(folder, command);
      BOOST_TEST(refused.code == 1, command + refused.output);
      BOOST_TEST(refused.says("is damaged"), refused.output);
      const Outcome taken = tool(folder, command + " --no-verify");
      const bool shows_norms = command.starts_with("fsdp-inspect saves");
      BOOST_TEST(taken.code == (shows_norms ? 1 : 0), command + taken.output);
      if (shows_norms) BOOST_TEST(taken.says("with another norm than when"));
      fs::remove_all(folder / "out");
      fs::remove_all(folder / "out.tmp");
    }
    const Outcome tuned = train(folder, 2, "tuned", 2, "--finetune-from " + source);
    BOOST_TEST(tuned.code == 1, tuned.output);
    BOOST_TEST(tuned.says("is damaged"), tuned.output);
    BOOST_TEST(train(folder, 2, "tuned", 2, "--no-verify --finetune-from " + source).code == 0);
    fs::remove_all(folder / "tuned");
  }
}

// A file that temporarily cannot be examined, opened or read may be undamaged: nothing is renamed, and the run does not
// continue from another step or from the beginning.
BOOST_AUTO_TEST_CASE(a_failing_disk_is_neither_damage_nor_absence) {
  const auto folder = fresh_folder();
  BOOST_TEST_REQUIRE(train(folder, 2, "saves", 4).code == 0);
  const auto before = names(folder / "saves");
  const auto meets = [&](const std::string& calls, const std::string& name, int rank) {
    const Outcome outcome =
        train(folder, 2, "saves", 6, "",
              with({.calls = calls, .what = "EIO", .at = 1, .times = 1000, .rank = rank, .name = name}, folder, "saves"));
    BOOST_TEST(outcome.code == 1, calls + " " + name + ": " + outcome.output);
    BOOST_TEST(outcome.says("Input/output error"), outcome.output);
    BOOST_CHECK(names(folder / "saves") == before);
  };
  for (const std::string name : {"rank-00000-of-00002.h5", "checkpoint.h5", "complete.json"})
    for (const std::string calls : {"stat", "open", "read"})
      if (name != "complete.json" || calls != "stat") meets(calls, name, 0);
  meets("stat", "step-00000004", 0);
  meets("list", "saves", 0);
  meets("read", "rank-00001-of-00002.h5", 1);
  BOOST_TEST(train(folder, 2, "saves", 6).code == 0);
}

BOOST_AUTO_TEST_CASE(a_failing_disk_leaves_nothing_of_a_consolidation) {
  const auto folder = fresh_folder();
  BOOST_TEST_REQUIRE(train(folder, 2, "saves", 2).code == 0);
  for (const std::string format : {"hdf5", "safetensors"}) {
    const std::string out = "model-" + format, command = "fsdp-consolidate saves " + out + " --format " + format;
    BOOST_TEST_REQUIRE(tool(folder, command).code == 0);
    const fs::path whole = folder / (out + "-whole");
    fs::rename(folder / out, whole);
    for (long at = 3; at < 7; ++at) {
      fs::create_directory(folder / (out + ".tmp"));  // so that with() can resolve its absolute path
      const Outcome outcome = tool(folder, command, with({.calls = "write", .what = "EIO", .at = at}, folder, out + ".tmp"));
      BOOST_TEST(outcome.code == 1, outcome.output);
      BOOST_TEST(outcome.says("Input/output error"), outcome.output);
      BOOST_TEST(!fs::exists(folder / out));
      BOOST_TEST(fs::remove(folder / (out + ".tmp")));  // it must be empty
    }
    const Outcome outcome = tool(folder, command);
    BOOST_TEST(outcome.code == 0, outcome.output);
    const fs::path file = format == "hdf5" ? "" : "model.safetensors";
    BOOST_TEST(
        (read_whole(file.empty() ? folder / out : folder / out / file) == read_whole(file.empty() ? whole : whole / file)));
  }
}

BOOST_AUTO_TEST_CASE(weights_that_are_not_finite_take_no_good_ones_place) {
  const auto folder = fresh_folder();
  BOOST_TEST_REQUIRE(train(folder, 2, "saves", 2, "--keep-last 1 --optimizer sgd").code == 0);
  const Outcome outcome = train(folder, 2, "saves", 6, "--keep-last 1 --save-interval-updates 1 --optimizer sgd --lr 1e308");
  BOOST_TEST(outcome.code == 1, outcome.output);
  BOOST_TEST((outcome.says("are not finite (transformer.") || outcome.says("is not finite (loss")), outcome.output);
  BOOST_CHECK((names(folder / "saves") == std::set<std::string>{"step-00000002"}));
  BOOST_TEST(train(folder, 2, "saves", 3, "--optimizer sgd").code == 0);
}

BOOST_AUTO_TEST_CASE(data_that_go_away_while_training_cost_nothing) {
  const auto folder = fresh_folder();
  for (const int np : {1, 2}) {
    const std::string saves = "saves" + std::to_string(np);
    fs::copy_file(train_data(), folder / "train.bin", fs::copy_options::overwrite_existing);
    auto words = options(np, saves, 100000, "--save-interval-updates 100000", (folder / "train.bin").string());
    const Outcome outcome = run(folder, mpirun(np, "fsdp-train", words), [&](pid_t) {
      wait_until([&] { return metrics(folder / (saves + ".jsonl"), "train").size() >= 3; });
      fs::resize_file(folder / "train.bin", 1024 + 100);
    });
    BOOST_TEST(outcome.code == 1, outcome.output);
    BOOST_TEST(outcome.says("train.bin ends before byte"), outcome.output);
    BOOST_TEST(outcome.says("is saved, and the same command continues"), outcome.output);
    const std::size_t last = metrics(folder / (saves + ".jsonl"), "train").back()["step"];
    BOOST_TEST(metrics(folder / (saves + ".jsonl"), "save").back()["step"] == last);
    fs::copy_file(train_data(), folder / "train.bin", fs::copy_options::overwrite_existing);
    words = options(np, saves, last + 2, "", (folder / "train.bin").string());
    BOOST_TEST(run(folder, mpirun(np, "fsdp-train", words)).code == 0);
  }
}

BOOST_AUTO_TEST_CASE(validation_data_that_go_away_cost_nothing) {
  const auto folder = fresh_folder();
  fs::copy_file(train_data(), folder / "valid.bin");
  const Outcome outcome =
      run(folder,
          mpirun(2, "fsdp-train",
                 options(2, "saves", 100000, "--save-interval-updates 100000 --validate-interval-updates 2 --valid valid.bin")),
          [&](pid_t) {
            wait_until([&] { return !metrics(folder / "saves.jsonl", "valid").empty(); });
            fs::resize_file(folder / "valid.bin", 1024 + 100);
          });
  BOOST_TEST(outcome.code == 1, outcome.output);
  BOOST_TEST(outcome.says("valid.bin ends before byte"), outcome.output);
  const std::size_t last = metrics(folder / "saves.jsonl", "train").back()["step"];
  BOOST_TEST(metrics(folder / "saves.jsonl", "save").back()["step"] == last);
}

BOOST_AUTO_TEST_CASE(requests_that_lie_around_are_said) {
  const auto folder = fresh_folder();
  fs::create_directory(folder / "saves");
  std::ofstream(folder / "saves" / "stop");
  Outcome outcome = train(folder, 2, "saves", 6);
  BOOST_TEST(outcome.code == 75, outcome.output);
  BOOST_TEST(outcome.says("saves/stop existed before the start: the run saves and stops after its first update"));
  BOOST_TEST(!fs::exists(folder / "saves" / "stop"));
  std::ofstream(folder / "saves" / "stop");
  outcome = train(folder, 2, "saves", 6, "",
                  with({.calls = "remove", .what = "EIO", .at = 1, .times = 1000, .name = "stop"}, folder, "saves"));
  BOOST_TEST(outcome.code == 75, outcome.output);
  BOOST_TEST(outcome.says("saves/stop could not be removed"), outcome.output);
}

BOOST_AUTO_TEST_CASE(names_and_pipes) {
  const auto folder = fresh_folder();
  const Outcome named = train(folder, 2, "saves\xff", 2);
  BOOST_TEST(named.code == 0, named.output);
  BOOST_TEST(fs::exists(folder / "saves\xff" / "step-00000002" / "complete.json"));
  BOOST_TEST(train(folder, 2, "saves\xff", 4).code == 0);
  BOOST_REQUIRE(::mkfifo((folder / "pipe.bin").c_str(), 0600) == 0);
  const Outcome outcome = run(folder, mpirun(2, "fsdp-train", options(2, "saves", 2, "", "pipe.bin")));
  BOOST_TEST(outcome.code == 2, outcome.output);
  BOOST_TEST(outcome.says("it is a pipe or a device"), outcome.output);
}
