// fsdp-bench tuning: its memory is that of fsdp-plan, batch sizes double until one does not fit, and it recommends the
// fastest measured setting.
#include <algorithm>
#include <map>
#include <utility>

#include <boost/test/unit_test.hpp>

#include "jobs/job.hpp"

using namespace fsdp::test;

namespace {

Outcome plan(const fs::path& folder, const std::string& options) {
  return run(folder, split(std::string(FSDP_BIN) + "/fsdp-plan --arch transformer_lm_gpt2_tiny " + options));
}
Outcome tune(const fs::path& folder, const std::string& options) {
  return run(folder, mpirun(2, "fsdp-bench", split("tuning --arch transformer_lm_gpt2_tiny --steps 1 " + options)));
}

/// Returns the report of a program that exits with `code`. If `code` is not 0, the launcher prints a message after it.
json report_of(const Outcome& outcome, int code = 0) {
  BOOST_TEST_REQUIRE(outcome.code == code, outcome.output);
  if (code == 0) return json::parse(outcome.output);
  const std::size_t begin = outcome.output.find('{');
  BOOST_TEST_REQUIRE(begin != std::string::npos, outcome.output);
  return json::parse(outcome.output.substr(begin, outcome.output.find('\n', begin) - begin));
}

}  // namespace

BOOST_AUTO_TEST_CASE(memory_is_that_of_the_plan) {
  const auto folder = fresh_folder();
  // Nothing fits, so nothing is measured.
  const std::string sizes = " --batch-size 3 --tokens-per-sample 1024 --threads 1 --decoder-layers 3";
  const json report = report_of(tune(folder, "--json --memory-limit 1MiB" + sizes), 1);
  const json table = report_of(plan(folder, "--json --ranks-per-node 2 --save-interval-updates 1" + sizes));
  std::size_t compared = 0;
  for (const json& setting : report["settings"])
    for (const json& row : table["strategies"])
      if (row["strategy"] == setting["strategy"]) {
        const json& variant = row[setting["checkpoint_activations"].get<bool>() ? "recomputing" : "keeping"];
        BOOST_TEST(variant["memory"]["total"] == setting["memory_bytes"], setting.dump());
        BOOST_TEST(setting["batch_size"] == 3);
        BOOST_TEST(setting["fits"] == false);
        ++compared;
      }
  BOOST_TEST(compared == 8u);  // with two ranks on one node, hybrid is the same as full
  BOOST_TEST(report["fastest"].is_null());
}

BOOST_AUTO_TEST_CASE(batches_double_until_one_does_not_fit) {
  const auto folder = fresh_folder();
  const std::string options = "--tokens-per-sample 16 --sharding-strategy grad-op --memory-limit 160MiB";
  const json report = report_of(tune(folder, "--json " + options));
  const std::size_t limit = std::size_t{160} << 20;
  BOOST_TEST(report["memory_limit_bytes"] == limit);
  std::map<bool, std::size_t> next = {{false, 1}, {true, 1}};  // the next batch size, without and with recomputation
  std::map<bool, std::size_t> too_large;
  double fastest = 0;
  for (const json& setting : report["settings"]) {
    const bool recompute = setting["checkpoint_activations"], fits = setting["fits"];
    const std::size_t batch = setting["batch_size"];
    BOOST_TEST_CONTEXT(setting.dump()) {
      BOOST_TEST(setting["strategy"] == "grad-op");
      BOOST_TEST((batch == next[recompute] || (!fits && batch > next[recompute])));  // sizes in between fit, but do not pay
      next[recompute] = 2 * batch;
      BOOST_TEST(fits == (setting["memory_bytes"].get<std::size_t>() <= limit));
      BOOST_TEST(fits == setting["ms"].is_number());
      if (fits) fastest = std::max(fastest, setting["tokens_per_second"].get<double>());
      if (!fits) too_large[recompute] = batch;
    }
  }
  BOOST_TEST(too_large.size() == 2u);  // the last batch size of each
  BOOST_TEST(report["fastest"]["tokens_per_second"].get<double>() == fastest);
}

BOOST_AUTO_TEST_CASE(what_it_advises_is_a_command_line) {
  const auto folder = fresh_folder();
  const Outcome outcome = tune(folder, "--tokens-per-sample 16 --sharding-strategy optim --memory-limit 145MiB");
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
  BOOST_TEST(outcome.says("does not fit"), outcome.output);
  BOOST_TEST(outcome.says("recomputing blocks: under optim, with batch size "), outcome.output);
  const std::string words = "the fastest that fits: ";
  const std::size_t at = outcome.output.find(words);
  BOOST_TEST_REQUIRE(at != std::string::npos, outcome.output);
  const std::size_t begin = at + words.size();
  const Outcome planned =
      plan(folder, "--print-config " + outcome.output.substr(begin, outcome.output.find('\n', begin) - begin));
  BOOST_TEST(planned.code == 0, planned.output);
  BOOST_TEST(planned.says("sharding-strategy = optim"), planned.output);
  const Outcome none = tune(folder, "--tokens-per-sample 16 --memory-limit 1MiB");
  BOOST_TEST(none.code == 1, none.output);
  BOOST_TEST(none.says("fsdp-bench: nothing fits 1.00 MiB"), none.output);
}
