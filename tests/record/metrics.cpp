// The metrics file: one JSON object per line, numbers that read back exactly, and a file that survives a killed run.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <sstream>
#include <vector>

#include <nlohmann/json.hpp>

#include "options/options.hpp"
#include "record/metrics.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

std::vector<nlohmann::json> lines_of(const std::filesystem::path& path) {
  std::istringstream text(read_file(path));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

struct Printed {
  explicit Printed(const std::filesystem::path& path) : file(std::fopen(path.c_str(), "w")) {}
  ~Printed() { std::fclose(file); }
  std::FILE* file;
};

}  // namespace

BOOST_AUTO_TEST_CASE(every_event_is_a_line) {
  const TemporaryFolder folder;
  const nlohmann::json options = {{"lr", 0.1}, {"data", "a \"quoted\" name"}};
  {
    const Printed out(folder / "err");
    Metrics metrics(folder / "m.jsonl", 2, true, out.file);
    metrics.start({"0.1 (abc)", 4, "full", &options, 124439808, 1000, 10, 13, 2, NodeTraffic{2, 5000, 3000}});
    const WorkTimes times = {.gemm = 0.2, .other_kernels = 0.1, .exposed = 0.0625, .optimizer = 0.01};
    for (std::uint64_t step = 11; step <= 13; ++step)
      metrics.train({step, std::nextafter(2.3412, 3), 1.9e-3, 0.1f, 2.5, step * 512, 9930.5, 412.25, std::nullopt, 1.5, times});
    for (const double seconds : {1, 11, 12, 23}) metrics.validating(13, static_cast<std::size_t>(seconds), 40, seconds);
    metrics.valid({13, 2.5, 511, 20, 0.25, 1.75});
    metrics.save({13, "checkpoints/step-00000013", 4000, 1200, 300});
    metrics.restore(10, "checkpoint x", 5, 1000, 3000);
    metrics.stop(13, "SIGUSR1");
    metrics.end({13, 6656, 9000, 4096, "continue with the same command"});
  }
  const auto lines = lines_of(folder / "m.jsonl");
  std::vector<std::string> types;
  for (const auto& line : lines) types.push_back(line.at("type"));
  BOOST_TEST(types == (std::vector<std::string>{"start", "train", "train", "train", "valid", "save", "restore", "stop", "end"}),
             boost::test_tools::per_element());
  BOOST_TEST(lines[0].at("options").at("data") == "a \"quoted\" name");
  BOOST_TEST(lines[0].at("parameters") == 124439808u);
  BOOST_TEST(lines[0].at("shard_ranks") == 2);
  BOOST_TEST(lines[0].at("nodes") == 2);
  BOOST_TEST(lines[0].at("update_bytes_sent") == 5000u);
  BOOST_TEST(lines[0].at("update_bytes_out_of_node") == 3000u);
  for (const auto& line : lines) BOOST_TEST(line.at("process_s").get<double>() > 0);
  const auto& train = lines[1];
  for (const char* field : {"step", "loss", "max_loss", "ppl", "lr", "gnorm", "tokens", "wps", "ms", "mfu", "loss_scale",
                            "comm_exposed_ms", "mem_peak_bytes"})
    BOOST_TEST(train.contains(field), field);
  BOOST_TEST(train.at("loss").get<double>() == std::nextafter(2.3412, 3));  // to the last bit
  BOOST_TEST(train.at("gnorm").get<double>() == static_cast<double>(0.1f));
  BOOST_TEST(train.at("mfu").is_null());
  BOOST_TEST(train.at("comm_exposed_ms") == 62.5);
  BOOST_TEST(train.at("work_ms").dump() == "{\"optimizer\":10.0,\"other_kernels\":100.0,\"products\":200.0}");
  BOOST_TEST((lines[4].at("mean_token_accuracy") == 0.25 && lines[4].at("entropy") == 1.75 && lines[4].at("best") == false));
  BOOST_TEST(!train.contains("entropy"));  // not of every program
  BOOST_TEST(lines[5].at("bytes") == 4000u);

  const std::string text = read_file(folder / "err");
  CHECK_CONTAINS(text, "step 11/13 ");  // the first of the run
  CHECK_CONTAINS(text, "\nvalidating after step 13, batch 11 of 40\nvalidating after step 13, batch 23 of 40\nvalid 13 ");
  CHECK_CONTAINS(text, "step 12/13  loss 2.3412  gnorm 0.100  lr 1.90e-03     412 ms  9.93 k tok/s  eta 412 ms\n");
  CHECK_CONTAINS(text, "step 13/13 ");  // the last
  const TrainMetrics masked = {.step = 5, .tokens_per_second = 993.05, .ms = 412, .mfu = 0.3, .positions_per_second = 9930.5};
  CHECK_CONTAINS(step_line(masked, 5, 0, true), "  9.93 k tok/s (   993 in the loss)  mfu 30.0 %");
  CHECK_CONTAINS(text, "stopping after step 13 (SIGUSR1)");
  CHECK_CONTAINS(text, "continue with the same command\n");
}

