// Jobs with their state in files (--offload-params nvme, --offload-optimizer nvme): they train to the same bits as in memory,
// resume elsewhere, leave nothing behind, and end with one message if the disk fails. Usage: `places -- MOMENTS`: each kind of
// fault happens at this many calls of a run; 0: at every call.
#include <algorithm>
#include <set>

#include <boost/test/unit_test.hpp>

#include "jobs/fault.hpp"
#include "support/golden.hpp"

using namespace fsdp::test;

namespace {

/// A folder on a disk: the one for temporary files can be memory.
fs::path disk_of(const fs::path& folder) {
  const fs::path disk = fs::path(FSDP_DISK) / folder.filename();
  fs::remove_all(disk);
  fs::create_directories(disk);
  return disk;
}

std::string in_files(const fs::path& disk) { return "--offload-params nvme --nvme-path " + disk.string(); }

std::vector<std::string> options(const std::string& save_dir, int updates, const std::string& more) {
  auto words = split(
      "--arch gpt2 --vocab-size 211 --decoder-layers 3 --decoder-embed-dim 48 --decoder-attention-heads 4 --tokens-per-sample "
      "16 "
      "--batch-size 1 --total-batch-size 12 --clip-norm 1 --lr 3e-3 --threads 1 --save-dir " +
      save_dir + " --log-file " + save_dir + ".jsonl --max-update " + std::to_string(updates) + " " + more);
  words.push_back((golden_folder("gpt2-tied") / "train.bin").string());
  return words;
}

Outcome train(const fs::path& folder, int np, const std::string& save_dir, int updates, const std::string& more = "",
              const std::vector<std::string>& before = {}) {
  return run(folder, mpirun(np, "fsdp-train", options(save_dir, updates, more), before));
}

void expect_done(const Outcome& outcome) { BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output); }

/// Two checkpoints are the same.
void expect_same(const fs::path& folder, const std::string& a, const std::string& b) {
  const Outcome same = run(folder, split(std::string(FSDP_BIN) + "/fsdp-inspect " + a + " " + b));
  BOOST_TEST(same.says("are the same, bit for bit"), same.output);
}

void expect_empty(const fs::path& disk) { BOOST_TEST(fs::is_empty(disk), "the job leaves nothing in its folder"); }

std::size_t moments_of_each_fault() {
  const auto& all = boost::unit_test::framework::master_test_suite();
  return all.argc > 1 ? std::stoul(all.argv[1]) : 2;
}

/// The calls of these kinds, by rank 0, in the log of tests/support/faults.cpp.
long calls_of(const fs::path& folder, const std::set<std::string>& kinds) {
  std::ifstream file(folder / "calls");
  long calls = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string rank, kind;
    words >> rank >> kind;
    calls += kinds.contains(kind);
  }
  return calls;
}

/// The words that start a rank whose calls for its file in `disk` are counted.
std::vector<std::string> with_disk(Fault fault, const fs::path& folder, const fs::path& disk) {
  std::vector<std::string> words = with(fault, folder, "");
  for (std::string& word : words)
    if (word.starts_with("FSDP_FAULT_BELOW=")) word = "FSDP_FAULT_BELOW=" + fs::canonical(disk).string();
  return words;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_run_moves_its_state_between_memory_and_files) {
  const auto folder = fresh_folder(), disk = disk_of(folder);
  for (const std::string types : {"", "--bf16 --save-interval-updates 2"}) {
    const std::string name = types.empty() ? "fp32" : "bf16", all = "--invariant " + types + " ";
    expect_done(train(folder, 4, name, 8, all));
    const std::string moved = name + "-moved";
    expect_done(train(folder, 4, moved, 2, all + in_files(disk)));
    expect_done(train(folder, 2, moved, 4, all));
    const Outcome optimizer = train(folder, 4, moved, 6, all + "--offload-optimizer nvme --nvme-path " + disk.string());
    expect_done(optimizer);
    BOOST_TEST(optimizer.says("training waits for each save") == !types.empty(), optimizer.output);
    expect_done(train(folder, 1, moved, 8, all + in_files(disk) + " --sharding-strategy none"));
    expect_same(folder, name, moved);
    expect_empty(disk);
  }
  expect_done(train(folder, 3, "three", 4, in_files(disk)));
  expect_done(train(folder, 3, "memory", 4));
  expect_same(folder, "three", "memory");
}

