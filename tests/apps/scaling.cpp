// fsdp-bench scaling: what it makes of the figures of runs.
#include <boost/test/unit_test.hpp>

#include <nlohmann/json.hpp>

#include "fsdp-bench/scaling.hpp"

using namespace fsdp;

namespace {

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

ScalingPoint point(int nodes, std::size_t micro_batches, double sent_bytes, double ms = 0, double compute_ms = 0,
                   double tokens_per_second = 0) {
  ScalingPoint made;
  made.layout = {nodes, 4};
  made.micro_batches = micro_batches;
  made.sent_bytes = sent_bytes;
  made.ms = ms, made.compute_ms = compute_ms, made.tokens_per_second = tokens_per_second;
  return made;
}

/// Runs on 1, 2 and 4 nodes.
Scaling example() {
  Scaling scaling;
  scaling.model = "gpt2", scaling.device = "H100", scaling.precision = "bf16", scaling.strategy = "full";
  scaling.tokens_of_rank = 1000;
  scaling.weak = {point(1, 1, 8e9, 100, 100, 40e3), point(2, 1, 4e9, 110, 100, 72e3), point(4, 1, 6e9, 120, 100, 133e3)};
  scaling.strong = {point(1, 4, 8e9, 400, 400, 40e3), point(2, 2, 4e9, 215, 200, 74e3), scaling.weak.back()};
  scaling.asked = {point(64, 1, 8e9)};
  predict_all(scaling);
  return scaling;
}

}  // namespace

BOOST_AUTO_TEST_CASE(counts_of_nodes) {
  BOOST_TEST(counts_up_to(1) == (std::vector<int>{1}), boost::test_tools::per_element());
  BOOST_TEST(counts_up_to(8) == (std::vector<int>{1, 2, 4, 8}), boost::test_tools::per_element());
  BOOST_TEST(counts_up_to(6) == (std::vector<int>{1, 2, 4, 6}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(predictions_follow_the_bytes_of_the_plan) {
  // 100 ms of computing, and 10 ms that are exposed for 4e9 bytes.
  BOOST_TEST(*predict(point(2, 1, 4e9, 110, 100), point(4, 1, 6e9)) == 115);
  BOOST_TEST(*predict(point(2, 2, 4e9, 210, 200), point(4, 1, 4e9)) == 110);       // half of the micro-batches
  BOOST_TEST(*predict(point(2, 1, 4e9, 99, 100), point(4, 1, 8e9)) == 100);        // nothing is exposed
  BOOST_TEST(!predict(point(1, 1, 4e9, 110, 100), point(2, 1, 4e9)).has_value());  // one node says nothing of the network
  BOOST_TEST(!predict(point(2, 1, 4e9), point(4, 1, 4e9)).has_value());
  const Scaling scaling = example();
  BOOST_TEST(!scaling.weak[1].predicted_ms.has_value());
  BOOST_TEST(*scaling.weak[2].predicted_ms == 115);
  BOOST_TEST(*scaling.asked[0].predicted_ms == 100 + 20 * 8.0 / 6);
}

BOOST_AUTO_TEST_CASE(results_of_runs) {
  Scaling scaling;
  ScalingPoint read;
  read.layout = {2, 4};
  const std::string json =
      R"({"arch":"gpt2","device":"H100","precision":"bf16","strategy":"full","ms":120,"fake_ms":100,"tokens_per_second":5,)"
      R"("joules_per_token":0.5,"threads":8,"processors":8,"comm":"NCCL"})";
  read_result({.exit_code = 0, .out = "srun: queued\n" + json + "\n", .err = "", .seconds = 3}, 60, read, scaling);
  BOOST_TEST(read.problem == "");
  BOOST_TEST(read.exposed_share() == 1 - 100.0 / 120);
  BOOST_TEST(*read.joules_per_token == 0.5);
  BOOST_TEST(!scaling.shares_cores);
  std::string shared = json;
  shared.replace(shared.find("\"threads\":8"), 11, "\"threads\":9");
  read_result({.exit_code = 0, .out = shared, .err = "", .seconds = 3}, 60, read, scaling);
  BOOST_TEST(scaling.shares_cores);
  BOOST_TEST(sentences_of(scaling).empty());
  for (const auto& [end, why] :
       {std::pair(ChildEnd{.exit_code = 1, .out = "", .err = "fsdp-bench: nothing fits\n", .seconds = 3},
                  "it failed: nothing fits"),
        std::pair(ChildEnd{.exit_code = 137, .out = "", .err = "", .seconds = 61}, "raise --run-limit if it is only slow"),
        std::pair(ChildEnd{.exit_code = 0, .out = "{\"ms\":\"x\"}", .err = "", .seconds = 3}, "another object")}) {
    ScalingPoint failed;
    read_result(end, 60, failed, scaling);
    BOOST_TEST(has(failed.problem, why), failed.problem);
  }
}

BOOST_AUTO_TEST_CASE(efficiency_and_reports) {
  Scaling scaling = example();
  BOOST_TEST(*efficiency(scaling.weak, 2) == 133.0 / 40 / 4);
  const std::string text = describe(scaling);
  BOOST_TEST(has(text, "64 nodes: 126.7 ms for an update of 256000 tokens"), text);
  BOOST_TEST(!has(text, "shared processor cores"));
  const std::string csv = to_csv(scaling);
  BOOST_TEST(has(csv, "weak,4,16,1,16000,120,115,133000,0.83125,0.166667,0.833333,\n"), csv);
  BOOST_TEST(std::count(csv.begin(), csv.end(), '\n') == 7);
  const std::vector<std::string> sentences = sentences_of(scaling);
  BOOST_REQUIRE(sentences.size() == 3u);
  BOOST_TEST(
      sentences[0] ==
      "Strong scaling: with 16000 tokens per update, the training throughput of gpt2 grows from 40000 tokens/s on 1 node to "
      "133000 tokens/s on 4 nodes (a speedup of 3.33, parallel efficiency 83 %); 16.7 % of an update on 4 nodes waits for "
      "communication.");
  scaling.weak[1].problem = "it failed: <b>";
  const std::string page = scaling_page(scaling);
  BOOST_TEST(has(page, "2 nodes (weak): it failed: &lt;b&gt;"), page);
  BOOST_TEST((!has(page, "<link") && !has(page, "src=")));
  BOOST_TEST(has(page, "at 2 numbers of nodes (1, 4)"), page);
  scaling.weak[0].problem = "it failed";
  BOOST_TEST(has(describe(scaling), "1 node (weak): it failed"));
  BOOST_TEST(!efficiency(scaling.weak, 2).has_value());
  BOOST_TEST(to_json(scaling)["weak"][0]["ms"].is_null());
}
