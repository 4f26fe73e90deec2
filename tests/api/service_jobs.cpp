// Jobs of docs/tutorial/fsdp_loop.cpp: killed during background saves, stopped by signals, resumed at other numbers of ranks.
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <random>

#include "jobs/fault.hpp"
#include "support/golden.hpp"

using namespace fsdp::test;

namespace {

const std::string tokens = (golden_folder("llama-gqa") / "train.bin").string();

std::vector<std::string> loop(int ranks, int updates, const std::vector<std::string>& before = {}) {
  return mpirun(ranks, "fsdp_loop", {tokens, std::to_string(updates)}, before);
}

/// The losses of the updates, by the last start that ran each.
std::map<int, double> losses_in(const fs::path& folder) {
  std::map<int, double> losses;
  for (const json& line : metrics(folder / "metrics.jsonl", "train")) losses[line["step"]] = line["loss"];
  return losses;
}

const std::map<int, double>& undisturbed(const fs::path& folder) {
  static const std::map<int, double> losses = [&] {
    const Outcome outcome = run(folder, loop(2, 25));
    BOOST_TEST(outcome.code == 0, outcome.output);
    return losses_in(folder);
  }();
  BOOST_TEST_REQUIRE(losses.size() == 25u);
  return losses;
}

}  // namespace

BOOST_AUTO_TEST_CASE(no_kill_during_a_background_save_loses_a_checkpoint) {
  const fs::path folder = fresh_folder(), quiet = folder / "quiet";
  fs::create_directories(quiet);
  const auto& expected = undisturbed(quiet);
  std::mt19937 random(38);
  for (const int rank : {0, 1}) {
    const fs::path here = folder / std::to_string(rank);
    fs::create_directories(here);
    // A call of the second save or of the third.
    const Fault fault{.at = rank == 0 ? 140 + static_cast<long>(random() % 150) : 62 + static_cast<long>(random() % 100),
                      .rank = rank};
    const Outcome outcome = run(here, loop(2, 25, with(fault, here, "checkpoints")));
    BOOST_TEST_CONTEXT("kill of rank " << rank << " at its call " << fault.at << "\n" << outcome.output) {
      BOOST_TEST(outcome.code != 0);
      const Outcome next = run(here, loop(2, 25));
      BOOST_TEST(next.code == 0, next.output);
      BOOST_TEST(metrics(here / "metrics.jsonl", "start").back()["step"] >= 10);
      BOOST_TEST((losses_in(here) == expected));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_background_save_that_fails_ends_the_job) {
  const fs::path folder = fresh_folder();
  const Fault full{.calls = "write", .what = "ENOSPC", .at = 1, .times = 1000, .rank = 1};
  const Outcome outcome = run(folder, loop(2, 25, with(full, folder, "checkpoints")));
  BOOST_TEST(outcome.code == 1, outcome.output);
  BOOST_TEST(outcome.times_said("could not be written") == 1u, outcome.output);
  BOOST_TEST(outcome.says("choose another folder"), outcome.output);
  BOOST_TEST(fs::is_empty(folder / "checkpoints"));
}

BOOST_AUTO_TEST_CASE(a_signal_to_one_rank_stops_all) {
  const fs::path folder = fresh_folder(), quiet = folder / "quiet", here = folder / "stopped";
  fs::create_directories(quiet), fs::create_directories(here);
  const auto& expected = undisturbed(quiet);
  for (const char* signal : {"TERM", "USR1"}) {
    const std::size_t before = losses_in(here).size();
    // Rank 1 signals itself once the run has some updates.
    const std::string script =
        "\"$0\" \"$@\" & program=$!; [ \"$OMPI_COMM_WORLD_RANK\" = 1 ] && { until [ \"$(cat "
        "metrics.jsonl 2>&1 | grep -c '\"train\"')\" -ge " +
        std::to_string(before + 4) + " ] || ! kill -0 $program; do sleep 0.02; done; kill -" + signal +
        " $program; }; wait $program";
    const Outcome outcome = run(here, loop(2, 100000, {"bash", "-c", script}));
    BOOST_TEST(outcome.code == 75, outcome.output);
    BOOST_TEST(outcome.times_said(std::string("(SIG") + signal + ")") == 1u, outcome.output);
    BOOST_TEST(losses_in(here).size() >= before + 4);
  }
  const auto found = losses_in(here);
  for (const auto& [step, loss] : expected)
    if (const auto one = found.find(step); one != found.end()) BOOST_TEST(one->second == loss, "step " << step);
}

BOOST_AUTO_TEST_CASE(a_signal_to_one_rank_stops_a_program_with_its_own_mpi) {
  const Outcome outcome = run(fresh_folder(), mpirun(2, "test_api_program", {"signal_by_itself"}));
  BOOST_TEST(outcome.code == 75, outcome.output);
  BOOST_TEST(outcome.says("stops: SIGTERM"), outcome.output);
}

BOOST_AUTO_TEST_CASE(the_destructor_waits_for_a_slow_rank) {
  const fs::path folder = fresh_folder();
  const Fault slow{.calls = "sync", .what = "wait", .at = 1, .times = 100, .rank = 1};
  const Outcome outcome = run(folder, mpirun(2, "test_api_program", {"unfinished_save"}, with(slow, folder, "checkpoints")));
  BOOST_TEST(outcome.code == 0, outcome.output);
  BOOST_TEST(!outcome.says("warning"), outcome.output);
  BOOST_TEST(fs::exists(folder / "checkpoints" / "step-00000001" / "complete.json"));
}

BOOST_AUTO_TEST_CASE(another_number_of_ranks_continues_with_the_same_examples) {
  const fs::path folder = fresh_folder(), quiet = folder / "quiet", here = folder / "here";
  fs::create_directories(quiet), fs::create_directories(here);
  const auto& expected = undisturbed(quiet);
  int updates = 0;
  for (const int ranks : {3, 2}) {
    updates += 10;
    const Outcome outcome = run(here, loop(ranks, updates));
    BOOST_TEST(outcome.code == 0, outcome.output);
  }
  const auto found = losses_in(here);
  BOOST_TEST(found.size() == 20u);
  for (const auto& [step, loss] : found) BOOST_TEST(std::abs(loss - expected.at(step)) < 1e-5, "step " << step);
  const Outcome shown = run(folder, {FSDP_INSPECT, (here / "checkpoints").string()});
  BOOST_TEST(shown.says("data of the program: tokens ("), shown.output);
}
