// --trace with whole jobs, and the same options of fsdp-bench.
#include <algorithm>
#include <map>
#include <sstream>

#include <boost/test/unit_test.hpp>

#include "jobs/job.hpp"
#include "report/svg_reader.hpp"
#include "support/files.hpp"
#include "support/golden.hpp"

using namespace fsdp::test;

namespace {

const std::string tokens = (golden_folder("gpt2-tied") / "train.bin").string();

std::vector<std::string> training(const std::vector<std::string>& more) {
  std::vector<std::string> words = {tokens, "--arch",
                                    "gpt2", "--vocab-size",
                                    "211",  "--decoder-layers",
                                    "2",    "--decoder-embed-dim",
                                    "24",   "--decoder-attention-heads",
                                    "3",    "--tokens-per-sample",
                                    "16",   "--batch-size",
                                    "2",    "--max-update",
                                    "5"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

json read_trace(const fs::path& file) {
  std::ifstream in(file);
  return json::parse(in);
}

/// Returns the titles of the operations in a drawing, in order and without times: "backward block 1".
std::vector<std::string> titles_of(const Picture& picture) {
  std::vector<std::string> titles;
  for (const SvgElement& box : picture.all("rect", ""))
    if (!box.hint.empty()) titles.push_back(box.hint.substr(0, box.hint.rfind(", ")));
  return titles;
}

std::string read_page(const std::string& name) { return read_file(std::string(FSDP_TEST_DATA) + "/../../" + name); }

/// Returns the number of events of each (rank, stream), by update.
std::map<std::pair<int, int>, std::map<int, int>> count_events(const json& trace) {
  std::map<std::pair<int, int>, std::map<int, int>> counts;
  for (const json& event : trace["traceEvents"])
    if (event["ph"] == "X") ++counts[{event["pid"], event["tid"]}][event["args"]["update"]];
  return counts;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_job_is_traced) {
  for (const int np : {2, 3}) {
    const auto folder = fresh_folder();
    const Outcome outcome = run(
        folder, mpirun(np, "fsdp-train", training({"--trace", "trace.json", "--trace-updates", "2", "--update-freq", "2"})));
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    BOOST_TEST(outcome.times_said("trace of 2 updates: trace.json") == 1u);
    BOOST_TEST(!fs::exists(folder / "trace.json.tmp"));
    const json trace = read_trace(folder / "trace.json");
    const auto counts = count_events(trace);
    BOOST_TEST(counts.size() == 3 * static_cast<std::size_t>(np));
    for (const auto& [track, updates] : counts) {
      BOOST_TEST(updates.size() == 2u);
      BOOST_TEST(updates.contains(2));
      BOOST_TEST(updates.contains(3));
      BOOST_TEST(updates == counts.at({0, track.second}));  // every rank has the same operations
    }
    std::vector<std::string> draw = {
        FSDP_BIN "/fsdp-report", "--figure", "timeline", "trace.json", "--ranks", "9", "--out", "trace.svg", "--update", "3"};
    const Outcome drawn = run(folder, draw);
    BOOST_TEST_REQUIRE(drawn.code == 0, drawn.output);
    const Picture picture = read_svg(read_file(folder / "trace.svg"));
    BOOST_TEST(faults_of(picture) == "");
    BOOST_TEST(picture.text("update").text.starts_with("update 3, "));
    BOOST_TEST(picture.says("gather") == static_cast<std::size_t>(np));
    BOOST_TEST(picture.all("rect", "backward block 1, ").size() == 2 * static_cast<std::size_t>(np));
    draw.back() = "4";
    BOOST_TEST(run(folder, draw).code == 2);
    BOOST_TEST(counts.at({0, 2}).at(2) == 2 * (1 + 2 + 1));  // gathers: the root, both blocks, and one of them again
    // Per micro-batch, a reduction of each of the three units. Then three sums of squares, two sums over the ranks, and
    // the norm.
    BOOST_TEST(counts.at({0, 3}).at(2) == 2 * 3 + 3 + 3);
  }
}

BOOST_AUTO_TEST_CASE(a_run_that_ends_early_writes_what_it_has) {
  const auto folder = fresh_folder();
  const Outcome outcome = run(folder, mpirun(2, "fsdp-train", training({"--trace", "trace.json", "--trace-updates", "100"})));
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
  BOOST_TEST(read_trace(folder / "trace.json")["otherData"]["updates"] == json({2, 3, 4, 5}));
  // All updates are done.
  const Outcome again = run(folder, mpirun(2, "fsdp-train", training({"--trace", "again.json"})));
  BOOST_TEST(again.code == 0, again.output);
  BOOST_TEST(!fs::exists(folder / "again.json.tmp"));
}

BOOST_AUTO_TEST_CASE(paths_that_cannot_be_written_are_told_before_training) {
  const auto folder = fresh_folder();
  fs::create_directory(folder / "folder");
  for (const std::string path : {"none/trace.json", "folder"})
    for (const bool bench : {false, true}) {
      const auto words =
          bench ? mpirun(2, "fsdp-bench", {"step", "--trace", path}) : mpirun(2, "fsdp-train", training({"--trace", path}));
      const Outcome outcome = run(folder, words);
      BOOST_TEST_CONTEXT(outcome.output) {
        BOOST_TEST(outcome.code == 2);
        BOOST_TEST(outcome.says("cannot write --trace '" + path + "'"));
        BOOST_TEST(outcome.times_said(bench ? "fsdp-bench: " : "fsdp-train: ") == 1u);
        BOOST_TEST(!outcome.says("step 1/5"));
      }
    }
}

BOOST_AUTO_TEST_CASE(bench_traces_and_tells_exposed_communication) {
  const auto folder = fresh_folder();
  const std::vector<std::string> step = {"step",     "--arch",  "gpt2", "--batch-size", "1",       "--tokens-per-sample",
                                         "8",        "--steps", "2",    "--json",       "--trace", "trace.json",
                                         "--exposed"};
  const Outcome outcome = run(folder, mpirun(2, "fsdp-bench", step));
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
  const json report = json::parse(outcome.output);
  BOOST_TEST(report["exposed_ms"].get<double>() == report["ms"].get<double>() - report["fake_ms"].get<double>(),
             boost::test_tools::tolerance(1e-6));
  BOOST_TEST(report["exposed_share"].get<double>() < 1);
  BOOST_TEST(count_events(read_trace(folder / "trace.json")).at({1, 1}).size() == 2u);
  const Outcome both = run(folder, mpirun(2, "fsdp-bench", {"step", "--fake-collectives", "--exposed"}));
  BOOST_TEST(both.code == 2);
  BOOST_TEST(both.says("--exposed"), both.output);
}

BOOST_AUTO_TEST_CASE(the_drawings_in_the_documentation_are_what_is_printed) {
  const auto folder = fresh_folder();
  const std::string page = read_page("docs/schedule.md");
  // The first drawing also shows the options that do not change it.
  const std::vector<std::vector<std::string>> choices = {{},
                                                         {"--backward-prefetch", "none", "--forward-prefetch=false"},
                                                         {"--backward-prefetch", "post"},
                                                         {"--update-freq", "2", "--accumulate-unsharded"}};
  for (const auto& choice : choices) {
    std::vector<std::string> words = {"--dry-run", "--restore",
                                      "none",      "--arch",
                                      "gpt2",      "--decoder-layers",
                                      "4",         "--decoder-embed-dim",
                                      "96",        "--decoder-attention-heads",
                                      "3",         "--vocab-size",
                                      "500",       "--tokens-per-sample",
                                      "32"};
    words.insert(words.end(), choice.begin(), choice.end());
    const Outcome outcome = run(folder, mpirun(2, "fsdp-train", words));
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    // The legend above the picture is printed once.
    const std::size_t rule = outcome.output.find("timeline of one update"), picture = outcome.output.find("gather   ", rule);
    BOOST_TEST_REQUIRE(picture != std::string::npos);
    std::istringstream lines(outcome.output.substr(choice.empty() ? rule : picture));
    std::string indented;
    for (std::string line; std::getline(lines, line);) indented += (line.empty() ? "" : "    " + line) + "\n";
    BOOST_TEST(page.find(indented) != std::string::npos, "docs/schedule.md lacks\n" + indented);
  }
}

BOOST_AUTO_TEST_CASE(the_figure_in_the_documentation_is_of_the_command_beside_it) {
  const auto folder = fresh_folder();
  const std::string page = read_page("docs/schedule.md"), begin = "fsdp-train README.md ", end = "--trace trace.json\n";
  const std::size_t from = page.find(begin), to = page.find(end, from);
  BOOST_TEST_REQUIRE(to != std::string::npos);
  std::string options = page.substr(from + begin.size(), to + end.size() - from - begin.size());
  std::replace_if(
      options.begin(), options.end(), [](char c) { return c == '\\' || c == '\n'; }, ' ');
  std::vector<std::string> words = {std::string(FSDP_TEST_DATA) + "/../../README.md"};
  std::istringstream all(options);
  for (std::string word; all >> word;) words.push_back(word);
  const Outcome outcome = run(folder, mpirun(2, "fsdp-train", words));
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
  // The figure has the operations of the trace in this order, by rank and stream, except those that are too short to
  // see.
  std::vector<std::string> names;
  const json events = read_trace(folder / "trace.json")["traceEvents"];
  for (const int rank : {0, 1})
    for (const char* stream : {"gather", "compute", "reduce"})
      for (const json& event : events)
        if (event["ph"] == "X" && event["args"]["update"] == 4 && event["pid"] == rank && event["cat"] == stream)
          names.push_back(event["name"]);
  const auto drawn = titles_of(read_svg(read_page("docs/schedule-trace.svg")));
  BOOST_TEST(std::count(drawn.begin(), drawn.end(), "backward block 1") == 2);
  BOOST_TEST(drawn.size() > 50u);
  auto next = names.begin();
  for (const std::string& title : drawn) {
    next = std::find(next, names.end(), title);
    BOOST_TEST_REQUIRE((next != names.end()), title << " is drawn, and not in the trace, or not in this place");
    ++next;
  }
}
