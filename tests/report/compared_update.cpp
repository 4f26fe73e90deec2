// Which part of an update was slower than predicted, and why it may be so, from recorded metrics.
#include "report/compared_update.hpp"

#include <boost/test/unit_test.hpp>

#include <fstream>

#include <nlohmann/json.hpp>

#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;
using nlohmann::json;

namespace {

/// A start line whose prediction is 100 ms: products 50 (10 of them again), attention 12 (2 again), other kernels 18 (3 again),
/// slowed 8, optimizer 5, waiting 5, host 2.
json predicted_start() {
  return {{"type", "start"},
          {"step", 10},
          {"save_folder", "/scratch/run"},
          {"predicted",
           {{"total", 0.1},
            {"products", 0.04},
            {"attention", 0.01},
            {"memory_bound", 0.015},
            {"recomputation", 0.015},
            {"recomputed_products", 0.01},
            {"recomputed_attention", 0.002},
            {"slowed", 0.008},
            {"optimizer", 0.005},
            {"exposed", 0.005},
            {"host", 0.002}}}};
}

json train(int step, double ms, const json& work = {}, const json& exposed = {}, const json& more = {}) {
  json line = {{"type", "train"}, {"step", step}, {"ms", ms}, {"comm_exposed_ms", exposed}, {"data_wait_ms", 1}};
  if (work.is_object()) line["work_ms"] = work;
  if (more.is_object()) line.update(more);
  return line;
}
/// As predicted, if `ms` is 100 and there is nothing else. What collectives slow is in the parts that they slow: x 1.1.
json on_cpu(double products = 55, double attention = 13.2) {
  return {{"products", products}, {"attention", attention}, {"other_kernels", 19.8}, {"optimizer", 5}};
}

std::string said(const json& start, const std::vector<json>& lines) {
  const TemporaryFolder folder;
  std::ofstream file(folder / "metrics.jsonl");
  file << start.dump() << '\n';
  for (const json& line : lines) file << line.dump() << '\n';
  file.close();
  return compare_with_prediction(read_runs(folder / "metrics.jsonl").at(0));
}

}  // namespace

BOOST_AUTO_TEST_CASE(an_update_as_predicted) {
  const json start = predicted_start();
  BOOST_TEST(said(start, {train(11, 900), train(12, 100, on_cpu(), 5), train(13, 100, on_cpu(), 5)}) ==
             "The median update took 100 ms, within 10 % of the predicted 100 ms.");
  // Parts may differ although their sum does not.
  BOOST_TEST(said(start, {train(12, 100, on_cpu(70, 0.2), 3)}) ==
             "The median update took 100 ms, within 10 % of the predicted 100 ms, but matrix products took 70 ms instead of 55 "
             "ms: perhaps the clock or the power limit is lower than assumed, or another program uses the processors.");
  // Updates that are not split, of a run on a GPU without a trace.
  BOOST_TEST(said(start, {train(11, 105), train(12, 107)}) ==
             "The median update took 107 ms, within 10 % of the predicted 100 ms.");
  BOOST_TEST(said({{"type", "start"}, {"step", 0}}, {train(1, 100)}) == "");  // nothing is predicted
  BOOST_TEST(said(start, {}) == "");
  BOOST_TEST(said(start, {train(12, 2500)}).starts_with("The median update took 2.5 s, 2400.0 % more than the predicted"));
}

BOOST_AUTO_TEST_CASE(each_part_has_its_reasons) {
  const json start = predicted_start();
  const auto slower = [&](const char* part, double ms) {
    json work = on_cpu();
    work[part] = work[part].get<double>() + ms;
    return said(start, {train(11, 500), train(12, 100 + ms, work, 5), train(13, 100 + ms, work, 5)});
  };
  BOOST_TEST(
      slower("products", 20) ==
      "The median update took 120 ms, 20.0 % more than the predicted 100 ms, above all because matrix products took 75 ms "
      "instead of 55 ms: perhaps the clock or the power limit is lower than assumed, or another program uses the "
      "processors.");
  CHECK_CONTAINS(slower("attention", 30),
                 "above all because attention took 43.2 ms instead of 13.2 ms: perhaps its rate is known");
  CHECK_CONTAINS(slower("other_kernels", 30),
                 "other kernels took 49.8 ms instead of 19.8 ms: perhaps its kernels are so short");
  CHECK_CONTAINS(slower("optimizer", 30), "norm and optimizer took 35 ms instead of 5 ms: perhaps its kernels are so short");
  CHECK_CONTAINS(said(start, {train(12, 140, on_cpu(), 5)}),
                 "other work of the host took 42 ms instead of 2 ms: perhaps the host");
  CHECK_CONTAINS(said(start, {train(12, 140, on_cpu(), 45)}),
                 "waiting for communication or other ranks took 45 ms instead of 5 ms: perhaps communication is slower than");
}

BOOST_AUTO_TEST_CASE(a_run_shows_why_it_waits) {
  const json start = predicted_start();
  const auto straggler = [](int rank, double ms) {
    return json{{"straggler", {{"rank", rank}, {"host", "n7"}, {"ms", ms}, {"median_ms", 100}}}};
  };
  CHECK_CONTAINS(said(start, {train(11, 140, on_cpu(), 45, straggler(3, 150)), train(12, 140, on_cpu(), 45, straggler(3, 130)),
                              train(13, 140, on_cpu(), 45, straggler(1, 101))}),
                 "instead of 5 ms: rank 3 on n7 computed 40.0 % longer than the median rank in 2 of 3 updates.");
  // A rank that is hardly slower than others is no reason, nor is one of an earlier start.
  CHECK_CONTAINS(said(start, {train(11, 140, on_cpu(), 45, straggler(3, 102))}), "perhaps communication");
  CHECK_CONTAINS(said(start, {train(11, 140, on_cpu(), 45, {{"data_wait_ms", 30}})}),
                 "instead of 5 ms: a rank waited 30 ms for its next batch in the median update.");
}

BOOST_AUTO_TEST_CASE(a_gpu_has_parts_only_in_traced_updates) {
  const json start = predicted_start(), traced = {{"other_kernels", 118}, {"optimizer", 5}};
  BOOST_TEST(
      said(start, {train(11, 130), train(12, 130, traced, 5), train(13, 131)}) ==
      "The median update took 130 ms, 30.0 % more than the predicted 100 ms, above all because the kernels of forward and "
      "backward took 118 ms instead of 88 ms: perhaps the clock or the power limit is lower than assumed, or another "
      "program uses the processors.");
  BOOST_TEST(said(start, {train(11, 130), train(12, 130)}) ==
             "The median update took 130 ms, 30.0 % more than the predicted 100 ms; its parts are unknown, because no update "
             "was traced (--trace).");
}

BOOST_AUTO_TEST_CASE(an_update_may_be_faster) {
  BOOST_TEST(
      said(predicted_start(), {train(12, 75, on_cpu(30), 5)}) ==
      "The median update took 75 ms, 25.0 % less than the predicted 100 ms, above all because matrix products took 30 ms "
      "instead of 55 ms: the rates of the prediction are too low for this machine.");
}
