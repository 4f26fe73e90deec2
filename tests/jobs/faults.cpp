// Jobs that are killed at any moment, also during saves, and disks that fail at any call: complete steps stay complete,
// and the same command resumes from them. Usage: `faults -- ROUNDS SEED`. ROUNDS jobs are killed in each case; if
// ROUNDS is more than 5, every call also fails once.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include <boost/test/unit_test.hpp>

#include "jobs/fault.hpp"
#include "support/golden.hpp"

using namespace fsdp::test;

namespace {

struct Arguments {
  int rounds = 5;
  unsigned seed = 11;
};

Arguments arguments() {
  const auto& all = boost::unit_test::framework::master_test_suite();
  Arguments given;
  if (all.argc > 1) given.rounds = std::stoi(all.argv[1]);
  if (all.argc > 2) given.seed = static_cast<unsigned>(std::stoul(all.argv[2]));
  return given;
}

/// Returns the options of a run. On up to 4 ranks, each rank has one micro-batch, so that strategies change no bit.
std::vector<std::string> options(int np, const std::string& save_dir, std::size_t updates, const std::string& more = "") {
  auto words = split(
      "--arch gpt2 --vocab-size 211 --decoder-layers 2 --decoder-embed-dim 48 --decoder-attention-heads 4 --tokens-per-sample "
      "32 --total-batch-size 12 --clip-norm 1 --save-dir " +
      save_dir + " --log-file " + save_dir + ".jsonl --max-update " + std::to_string(updates) + " --batch-size " +
      std::to_string(12 / np) + (more.find("--lr ") == std::string::npos ? " --lr 3e-3 " : " ") + more);
  words.push_back((golden_folder("gpt2-tied") / "train.bin").string());
  return words;
}

Outcome train(const fs::path& folder, int np, const std::string& save_dir, std::size_t updates, const std::string& more = "") {
  return run(folder, mpirun(np, "fsdp-train", options(np, save_dir, updates, more)));
}

Outcome inspect(const fs::path& folder, const std::string& words) {
  return run(folder, split(std::string(FSDP_BIN) + "/fsdp-inspect " + words));
}

struct Calls {
  std::map<int, std::map<std::string, long>> counts;  // of each rank, by kind of call
  std::map<int, int> exit_codes;                      // of the ranks that exited by themselves
  std::string fault;                                  // the first line that reports a fault
  long of(int rank) const {
    long sum = 0;
    for (const auto& [kind, count] : counts.at(rank)) sum += count;
    return sum;
  }
};

Calls read_calls(const fs::path& folder) {
  Calls calls;
  std::ifstream file(folder / "calls");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    int rank = -1, code = -1;
    std::string kind;
    words >> rank >> kind;
    if (kind == "exit") {
      words >> code;
      calls.exit_codes[rank] = code;
      continue;
    }
    if (kind == "fault") {
      if (calls.fault.empty()) calls.fault = line;
      words >> kind;
    }
    ++calls.counts[rank][kind];
  }
  return calls;
}

/// Returns the updates of the steps that have a marker. Does not use the tested code.
std::set<std::size_t> complete_steps(const fs::path& saves) {
  std::set<std::size_t> updates;
  if (!fs::exists(saves)) return updates;
  for (const auto& entry : fs::directory_iterator(saves)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name.find('.') == std::string::npos && fs::exists(entry.path() / "complete.json"))
      updates.insert(std::stoul(name.substr(5)));
  }
  return updates;
}
std::size_t latest(const fs::path& saves) {
  const auto updates = complete_steps(saves);
  return updates.empty() ? 0 : *updates.rbegin();
}

std::string strategy_for(int np, std::minstd_rand& dice) {
  std::vector<std::string> names = {"full", "grad-op", "optim", "none"};
  if (np == 4) names.insert(names.end(), {"hybrid --shard-group-size 2", "hybrid-grad-op --shard-group-size 2"});
  return "--sharding-strategy " + names[dice() % names.size()];
}