BOOST_AUTO_TEST_CASE(two_jobs_share_a_folder) {
  const auto folder = fresh_folder(), disk = disk_of(folder), other = folder / "other";
  fs::create_directory(other);
  Outcome second;
  const Outcome first = run(folder, mpirun(2, "fsdp-train", options("one", 5, in_files(disk))),
                            [&](pid_t) { second = train(other, 2, "two", 5, in_files(disk)); });
  expect_done(first), expect_done(second);
  expect_same(folder, "one", "other/two");
  expect_empty(disk);
}

BOOST_AUTO_TEST_CASE(a_folder_that_cannot_hold_state_is_refused) {
  const auto folder = fresh_folder(), disk = disk_of(folder);
  std::ofstream(folder / "file") << "text";
  struct Mistake {
    std::string options;
    std::vector<std::string> says;
  };
  const std::string path = " --nvme-path " + disk.string();
  const std::vector<Mistake> all = {
      {"--offload-optimizer nvme", {"--offload-optimizer nvme", "--nvme-path DIR"}},
      {"--offload-params nvme", {"--offload-params nvme", "--nvme-path DIR"}},
      {path, {"--nvme-path changes nothing", "leave it out"}},
      {"--offload-params nvme --offload-optimizer none" + path, {"contradicts --offload-optimizer none"}},
      {"--offload-params nvme --offload-optimizer cpu" + path, {"contradicts --offload-optimizer cpu"}},
      {"--offload-params nvme --nvme-path missing", {"missing", "--nvme-path"}},
      {"--offload-params nvme --nvme-path file", {"file", "--nvme-path"}},
      {"--offload-params nvme --nvme-path /proc", {"/proc", "--nvme-path"}},
      {"--offload-params nvme --nvme-path /dev/shm", {"/dev/shm", "memory", "--nvme-path"}},
      {"--aio.block-size 1048576", {"--aio.block-size", "fixed"}},
      {"--buffer-count 5", {"--buffer-count", "two slots"}},
      {"--pipeline-read true", {"--pipeline-read", "leave it out"}},
  };
  for (const Mistake& one : all) {
    const Outcome outcome = train(folder, 2, "refused", 2, one.options);
    BOOST_TEST(outcome.code == 2, one.options + "\n" + outcome.output);
    for (const std::string& part : one.says) BOOST_TEST(outcome.says(part), one.options + "\n" + outcome.output);
  }
  const Outcome full = train(folder, 2, "refused", 2, in_files(disk),
                             with_disk({.calls = "reserve", .what = "ENOSPC", .at = 1, .times = 9, .rank = 1}, folder, disk));
  BOOST_TEST(full.code != 0);
  BOOST_TEST(full.says("free"), full.output);
  expect_empty(disk);
}

BOOST_AUTO_TEST_CASE(a_disk_that_fails_ends_the_run_and_nothing_is_lost) {
  const auto folder = fresh_folder(), disk = disk_of(folder);
  expect_done(train(folder, 2, "whole", 4));
  expect_done(train(folder, 2, "base", 2));
  fs::copy(folder / "base", folder / "counted", fs::copy_options::recursive);
  const std::string in = in_files(disk);
  expect_done(train(folder, 2, "counted", 4, in, with_disk({.calls = "read,write", .rank = 0}, folder, disk)));
  const long reads = calls_of(folder, {"read"}) / 2, writes = calls_of(folder, {"write"}) / 2;  // of one of two ranks
  BOOST_TEST_REQUIRE(reads > 10);
  BOOST_TEST_REQUIRE(writes > 10);
  struct Kind {
    std::string calls, what;
    bool ends;  // else the run goes on
  };
  const std::vector<Kind> kinds = {{"read", "EIO", true},       {"write", "EIO", true},  {"write", "ENOSPC", true},
                                   {"read", "flip", true},      {"write", "flip", true}, {"read", "short", false},
                                   {"write", "short", false},   {"read", "wait", false}, {"write", "wait", false},
                                   {"read,write", "kill", true}};
  const std::size_t moments = moments_of_each_fault();
  long number = 0;
  for (const Kind& kind : kinds) {
    const long calls = kind.calls == "read" ? reads : kind.calls == "write" ? writes : reads + writes;
    const auto steps = moments == 0 ? calls : static_cast<long>(moments);
    for (long i = 0; i < steps; ++i) {
      const long at = moments == 0 ? i + 1 : 1 + (7 * ++number + i * calls / steps) % calls;
      const std::string what = kind.calls + " " + kind.what + " at " + std::to_string(at);
      fs::remove_all(folder / "hit");
      fs::copy(folder / "base", folder / "hit", fs::copy_options::recursive);
      const Outcome outcome = train(folder, 2, "hit", 4, in,
                                    with_disk({.calls = kind.calls, .what = kind.what, .at = at, .rank = 1}, folder, disk));
      // A bit that is wrong on the disk and is not read again harms nothing.
      const bool may_end_well = kind.what == "flip" && kind.calls == "write";
      if (!may_end_well) BOOST_TEST((outcome.code != 0) == kind.ends, what + "\n" + outcome.output);
      if (outcome.code != 0 && kind.what != "kill") BOOST_TEST(outcome.says("--nvme-path"), what + "\n" + outcome.output);
      expect_empty(disk);
      if (outcome.code != 0) expect_done(train(folder, 2, "hit", 4, in));
      expect_same(folder, "whole", "hit");
    }
  }
}