BOOST_AUTO_TEST_CASE(columns_are_aligned_whatever_the_numbers_are) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  const std::pair<std::string, double> score = {"score", -0.00012345};
  const std::string usual = step_line({.step = 120,
                                       .loss = 2.3412,
                                       .learning_rate = 1.9e-3,
                                       .gradient_norm = 0.532,
                                       .tokens_per_second = 9930.5,
                                       .ms = 412.3,
                                       .mfu = 0.195,
                                       .numbers = {&score, 1}},
                                      100000, 60, true);
  BOOST_TEST(
      usual ==
      "step    120/100000  loss 2.3412  gnorm 0.532  lr 1.90e-03     412 ms  9.93 k tok/s (9.93 k in the loss)  mfu 19.5 %  "
      "score -0.0001234  eta 60.0 s");
  const auto places = [](const std::string& line) {  // of the names, and of the units
    std::vector<std::size_t> all;
    for (const char* name :
         {"/100000 ", " loss ", " gnorm ", " lr ", " ms ", " tok/s (", " in the loss)", " mfu ", " % ", " score ", " eta "})
      all.push_back(line.find(name));
    return all;
  };
  for (const double x : {0.0, 3e-9, 0.4, 1.0, 9.99996, 11.0312, 99.97, 345.6, 12345.6, 999999.0, 3e9, 1e30, nan, infinity}) {
    const std::pair<std::string, double> number = {"score", x};
    const std::string line = step_line({.step = x > 1 && x < 1e5 ? static_cast<std::uint64_t>(x) : 7,
                                        .loss = x,
                                        .learning_rate = x < 1e9 ? x : 0,
                                        .gradient_norm = x,
                                        .tokens_per_second = x < 1e10 ? x : 0,
                                        .ms = x,
                                        .mfu = x < 1.2 ? x : 0.5,
                                        .positions_per_second = x < 1e10 ? 3 * x : 0,
                                        .numbers = {&number, 1}},
                                       100000, 60, true);
    BOOST_TEST(places(line) == places(usual), boost::test_tools::per_element());
    BOOST_TEST_MESSAGE(line);
  }
  CHECK_CONTAINS(step_line({.step = 1, .loss = 11.03127, .gradient_norm = 12.2021, .mfu = {}}, 1, 0),
                 "  loss 11.031  gnorm 12.20  ");
  CHECK_CONTAINS(step_line({.step = 1, .loss = 3e-5, .gradient_norm = 2e6, .mfu = {}}, 1, 0), "  loss  3e-05  gnorm 2e+06  ");
}

BOOST_AUTO_TEST_CASE(a_warning_is_printed_once_and_again_at_the_end) {
  const TemporaryFolder folder;
  {
    const Printed out(folder / "err");
    Metrics metrics({}, 1, true, out.file, LogFormat::automatic, with_option_names);
    metrics.warn("the data are \x1b odd; use a smaller `micro-batch`");
    metrics.warn("the data are \x1b odd; use a smaller `micro-batch`");
    metrics.warn("something long: " + std::string(100, 'x') + "; do something else");
    metrics.end({7, 3500, 0, 0, "done"});
  }
  const std::string first = "the data are  odd; use a smaller --batch-size\n",
                    second = "something long: ", third = std::string(100, 'x') + ";", fourth = "do something else\n";
  BOOST_TEST(read_file(folder / "err") == "warning: " + first + "warning: " + second + third + " " + fourth +
                                              "end of step 7: 3.50 k tokens\nwarnings of this run:\n  " + first + "  " +
                                              second + third + "\n  " + fourth + "done\n");
}