/// A job of `np` ranks that resumed from update `from`.
struct Part {
  int np;
  std::string strategy;
  std::size_t from;
};

std::vector<pid_t> children_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/task/" + std::to_string(process) + "/children");
  return {std::istream_iterator<pid_t>(file), {}};
}

/// Starts the same endless run repeatedly. Each time kills all its processes or one of them, from outside or at a call
/// during a save. Then lets it run two more updates. Returns the jobs and the updates from which they resumed.
std::vector<Part> torture(const fs::path& folder, const std::string& save_dir, std::minstd_rand& dice,
                          const std::function<int()>& choose_np) {
  const fs::path log = folder / (save_dir + ".jsonl");
  const auto saves = [&] { return metrics(log, "save"); };
  std::vector<Part> parts;
  std::map<std::string, int> died;  // counts by kind of call
  // If the last job did an update, its first one follows the step that was the newest complete one when the job
  // started.
  const auto check_went_on = [&](std::size_t from, std::size_t lines_before) {
    const auto lines = metrics(log);
    const auto first = std::find_if(lines.begin() + static_cast<std::ptrdiff_t>(lines_before), lines.end(),
                                    [](const json& line) { return line["type"] == "train"; });
    if (first != lines.end()) BOOST_TEST((*first)["step"].get<std::size_t>() == from + 1);
  };
  for (int round = 0; round < arguments().rounds; ++round) {
    const int np = choose_np();
    const std::string strategy = strategy_for(np, dice);
    const std::size_t from = latest(folder / save_dir), before = saves().size(), lines = metrics(log).size();
    parts.push_back({np, strategy, from});
    Fault fault;
    if (round % 4 != 3) {
      // Most calls are writes, so each kind is chosen equally often. Ranks other than 0 only create, write and sync
      // their own files.
      const std::vector<std::pair<std::string, unsigned>> kinds = {{"sync", 25},   {"write", 400}, {"create", 12},
                                                                   {"rename", 12}, {"remove", 30}, {"mkdir", 5}};
      const std::size_t kind = dice() % kinds.size();
      fault.rank = kind < 3 ? static_cast<int>(dice() % static_cast<unsigned>(np)) : 0;
      fault.calls = kinds[kind].first;
      fault.at = 1 + static_cast<long>(dice() % (fault.rank == 0 ? kinds[kind].second : kinds[kind].second / 4));
    }
    const bool shares =
        np > 1 && dice() % 2 == 0 && (fault.rank == 0 || fault.calls != "create");  // others create no file then
    const auto words = options(np, save_dir, 1'000'000,
                               "--save-interval-updates 1 --keep-last 2 " + strategy +
                                   (shares ? " --files-per-checkpoint " + std::to_string(1 + (np - 1) / 2) : ""));
    const Outcome outcome = run(folder, mpirun(np, "fsdp-train", words, with(fault, folder, save_dir)), [&](pid_t launcher) {
      if (fault.at > 0) return;
      wait_until([&] { return saves().size() >= before + 2; });
      std::this_thread::sleep_for(std::chrono::milliseconds(dice() % 150));
      const auto ranks = children_of(launcher);
      const std::size_t one = dice() % 2 == 0 ? ranks.size() : dice() % std::max<std::size_t>(ranks.size(), 1);
      for (std::size_t r = 0; r < ranks.size(); ++r)
        if (one == ranks.size() || one == r) kill(ranks[r], SIGKILL);
    });
    const Calls calls = read_calls(folder);
    BOOST_TEST_INFO_SCOPE("round " << round << " on " << np << " ranks, " << strategy << ", " << fault.calls << " " << fault.at
                                   << (shares ? ", shared files" : "") << " on rank " << fault.rank << ": " << calls.fault
                                   << "\n"
                                   << outcome.output);
    BOOST_TEST(outcome.code != 0);
    BOOST_TEST((fault.at == 0 || !calls.fault.empty()), "it died where it should");
    ++died[fault.at == 0 ? "from outside" : fault.calls];
    check_went_on(from, lines);
    // Every step that was reported as saved is there, except those that --keep-last has removed.
    const std::size_t now = latest(folder / save_dir);
    BOOST_TEST(now >= from);
    if (saves().size() > before) BOOST_TEST(now >= saves().back()["step"].get<std::size_t>());
  }
  const std::size_t from = latest(folder / save_dir), lines = metrics(log).size();
  const int np = choose_np();
  parts.push_back({np, strategy_for(np, dice), from});
  const Outcome end = train(folder, np, save_dir, from + 2, parts.back().strategy);
  BOOST_TEST(end.code == 0, end.output);
  check_went_on(from, lines);
  for (const auto& entry : fs::directory_iterator(folder / save_dir))
    BOOST_TEST(entry.path().extension() != ".tmp", entry.path());
  parts.push_back({0, "", from + 2});
  for (const auto& [where, times] : died) BOOST_TEST_MESSAGE(times << " killed: " << where);
  BOOST_TEST_MESSAGE("to update " << from + 2);
  return parts;
}