BOOST_AUTO_TEST_CASE(a_folder_that_vanishes_harms_nothing) {
  const auto folder = fresh_folder(), disk = disk_of(folder);
  expect_done(train(folder, 2, "whole", 30));
  const Outcome outcome = run(folder, mpirun(2, "fsdp-train", options("moved", 30, in_files(disk))), [&](pid_t) {
    wait_until([&] { return !metrics(folder / "moved.jsonl", "train").empty(); });
    fs::remove_all(disk);
  });
  expect_done(outcome);
  expect_same(folder, "whole", "moved");
}

// A thousand moments from the start of a run to its end, each after another time.
BOOST_AUTO_TEST_CASE(killed_runs_leave_nothing_in_the_folder, *boost::unit_test::disabled()) {
  using namespace std::chrono;
  const auto folder = fresh_folder(), disk = disk_of(folder);
  const auto words = options("killed", 3, "--no-save " + in_files(disk) + " --offload-optimizer nvme");
  const auto start = steady_clock::now();
  expect_done(run(folder, mpirun(1, "fsdp-train", words)));
  const auto whole = steady_clock::now() - start;
  std::vector<std::string> alone = {std::string(FSDP_BIN) + "/fsdp-train"};
  alone.insert(alone.end(), words.begin(), words.end());
  const auto free = fs::space(disk).available;
  int killed = 0;
  for (int i = 0; i < 1000; ++i) {
    const Outcome outcome = run(folder, alone, [&](pid_t pid) {
      std::this_thread::sleep_for(whole * i / 1000);
      ::kill(pid, SIGKILL);
    });
    killed += outcome.code != 0;
    BOOST_TEST_REQUIRE(fs::is_empty(disk), "after run " + std::to_string(i));
  }
  BOOST_TEST(killed > 700);
  // The blocks of the files are free again: 1,000 files of 5 MiB would be missed.
  BOOST_TEST(fs::space(disk).available + (std::uintmax_t{1} << 30) > free);
}

/// The limit of the system for the memory that a process may write to is a third of the state.
BOOST_AUTO_TEST_CASE(a_model_is_trained_whose_state_is_three_times_the_memory, *boost::unit_test::disabled()) {
  const auto folder = fresh_folder(), disk = disk_of(folder);
  constexpr int limit_mb = 500;
  // 1.6 GB of parameters, fp32 copies and states: 14 bytes for each of 114 million parameters in bf16.
  const std::string model =
      "--arch gpt2 --vocab-size 512 --decoder-layers 36 --decoder-embed-dim 512 --decoder-ffn-embed-dim 2048 "
      "--decoder-attention-heads 8 --tokens-per-sample 16 --batch-size 1 --max-update 2 --bf16 "
      "--grad-dtype bf16 --threads 1 --save-dir ";
  const auto job = [&](const std::string& save_dir, const std::string& more, const std::vector<std::string>& before) {
    auto words = split(model + save_dir + " " + more);
    words.push_back((golden_folder("gpt2-tied") / "train.bin").string());
    return run(folder, mpirun(1, "fsdp-train", words, before));
  };
  const std::vector<std::string> limited = {
      "bash", "-c", "ulimit -s 1024; ulimit -d " + std::to_string(limit_mb * 1024) + "; exec \"$@\"", "bash"};
  const Outcome too_large = job("memory", "", limited);
  BOOST_TEST(too_large.code != 0, too_large.output);
  expect_done(job("memory", "", {}));
  expect_done(job("files", in_files(disk), limited));
  expect_same(folder, "memory", "files");
}
