// Runs that are resumed at another number of ranks train on the same batches, and with --invariant have the same bits.
#include <boost/test/unit_test.hpp>

#include "jobs/job.hpp"
#include "support/golden.hpp"

using namespace fsdp::test;

namespace {

std::vector<std::string> options(const std::string& save_dir, int updates, const std::string& more) {
  auto words = split(
      "--arch llama-3-8b --vocab-size 211 --decoder-layers 2 --decoder-embed-dim 48 --decoder-attention-heads 4 "
      "--decoder-kv-heads 2 --decoder-ffn-embed-dim 96 --tokens-per-sample 16 --lr 3e-3 --clip-norm 1 "
      "--save-dir " +
      save_dir + " --log-file " + save_dir + ".jsonl --max-update " + std::to_string(updates) + " " + more);
  // Unless `more` sets them.
  for (const auto& [option, value] : {std::pair("--total-batch-size", "16"), {"--batch-size", "2"}, {"--threads", "1"}})
    if (more.find(option) == std::string::npos) words.insert(words.end(), {option, value});
  words.push_back((golden_folder("gpt2-tied") / "train.bin").string());
  return words;
}

Outcome train(const fs::path& folder, int np, const std::string& save_dir, int updates, const std::string& more = "") {
  return run(folder, mpirun(np, "fsdp-train", options(save_dir, updates, more)));
}

void expect_done(const Outcome& outcome) { BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output); }

/// Returns the loss and the gradient norm of each update.
std::vector<std::pair<double, double>> updates_of(const fs::path& folder, const std::string& save_dir) {
  std::vector<std::pair<double, double>> values;
  for (const json& line : metrics(folder / (save_dir + ".jsonl"), "train")) {
    BOOST_TEST_REQUIRE(line["step"] == values.size() + 1);
    values.emplace_back(line["loss"], line["gnorm"]);
  }
  return values;
}

}  // namespace

BOOST_AUTO_TEST_CASE(an_invariant_run_has_the_same_bits_when_it_is_resized) {
  const auto folder = fresh_folder();
  const std::string more = "--invariant --shuffle --dropout 0.1 --valid " +
                           (golden_folder("gpt2-tied") / "train.bin").string() + " --validate-interval-updates 4 ";
  for (const std::string precision : {"fp32", "bf16"}) {
    const std::string all = more + "--precision " + precision, straight = "straight-" + precision, moved = "moved-" + precision;
    expect_done(train(folder, 4, straight, 8, all));
    struct Part {
      int ranks, updates;
      const char* more;
    };
    for (const Part& part : {Part{2, 2, " --sharding-strategy grad-op"}, Part{1, 4, " --checkpoint-activations"},
                             Part{8, 6, " --sharding-strategy hybrid --shard-group-size 2"}, Part{4, 8, " --wrap-policy none"}})
      expect_done(train(folder, part.ranks, moved, part.updates, all + part.more));
    BOOST_CHECK(updates_of(folder, moved) == updates_of(folder, straight));
    const auto losses = [&](const std::string& name) {
      std::vector<double> values;
      for (const json& line : metrics(folder / (name + ".jsonl"), "valid"))
        if (line["step"] == 8) values.push_back(line["loss"]);
      return values;
    };
    BOOST_TEST(losses(moved).size() == 1u);
    BOOST_TEST(losses(moved) == losses(straight), boost::test_tools::per_element());
    const Outcome same = run(folder, split(std::string(FSDP_BIN) + "/fsdp-inspect " + straight + " " + moved));
    BOOST_TEST(same.says("are the same, bit for bit"), same.output);
  }
}

BOOST_AUTO_TEST_CASE(a_total_batch_stays_at_any_number_of_ranks) {
  const auto folder = fresh_folder();
  const std::string more = "--shuffle --dropout 0.1";
  expect_done(train(folder, 4, "straight", 6, more));
  for (const auto& [ranks, updates] : {std::pair(2, 2), {1, 3}, {8, 5}, {4, 6}})
    expect_done(train(folder, ranks, "moved", updates, more));
  const auto straight = updates_of(folder, "straight"), moved = updates_of(folder, "moved");
  BOOST_TEST_REQUIRE(moved.size() == straight.size());
  for (std::size_t u = 0; u < straight.size(); ++u) BOOST_TEST(std::abs(moved[u].first - straight[u].first) < 1e-5);
  const Outcome three = train(folder, 3, "moved", 8, more);  // 16 sequences are not a multiple of 3 x 2
  BOOST_TEST(three.code == 2);
  BOOST_TEST(three.says("--total-batch-size 16 is not a multiple of --batch-size 2 x 3 ranks = 6"), three.output);
  BOOST_TEST(three.says("choose another batch size or number of ranks"), three.output);
  const Outcome smaller = train(folder, 2, "moved", 8, more + " --total-batch-size 4");
  BOOST_TEST(smaller.code == 0);
  BOOST_TEST(smaller.says("warning: the run resumes after update 6 with changed options: --total-batch-size is 4 now and "
                          "was 16; to keep the sequences of an update at any number of ranks, give --total-batch-size"),
             smaller.output);
}

BOOST_AUTO_TEST_CASE(what_invariant_contradicts) {
  const auto folder = fresh_folder();
  const Outcome three = train(folder, 3, "none", 1, "--invariant --total-batch-size 18");
  BOOST_TEST(three.code == 2);
  BOOST_TEST(three.says("3 ranks are not a power of two"), three.output);
  BOOST_TEST(three.says("leave out --invariant"), three.output);
  for (const std::string other : {"--accumulate-unsharded", "--grad-dtype bf16", "--sum-order library"}) {
    const Outcome both = train(folder, 2, "none", 1, "--invariant " + other);
    BOOST_TEST(both.code == 2);
    BOOST_TEST(both.says("--invariant contradicts " + other), both.output);
  }
}

// With two threads the bits differ from those with one, so the run prints a warning first.
BOOST_AUTO_TEST_CASE(other_threads_are_noticed) {
  const auto folder = fresh_folder();
  expect_done(train(folder, 1, "saves", 1, "--invariant"));
  const Outcome more = train(folder, 1, "saves", 2, "--invariant --threads 2");
  expect_done(more);
  BOOST_TEST(more.says("warning: the results will not have the same bits as those of a run that was never stopped: matrix "
                       "products were computed by oneDNN"),
             more.output);
  BOOST_TEST(more.says("1 thread per rank before"), more.output);
  BOOST_TEST(more.says("2 threads per rank now"), more.output);
}

// Every rank maps the memory of every other one, so mappings and messages of the start grow with the square of the ranks. It
// takes 20 seconds of two cores, so jobs.many_ranks runs it by name.
BOOST_AUTO_TEST_CASE(sixty_four_ranks_on_one_machine_resume_as_forty_eight, *boost::unit_test::disabled()) {
  const auto folder = fresh_folder();
  const std::string more = "--batch-size 1 --total-batch-size 192";
  expect_done(train(folder, 2, "straight", 3, more));
  for (const auto& [ranks, updates] : {std::pair(64, 2), {48, 3}}) {
    const Outcome outcome = train(folder, ranks, "moved", updates, more);
    expect_done(outcome);
    BOOST_TEST(outcome.says("shared memory, " + std::to_string(ranks) + " ranks"), outcome.output);
  }
  const auto straight = updates_of(folder, "straight"), moved = updates_of(folder, "moved");
  BOOST_TEST_REQUIRE(moved.size() == 3u);
  for (std::size_t u = 0; u < straight.size(); ++u) BOOST_TEST(std::abs(moved[u].first - straight[u].first) < 1e-5);
}