void check_same(const fs::path& folder, const std::string& a, const std::string& b) {
  const Outcome same = inspect(folder, a + " " + b);
  BOOST_TEST(same.says("are the same, bit for bit"), same.output);
  const Outcome verified = inspect(folder, b + " --verify");
  BOOST_TEST(verified.code == 0, verified.output);
}

}  // namespace

BOOST_AUTO_TEST_CASE(killed_at_any_moment_a_run_ends_as_if_it_had_not_been) {
  const auto folder = fresh_folder();
  std::minstd_rand dice(arguments().seed);
  const int np = 2 + static_cast<int>(dice() % 3);
  const auto parts = torture(folder, "killed", dice, [&] { return np; });
  const Outcome undisturbed = train(folder, np, "undisturbed", parts.back().from);
  BOOST_TEST(undisturbed.code == 0, undisturbed.output);
  check_same(folder, "undisturbed", "killed");
}

BOOST_AUTO_TEST_CASE(killed_and_continued_on_other_numbers_of_ranks) {
  const auto folder = fresh_folder();
  std::minstd_rand dice(arguments().seed + 1);
  const auto parts = torture(folder, "killed", dice, [&] { return 1 + static_cast<int>(dice() % 4); });
  // Another number of ranks sums in another order. So the run to compare with changes its number of ranks at the same
  // updates, without being killed.
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    if (parts[i + 1].from == parts[i].from) continue;
    const Outcome outcome = train(folder, parts[i].np, "undisturbed", parts[i + 1].from, parts[i].strategy);
    BOOST_TEST(outcome.code == 0, outcome.output);
  }
  check_same(folder, "undisturbed", "killed");
}