BOOST_AUTO_TEST_CASE(a_resumed_run_appends_below_a_line_that_was_cut_off) {
  const TemporaryFolder folder;
  write_file(folder / "m.jsonl", "{\"type\":\"start\"}\n{\"type\":\"tra");
  const Printed out(folder / "err");
  Metrics metrics(folder / "m.jsonl", 1, true, out.file);
  metrics.take_file();
  metrics.stop(1, "x");
  const std::string text = read_file(folder / "m.jsonl");
  BOOST_TEST(text.starts_with("{\"type\":\"start\"}\n{\"type\":\"tra\n{"));
  BOOST_TEST(text.ends_with("}\n"));
}

BOOST_AUTO_TEST_CASE(numbers_that_are_not_finite_stay_valid_json) {
  const TemporaryFolder folder;
  const Printed out(folder / "err");
  TrainMetrics m;
  m.step = 1;
  m.loss = std::numeric_limits<double>::quiet_NaN();
  m.gradient_norm = std::numeric_limits<double>::infinity();
  Metrics(folder / "m.jsonl", 1, true, out.file).train(m);
  const auto line = lines_of(folder / "m.jsonl").at(0);
  BOOST_TEST(line.at("loss").is_null());
  BOOST_TEST(line.at("gnorm").is_null());
}

BOOST_AUTO_TEST_CASE(people_see_what_they_have_chosen) {
  const auto printed = [](LogFormat format) {
    const TemporaryFolder folder;
    {
      const Printed out(folder / "err");
      Metrics metrics(folder / "m.jsonl", 2, true, out.file, format);
      StartMetrics start;
      start.max_step = 3;
      metrics.start(start);
      TrainMetrics update;
      update.loss = 0.5;
      for (update.step = 1; update.step <= 3; ++update.step) metrics.train(update);
      metrics.valid({.step = 3, .loss = 0.25, .tokens = 7});
      metrics.say("said");
    }
    BOOST_TEST(lines_of(folder / "m.jsonl").size() == 5u);  // independent of the printed lines
    return read_file(folder / "err");
  };
  BOOST_TEST(printed(LogFormat::none) == "said\n");
  BOOST_TEST(printed(LogFormat::simple) == printed(LogFormat::automatic));
  std::istringstream json(printed(LogFormat::json));
  std::vector<std::string> lines;
  for (std::string line; std::getline(json, line);) lines.push_back(line);
  BOOST_REQUIRE(lines.size() == 5u);  // the first, the second, and the last step
  BOOST_TEST(nlohmann::json::parse(lines[1]).at("step") == 2);
  BOOST_TEST(nlohmann::json::parse(lines[2]).at("loss") == 0.5);
  BOOST_TEST(nlohmann::json::parse(lines[3]).at("type") == "valid");
  BOOST_TEST(lines[4] == "said");
}

BOOST_AUTO_TEST_CASE(a_run_that_did_nothing_has_no_rate) {
  const TemporaryFolder folder;
  {
    const Printed out(folder / "err");
    Metrics metrics({}, 1, true, out.file);
    metrics.end({7, 3500, 0, 0, "nothing to do"});
  }
  BOOST_TEST(read_file(folder / "err") == "end of step 7: 3.50 k tokens\nnothing to do\n");
}

BOOST_AUTO_TEST_CASE(other_ranks_write_nothing) {
  const TemporaryFolder folder;
  {
    const Printed out(folder / "err");
    Metrics metrics(folder / "m.jsonl", 1, false, out.file);
    metrics.train({});
    metrics.say("x");
    metrics.end({});
  }
  BOOST_TEST(!std::filesystem::exists(folder / "m.jsonl"));
  BOOST_TEST(read_file(folder / "err").empty());
}

BOOST_AUTO_TEST_CASE(a_file_that_cannot_be_opened_is_an_error) {
  const TemporaryFolder folder;
  Metrics(folder / "new/below/m.jsonl", 1, true);
  BOOST_TEST(std::filesystem::exists(folder / "new/below/m.jsonl"));
  CHECK_CONTAINS(message_of([&] { Metrics(folder / "new/below/m.jsonl/m.jsonl", 1, true); }), "m.jsonl' (Not a directory");
  CHECK_CONTAINS(message_of([&] { Metrics(folder / "new", 1, true); }), "new' (Is a directory");
}