namespace {

/// Resumes a run that has saved update 1, with a fault. The run saves update 2 during training, and update 3 at its
/// end.
void fail_and_go_on(const fs::path& folder, int np, const Fault& fault, const std::string& more) {
  fs::remove_all(folder / "saves");
  fs::copy(folder / "first", folder / "saves", fs::copy_options::recursive);
  fs::remove(folder / "saves.jsonl");
  auto command = mpirun(np, "fsdp-train", options(np, "saves", 3, "--no-report --save-interval-updates 1 " + more),
                        with(fault, folder, "saves"));
  // This setting lets all ranks exit by themselves, so that each logs its exit code. The launcher then exits with 0.
  command.insert(command.begin(), {"env", "OMPI_MCA_orte_abort_on_non_zero_status=0", "timeout", "--kill-after=5", "60"});
  const Outcome outcome = run(folder, command);
  const Calls calls = read_calls(folder);
  BOOST_TEST_INFO_SCOPE(fault.what << " at call " << fault.at << " of " << fault.calls << " on rank " << fault.rank << " of "
                                   << np << more << ": " << calls.fault << "\n"
                                   << outcome.output);
  BOOST_TEST(!calls.fault.empty());
  BOOST_TEST(outcome.code == 0);
  BOOST_TEST(outcome.times_said("fsdp-train: ") == 1u);
  BOOST_TEST(outcome.says(fault.what == "ENOSPC" ? "No space left on device"
                          : fault.what == "EIO"  ? "Input/output error"
                                                 : "Read-only file system"));
  BOOST_TEST((outcome.says("free some space") || outcome.says("choose another --save-dir")));
  BOOST_TEST(calls.exit_codes.size() == static_cast<std::size_t>(np));
  for (const auto& [rank, code] : calls.exit_codes) BOOST_TEST((code == (outcome.says("cannot be written") ? 2 : 1)));
  // The first save is still complete, and so is each save that was reported.
  const auto steps = complete_steps(folder / "saves");
  BOOST_TEST(steps.contains(1));
  for (const json& save : metrics(folder / "saves.jsonl", "save")) BOOST_TEST(steps.contains(save["step"].get<std::size_t>()));
  // Step 3 is not complete, unless its marker was already written and only the sync of its folder failed.
  const bool nothing_left = calls.fault.ends_with("sync " + (folder / "saves" / "step-00000003").string()) && steps.contains(3);
  BOOST_TEST((nothing_left || !steps.contains(3)));
  for (const std::size_t step : steps) {
    const Outcome verified = inspect(folder, "saves/step-0000000" + std::to_string(step) + " --verify");
    BOOST_TEST(verified.code == 0, verified.output);
  }
  const Outcome again = train(folder, np, "saves", 3, more);
  BOOST_TEST(again.code == 0, again.output);
  if (!nothing_left)
    BOOST_TEST(metrics(folder / "saves.jsonl", "restore").back()["step"].get<std::size_t>() == *steps.rbegin());
  BOOST_TEST(latest(folder / "saves") == 3u);
}

/// Returns `most` different numbers from 1 to `all` in order, or all of them if `most` is not less than `all`.
std::vector<long> sample(long all, std::size_t most, std::minstd_rand& dice) {
  std::vector<long> numbers;
  for (long n = 1; n <= all; ++n) numbers.push_back(n);
  if (most >= numbers.size()) return numbers;
  std::shuffle(numbers.begin(), numbers.end(), dice);
  numbers.resize(most);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_disk_that_fails_at_any_call_ends_the_run_and_loses_nothing) {
  const auto folder = fresh_folder();
  std::minstd_rand dice(arguments().seed);
  const bool all = arguments().rounds > 5;
  BOOST_TEST(train(folder, 3, "first", 1).code == 0);
  struct Row {
    std::string what, calls;
    int rank;
    std::size_t samples;
    long times;
  };
  for (const Row& row : {Row{"ENOSPC", writing_calls, 0, 5, 1},
                         {"ENOSPC", writing_calls, 1, 2, 1},
                         {"EIO", "sync", 0, 2, 1},
                         {"EIO", "sync", 1, 1, 1},
                         {"EROFS", all_calls, 0, 2, 1'000'000},
                         {"EROFS", "create", 1, 1, 1'000'000}}) {
    // Counts the calls of this rank. There is no page, because a run that cannot write it has not failed.
    fs::remove_all(folder / "saves");
    fs::copy(folder / "first", folder / "saves", fs::copy_options::recursive);
    Fault fault{row.calls, row.what, 0, row.times, row.rank};
    const Outcome dry = run(folder, mpirun(3, "fsdp-train", options(3, "saves", 3, "--no-report --save-interval-updates 1"),
                                           with(fault, folder, "saves")));
    BOOST_TEST_REQUIRE(dry.code == 0, dry.output);
    const Calls calls = read_calls(folder);
    // The last call of rank 0 removes the lock, after everything is saved. Its failure need not be reported.
    const long count = calls.of(row.rank) - (row.rank == 0 && row.calls == all_calls ? 1 : 0);
    BOOST_TEST_MESSAGE(row.what << " at " << row.calls << " on rank " << row.rank << ": " << count << " calls");
    for (const long at : sample(count, all ? static_cast<std::size_t>(count) : row.samples, dice)) {
      fault.at = at;
      fail_and_go_on(folder, 3, fault, at % 2 == 0 ? " --no-async-save" : "");
    }
  }
}

BOOST_AUTO_TEST_CASE(a_note_of_a_rank_that_fails_harms_no_save) {
  const auto folder = fresh_folder();
  const auto start = [&](const std::string& save_dir, const Fault& fault) {
    return run(folder,
               mpirun(3, "fsdp-train", options(3, save_dir, 5, "--save-interval-updates 2"), with(fault, folder, save_dir)));
  };
  for (const auto& [save_dir, fault] :
       {std::pair{"unwritten", Fault{"create", "ENOSPC", 1, 1'000'000, 2, "rank-00002-of-00003.written.tmp"}},
        {"unread", Fault{"stat", "EIO", 1, 1'000'000, 0, "rank-00001-of-00003.written"}}}) {
    const Outcome outcome = start(save_dir, fault);
    BOOST_TEST(!read_calls(folder).fault.empty());
    BOOST_TEST(outcome.code == 0, outcome.output);
    BOOST_CHECK(complete_steps(folder / save_dir) == (std::set<std::size_t>{2, 4, 5}));
    BOOST_TEST(metrics(folder / (std::string(save_dir) + ".jsonl"), "save").size() == 3u);
    BOOST_TEST(inspect(folder, std::string(save_dir) + " --verify").code == 0);
  }
}

BOOST_AUTO_TEST_CASE(a_save_that_goes_on_is_finished_however_a_run_ends_in_good_order) {
  const auto folder = fresh_folder();
  const Fault slow{"sync", "wait", 1, 1'000'000, -1};  // a save takes seconds, an update milliseconds
  const auto start = [&](const std::string& save_dir, std::size_t updates, const std::string& more,
                         const std::function<void(pid_t)>& meanwhile = {}) {
    return run(folder, mpirun(2, "fsdp-train", options(2, save_dir, updates, more), with(slow, folder, save_dir)), meanwhile);
  };
  const auto expect_saved = [&](const std::string& save_dir, const std::set<std::size_t>& updates) {
    BOOST_CHECK(complete_steps(folder / save_dir) == updates);
    for (const auto& entry : fs::directory_iterator(folder / save_dir))
      BOOST_TEST(entry.path().extension() != ".tmp", entry.path());
  };
  BOOST_TEST(start("done", 7, "--save-interval-updates 5").code == 0);
  expect_saved("done", {5, 7});
  const Outcome refused = start("refused", 9, "--save-interval-updates 1 --optimizer sgd --lr 1e30");
  BOOST_TEST(refused.code == 1, refused.output);
  BOOST_TEST(refused.says("update 2 is not finite"), refused.output);
  expect_saved("refused", {1});
  for (const bool by_signal : {true, false}) {
    const std::string name = by_signal ? "signal" : "file";
    const Outcome stopped = start(name, 1'000'000, "--save-interval-updates 5", [&](pid_t launcher) {
      wait_until([&] { return fs::exists(folder / name / "step-00000005.tmp"); });
      if (by_signal)
        kill(launcher, SIGUSR1);
      else
        std::ofstream(folder / name / "stop") << "";
    });
    BOOST_TEST(stopped.code == 75, stopped.output);
    const auto saved = complete_steps(folder / name);
    BOOST_TEST(saved.contains(5));
    BOOST_TEST(*saved.rbegin() == metrics(folder / (name + ".jsonl"), "train").back()["step"].get<std::size_t>());
    expect_saved(name, saved);
  }
}
