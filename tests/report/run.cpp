// Runs from metrics files: restarts are joined, damaged lines are noted, and the page shows all of it, whatever names and texts
// are.
#include "report/run.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "base/error.hpp"
#include "base/quantile.hpp"
#include "files/input_file.hpp"
#include "fsdp-report/text_plot.hpp"
#include "report/page_parts.hpp"
#include "report/run_report.hpp"
#include "report/svg_reader.hpp"
#include "support/files.hpp"

using namespace fsdp;
using namespace fsdp::test;
using nlohmann::json;

namespace {

/// Writes metrics as fsdp-train does.
class Written {
 public:
  explicit Written(std::filesystem::path path) : path_(std::move(path)), file_(path_) {}
  Written& start(std::uint64_t step, const json& options = json::object(), const std::string& folder = "/scratch/run") {
    return line({{"type", "start"},
                 {"step", step},
                 {"version", "0.1.0"},
                 {"world_size", 4},
                 {"strategy", "full"},
                 {"parameters", 1000},
                 {"plan_peak_bytes", 4096},
                 {"plan_bytes", {{"parameters", 1024}, {"gradients", 3072}}},
                 {"options", options},
                 {"save_folder", folder}});
  }
  Written& train(std::uint64_t step, double loss, const char* type = "train") {
    return line({{"type", type},
                 {"step", step},
                 {"loss", loss},
                 {"max_loss", loss + 0.1},
                 {"lr", 1e-3},
                 {"gnorm", 0.5},
                 {"tokens", 100 * step},
                 {"wps", 1e4},
                 {"positions_per_second", 2e4},
                 {"ms", 100},
                 {"mfu", 0.4},
                 {"comm_exposed_ms", 10},
                 {"data_wait_ms", 1},
                 {"loss_scale", nullptr},
                 {"mem_peak_bytes", 4000}});
  }
  Written& line(json fields) {
    if (fields["type"] == "start") age_ = 4;
    if (!fields.contains("process_s")) fields["process_s"] = age_ += 1;
    fields["time"] = time_ += 1;
    return text(fields.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
  }
  Written& text(const std::string& words) {
    file_ << words << std::flush;
    return *this;
  }

 private:
  std::filesystem::path path_;
  std::ofstream file_;
  double time_ = 1'700'000'000, age_ = 4;
};

std::string page_of(const std::filesystem::path& path) { return make_page(with_parts(read_named_runs({path}))); }

/// Fails unless every element of the page is closed in order, and no text of a run has become an element or an attribute.
void check_page(const std::string& page) {
  BOOST_TEST(page.starts_with("<!DOCTYPE html>\n"));
  std::size_t addresses = 0;
  for (std::size_t at = page.find("http://"); at != std::string::npos; at = page.find("http://", at + 1), ++addresses)
    BOOST_TEST(page.substr(at).starts_with("http://www.w3.org/2000/svg'"));  // the script's name of a namespace
  BOOST_TEST(addresses == 1u);
  BOOST_TEST(page.find("https://") == std::string::npos);
  for (const Picture& picture : drawings_in(page)) BOOST_TEST(faults_of(picture) == "");
  std::vector<std::string> open;
  for (std::size_t at = page.find('<', 15); at != std::string::npos; at = page.find('<', at + 1)) {
    const std::size_t end = page.find('>', at);
    BOOST_TEST_REQUIRE(end != std::string::npos);
    const std::string tag = page.substr(at + 1, end - at - 1), name = tag.substr(0, tag.find_first_of(" /"));
    if (tag.starts_with("/")) {
      BOOST_TEST_REQUIRE(!open.empty());
      BOOST_TEST(tag.substr(1) == open.back());
      open.pop_back();
    } else if (name == "script" || name == "style") {
      at = page.find("</" + name + ">", end);
      BOOST_TEST_REQUIRE(at != std::string::npos);
    } else if (!tag.ends_with("/") && name != "meta") {
      open.push_back(name);
    }
  }
  BOOST_TEST(open.empty());
}

}  // namespace

BOOST_AUTO_TEST_CASE(starts_are_joined) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  Written written(path);
  written.start(0).train(1, 5).train(2, 4).line(
      {{"type", "save"}, {"step", 2}, {"ms", 2000}, {"stall_ms", 500}, {"path", "run/step-2"}});
  written.train(3, 9, "lost").train(4, 9, "lost");  // killed: the next start repeats them
  written.start(2).train(3, 3).line({{"type", "skip"}, {"step", 4}, {"reason", "spike"}}).train(4, 2);
  written.line({{"type", "valid"}, {"step", 4}, {"loss", 2.5}, {"ms", 1000}});
  written.line({{"type", "stop"}, {"step", 4}, {"reason", "SIGTERM"}}).line({{"type", "end"}, {"step", 4}, {"goodput", 0.5}});
  written.start(4).train(5, 1);

  const std::vector<Run> runs = read_runs(path);
  BOOST_TEST_REQUIRE(runs.size() == 1u);
  const Run& run = runs[0];
  BOOST_TEST(run.name == folder.path().filename().string());  // the folder may have been renamed
  BOOST_TEST(run.updates.step == (std::vector<double>{1, 2, 3, 4, 5}), boost::test_tools::per_element());
  BOOST_TEST(run.updates.loss == (std::vector<double>{5, 4, 3, 2, 1}), boost::test_tools::per_element());
  // Each line comes 1 s after the one before. A start begins to count 0.1 s, the duration of an update, before its first one.
  const std::vector<double> time = {0.1, 1.1, 4.2, 6.2, 9.3};
  for (std::size_t i = 0; i < 5; ++i) BOOST_TEST(std::abs(run.updates.time[i] - time[i]) < 1e-9);
  BOOST_TEST(std::isnan(run.updates.loss_scale[0]));
  BOOST_TEST_REQUIRE(run.starts.size() == 3u);
  BOOST_TEST(run.starts[0].why == "killed or crashed");
  BOOST_TEST(run.starts[0].lost_updates == 2);
  BOOST_TEST(run.starts[1].why == "stopped: SIGTERM");
  BOOST_TEST(run.starts[1].last == 4u);
  BOOST_TEST(run.starts[0].last == 4u);
  BOOST_TEST(run.starts[2].why == "killed or crashed");
  BOOST_TEST(run.skipped.size() == 1u);
  BOOST_TEST(run.notes.size() == 1u);  // there is no end

  const std::string page = page_of(path);
  check_page(page);
  for (const char* words : {"stopped: SIGTERM", "skipped attempts (1)", "update 4: spike",
                            "start 2 after update 2, 4 ranks; before it: killed or crashed", "parameters 1.00 KiB",
                            "<td>1 to 4</td><td>2 updates</td>", "the run has no end in its metrics"})
    BOOST_TEST((page.find(words) != std::string::npos), words);
  const std::string line = text_summary(run);
  BOOST_TEST(
      line.starts_with(run.name + ": update 5, loss 1.0000, validation 2.5000 (update 4), 20.0 k tok/s (median); 3 starts: "
                                  "killed or crashed (last line "),
      line);
}

BOOST_AUTO_TEST_CASE(damaged_files_are_shown_as_far_as_they_go) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "m.jsonl";
  const std::string endless(longest_text + 9, '[');  // of a line, only so much is read
  Written(path)
      .start(0)
      .train(1, 5)
      .text("{\"type\":\"train\",\"step\":2,\n\xFF\xFE garbage\n" + endless + "\n")
      .train(3, 4)
      .text("{\"type\":\"tra");
  const Run run = read_runs(path).at(0);
  BOOST_TEST(run.updates.size() == 2u);
  BOOST_TEST_REQUIRE(run.notes.size() == 2u);
  BOOST_TEST(run.notes[1].starts_with("3 lines of "));
  BOOST_TEST(run.notes[1].ends_with("the first is line 3"));
  check_page(page_of(path));
  std::istringstream text(endless + "\n{}");
  std::string line;
  BOOST_TEST((next_line(text, line) && line.size() == longest_text && !text.eof()));
  BOOST_TEST((next_line(text, line) && line == "{}" && text.eof() && !next_line(text, line)));

  // Fields of other types, as another version might have them.
  Written(path)
      .line(
          {{"type", "start"}, {"options", "none"}, {"save_folder", 7}, {"world_size", "four"}, {"step", -1}, {"plan_bytes", 3}})
      .line({{"type", "train"}, {"step", 1}, {"loss", "low"}, {"ms", nullptr}, {"straggler", 4}})
      .line({{"type", "train"}, {"step", "two"}})
      .line({{"type", 5}})
      .line({{"type", "end"}, {"time_spent", 4}, {"goodput", 0.5}});
  check_page(page_of(path));

  Written(path).start(0).train(1, 5).train(2, 4).start(0).train(1, 7).train(2, 6);  // lines that could not be marked
  const Run twice = read_runs(path).at(0);
  BOOST_TEST(twice.updates.loss == (std::vector<double>{5, 4}), boost::test_tools::per_element());
  BOOST_TEST(twice.notes.at(0).find("in the file twice") != std::string::npos);

  const auto refused = [](const std::filesystem::path& name, const std::string& words) {
    BOOST_CHECK_EXCEPTION(read_runs(name), UserError,
                          [&](const UserError& error) { return std::string(error.what()).find(words) != std::string::npos; });
  };
  refused(folder.path() / "nothing", "there is no");
  refused(folder.path(), "has no metrics of a run");
  Written(path).text("step 1 loss 4\n");
  refused(path, "has no line of a run");
  Written(path).text("");
  refused(path, "has no line of a run");
}

BOOST_AUTO_TEST_CASE(names_and_texts_are_escaped) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "m.jsonl";
  const std::string hostile =
      "</title><script>alert(1)</script>\"'&<b onload=x> \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80 \x01\u009B\u202E";
  Written(path)
      .start(0, {{"arch", hostile}, {hostile, hostile}}, "/scratch/" + hostile)
      .train(1, 5)
      .train(2, 4)
      .line({{"type", "sample"}, {"step", 2}, {"text", hostile}})
      .line({{"type", "train"}, {"step", 3}, {"straggler", {{"host", hostile}, {"ms", 2}, {"median_ms", 1}, {"rank", 0}}}})
      .line({{"type", "stop"}, {"reason", hostile}})
      .start(0, json::object(), hostile + "2")
      .train(1, 3);
  const std::string page = page_of(path);
  check_page(page);
  BOOST_TEST(page.find("<script>alert") == std::string::npos);
  BOOST_TEST(page.find("<b onload") == std::string::npos);
  BOOST_TEST(page.find("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;") != std::string::npos);
  BOOST_TEST(page.find("\xF0\x9F\x98\x80") != std::string::npos);
  for (const char* control : {"\x01", "\u009B", "\u202E"}) BOOST_TEST(page.find(control) == std::string::npos);
}

BOOST_AUTO_TEST_CASE(tokens_that_count_look_different) {
  BOOST_TEST(html_of({{"a<b\n", false, true}, {"c\n\nd", true}, {"e", false, true}, {"..."}}) ==
             "<pre class=\"shown\"><i>document</i> <span>a&lt;b\u21b5\n</span><mark>c\u21b5\n\u21b5\nd</mark>\n"
             "<i>document</i> <span>e</span><span>...</span></pre>\n");
  BOOST_TEST(html_of({}) == "<pre class=\"shown\"></pre>\n");
  const std::string page =
      html_page("a & b", html_section("one", "1 < 2", html_of({{"</pre>\x1b"}})) + html_section("two", "2", ""));
  check_page(page);
  BOOST_TEST(page.starts_with(std::string(page_beginning) + "a &amp; b</title>"));
  BOOST_TEST(page.find("<section id=\"one\"><h2>1 &lt; 2</h2>") != std::string::npos);
  BOOST_TEST(page.find("\"two\"") == std::string::npos);
}

BOOST_AUTO_TEST_CASE(adapters_and_the_best_step_are_shown) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "m.jsonl";
  const auto page_with = [&](const json& options, const json& more, const json& best = nullptr) {
    json start = {{"type", "start"}, {"parameters", 1000}, {"options", options}, {"save_folder", "/s"}};
    start.update(more);
    Written written(path);
    written.line(start);
    for (const double loss : {3.5, 2.5, 4.5}) {
      const std::size_t step = loss == 3.5 ? 1 : loss == 2.5 ? 2 : 3;
      json valid = {{"type", "valid"}, {"step", step}, {"loss", loss}, {"mean_token_accuracy", 0.5}, {"entropy", 1.25}};
      if (!best.is_null()) valid["best"] = step <= best;
      written.train(step, loss).line(valid);
    }
    std::string page = page_of(path);
    check_page(page);
    return page;
  };
  const auto check = [](const std::string& page, const std::vector<const char*>& words, bool is_shown) {
    for (const char* const word : words) BOOST_TEST((page.find(word) != std::string::npos) == is_shown, word);
  };
  const json trained = {{"trained_parameters", 20},
                        {"adapters",
                         {{"rank", 8},
                          {"alpha", 16},
                          {"scale", 2},
                          {"targets", {"q_proj", "v_proj"}},
                          {"base", "SmolLM"},
                          {"base_type", "nf4"}}}};
  const json options = {{"keep-best", "loss"}, {"modules-to-save", "lm_head"}};
  check(page_with(options, trained),
        {"2 % of 1.00 k parameters are trained", "rank 8, alpha 16, scale 2, of q_proj, v_proj; trained as a whole: lm_head",
         "SmolLM, blocks in nf4", "the step best, of update 2: the smallest validation loss, 2.5",
         "<td>2.5000 (update 2, token accuracy 50.0 %, entropy 1.250 nats): the step best</td>"},
        true);
  // The run's judgement counts: earlier validations may have measured something else.
  check(page_with(options, trained, 3), {"the step best, of update 3", "<td>4.5000 (update 3, token accuracy"}, true);

  const std::string full = page_with({{"init", "pretrained"},
                                      {"model", "models/gpt2"},
                                      {"precision", "bf16"},
                                      {"master-dtype", "fp32"},
                                      {"grad-dtype", "fp32"},
                                      {"optimizer", "adamw"},
                                      {"optimizer-state-dtype", "bf16"}},
                                     {{"trained_parameters", 1000}});
  check(full, {"adapters", "are trained", "step best"}, false);
  check(full, {">best</text>", "<title>update 2: the smallest validation loss, 2.5000</title>"}, true);
  check(full,
        {"<td>base model</td><td>models/gpt2</td>",
         "<td>bf16, master weights in fp32, gradients in fp32, adamw with its state in bf16</td>"},
        true);
  check(page_with({{"init", "random"}, {"model", "models/gpt2"}}, json::object()), {"base model", "<td>types</td>"}, false);
  check(page_with({{"finetune-from", "a&b"}, {"precision", "fp32"}, {"master-dtype", "fp32"}}, json::object()),
        {"<td>base model</td><td>a&amp;b</td>", "<td>types</td><td>fp32</td>"}, true);
}

BOOST_AUTO_TEST_CASE(data_accuracy_and_the_first_sequences_are_shown) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "m.jsonl";
  const json data = {{{"name", "'a.jsonl'"},
                      {"split", "train"},
                      {"rows", 20},
                      {"conversations", 20},
                      {"skipped", 3},
                      {"truncated_rows", 2},
                      {"tokens", 1000},
                      {"targets", 250},
                      {"sequences", 8},
                      {"positions", 560},
                      {"padding", 56},
                      {"first_row", "train begins so"}},
                     {{"name", "'v.jsonl'"}, {"split", "valid"}, {"rows", 1}, {"tokens", 9}, {"first_row", "valid begins so"}}};
  const auto page_with = [&](const json& sequences) {
    Written written(path);
    written.line({{"type", "start"}, {"save_folder", "/s"}, {"data", data}, {"first_sequences", sequences}});
    for (const int step : {1, 2, 3})
      written.line({{"type", "train"},
                    {"step", step},
                    {"loss", 5 - step},
                    {"mean_token_accuracy", 0.25 * step},
                    {"entropy", 2},
                    {"padding", 0.25}});
    std::string page = page_of(path);
    check_page(page);
    return page;
  };
  const std::string page =
      page_with({{{"data", "'a.jsonl'"},
                  {"tokens", 7},
                  {"targets", 3},
                  {"text", {{{"text", "<b>?"}, {"begins_document", true}}, {{"text", "Yes."}, {"is_target", true}}}}}});
  for (const char* words :
       {"<td>20 conversations, 3 more left out, 2 truncated; 8 sequences</td>", "<td>250 (25.0 %) of 1000</td>",
        "<td>25.0 % of the computed positions</td>", "<td>50.0 %, 2.000 nats</td>", "<td>56 (10.0 %)</td>", "Token accuracy",
        "Entropy of the predictions", "<h4>&#39;a.jsonl&#39;: 7 tokens, 3 of them in the loss</h4>",
        "<i>document</i> <span>&lt;b&gt;?</span><mark>Yes.</mark>", "valid begins so"})
    BOOST_TEST(page.find(words) != std::string::npos, words);
  for (const char* words : {"train begins so", "<th>dropped</th>", "<th>answers</th>"})  // no data set has the latter two
    BOOST_TEST(page.find(words) == std::string::npos, words);
  for (const json& damaged : {json(), json(5), json::array({1, nullptr, {{"text", 3}}})})
    BOOST_TEST(page_with(damaged).find("valid begins so") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(several_runs_are_drawn_over_each_other) {
  const TemporaryFolder folder;
  std::vector<std::filesystem::path> paths;
  for (int i = 0; i < 12; ++i) {
    paths.push_back(folder.path() / format("{}.jsonl", i));
    Written(paths.back())
        .start(0, {{"lr", 0.1 * i}, {"seed", 1}}, format("/scratch/{}/run", i))
        .train(1, 5)
        .train(2, 4.0 - 0.1 * i);
  }
  const std::vector<Run> runs = with_parts(read_named_runs(paths));
  BOOST_TEST(runs[3].name == "3/run");  // "run" would be twelve runs
  const std::string page = make_page(runs);
  check_page(page);
  BOOST_TEST(page.find("What differs between the runs") < page.find("Summary"));
  BOOST_TEST(page.find("<td>--lr</td><td>0.0</td>") != std::string::npos);
  BOOST_TEST(page.find("<td>--seed</td><td>1</td><td>1</td>") == std::string::npos);
  std::set<std::string> strokes;
  for (const SvgElement& line : drawings_in(page).at(0).all("polyline", [](const SvgElement&) { return true; }))
    strokes.insert(line.attribute("stroke") + line.attribute("stroke-dasharray"));
  BOOST_TEST(strokes.size() == 12u);
}

BOOST_AUTO_TEST_CASE(a_long_run_makes_a_small_page) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "m.jsonl";
  {
    Written written(path);
    for (std::uint64_t step = 1; step <= 100'000; ++step) {
      if (step % 10'000 == 1) written.start(step - 1);
      written.train(step, 2 + 3 / std::sqrt(static_cast<double>(step)) + 0.1 * std::sin(static_cast<double>(step)));
    }
  }
  const std::string page = page_of(path);
  BOOST_TEST(page.size() < 2'000'000u);
  BOOST_TEST(drawings_in(page).size() >= 8u);
}

BOOST_AUTO_TEST_CASE(time_is_split_and_the_scheduler_is_named) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  Written written(path);
  written.start(0, {{"lr", 0.1}, {"max-update", 9}});
  const auto train = [&](int step, double ms, json work, json exposed) {
    written.line({{"type", "train"},
                  {"step", step},
                  {"loss", 2},
                  {"ms", ms},
                  {"work_ms", std::move(work)},
                  {"comm_exposed_ms", std::move(exposed)},
                  {"data_wait_ms", 300}});
  };
  train(1, 10'000, nullptr, nullptr);  // on a GPU, only traced updates are split: the first one does not count
  train(2, 100, {{"products", 40}, {"optimizer", 10}}, 30);
  train(3, 100, {{"products", 40}, {"optimizer", 10}}, 30);
  written.line({{"type", "stop"}, {"step", 3}, {"reason", "SIGTERM"}});
  written.line({{"type", "scheduler"}, {"reason", "another job takes its place"}});
  written.line({{"type", "scheduler"}, {"reason", "a start that never came to a line"}});
  written.line({{"type", "scheduler"}, {"scheduler", "PBS"}, {"reason", "its time is nearly over"}});
  written.start(3, {{"lr", 0.2}, {"max-update", 9}});
  written.line({{"type", "end"}, {"step", 3}, {"time_spent", {{"running_s", 20}, {"useful_s", 10}}}});
  const std::string page = page_of(path);
  check_page(page);
  for (const char* words : {"a mean update: 400 ms", "matrix products 40 ms (10.0 %)", "norm and optimizer 10 ms (2.5 %)",
                            "waiting for communication or other ranks 30 ms (7.5 %)", "other work of the host 20 ms (5.0 %)",
                            "waiting for data after it 300 ms (75.0 %)",
                            "stopped: SIGTERM; Slurm: another job takes its place; PBS: its time is nearly over",
                            "--lr: 0.1 → 0.2", "3 of 9 updates: done", "20.0 s of running time: goodput 50.0 %",
                            "updates that count 10.0 s (50.0 %)", "between updates 10.0 s (50.0 %)"})
    BOOST_TEST((page.find(words) != std::string::npos), words);
  BOOST_TEST((page.find("Memory") != std::string::npos));
  BOOST_TEST((page.find("<h2>Saves") == std::string::npos));  // a part without data is left out
}

BOOST_AUTO_TEST_CASE(the_prediction_is_next_to_the_measurement) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "m.jsonl";
  Written written(path);
  json fields = {{"type", "start"}, {"step", 0}, {"world_size", 8}, {"save_folder", "/scratch/run"}};
  fields["predicted"] = {{"total", 0.05},        {"products", 0.03},   {"attention", 0.005},
                         {"memory_bound", 0.01}, {"optimizer", 0.002}, {"exposed", 0.003}};
  written.line(fields).train(1, 5);  // 100 ms, 10 of them exposed
  const std::string page = page_of(path);
  check_page(page);
  for (const char* words :
       {"predicted from the plan and the machine&#39;s rates: 50 ms", "matrix products 30 ms (60.0 %)", "width:49.505%",
        "<p>The median update took 100 ms, 100.0 % more than the predicted 50 ms, above all because"})
    BOOST_TEST((page.find(words) != std::string::npos), words);  // the measured bar is 101 ms: the wait for data is 1 ms
}

BOOST_AUTO_TEST_CASE(a_folder_shows_its_own_run) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "all.jsonl";
  const auto saves = [&](const char* name) {
    std::filesystem::create_directories(folder.path() / name);
    return (std::filesystem::canonical(folder.path()) / name).string();
  };
  Written(path).start(0, json::object(), saves("a")).train(1, 5).start(0, json::object(), saves("b")).train(1, 4).train(2, 3);
  BOOST_TEST(read_runs(path).size() == 2u);
  const std::vector<Run> one = read_runs(path, folder.path() / "b");
  BOOST_TEST_REQUIRE(one.size() == 1u);
  BOOST_TEST(one[0].updates.size() == 2u);
  BOOST_TEST(one[0].name == "b");

  // The trace of a later run with the same --trace is not shown.
  const json event = {
      {"ph", "X"},        {"pid", 0}, {"tid", 1}, {"name", "forward block 0"},
      {"cat", "compute"}, {"ts", 0},  {"dur", 5}, {"args", {{"operation", 0}, {"update", 1}, {"part", "forward"}}}};
  Written(path).start(0, {{"trace", "trace.json"}}, saves("a")).train(1, 5);
  for (const char* of : {"a", "b"}) {
    write_file(folder / "trace.json", json{{"traceEvents", {event}}, {"otherData", {{"save_folder", saves(of)}}}}.dump());
    const std::vector<Run> runs = with_parts(read_named_runs({path}));
    BOOST_TEST(runs[0].trace.has_value() == (of == std::string("a")));
    BOOST_TEST(runs[0].notes.size() == (of == std::string("a") ? 1u : 2u));  // there is no end
  }
}

BOOST_AUTO_TEST_CASE(a_run_with_a_lock_is_running) {
  const TemporaryFolder folder;
  Written(folder / "metrics.jsonl").start(0).train(1, 5);
  write_file(folder / "lock", "");
  BOOST_TEST(read_runs(folder.path()).at(0).starts[0].why == "killed or crashed");
  const int lock = ::open((folder / "lock").c_str(), O_RDWR);
  BOOST_TEST_REQUIRE(::flock(lock, LOCK_EX | LOCK_NB) == 0);
  const Run run = read_runs(folder.path()).at(0);
  BOOST_TEST(run.starts[0].why == "running");
  BOOST_TEST(run.notes == std::vector<std::string>{"the run is running"}, boost::test_tools::per_element());
  ::close(lock);
}

BOOST_AUTO_TEST_CASE(files_are_replaced_and_links_are_written_through) {
  const TemporaryFolder folder;
  write_text(folder / "page", "old");
  write_text(folder / "page", "new");
  BOOST_TEST(read_file(folder / "page") == "new");
  std::filesystem::create_symlink("page", folder / "link");
  write_text(folder / "link", "newer");
  BOOST_TEST(std::filesystem::is_symlink(folder / "link"));
  BOOST_TEST(read_file(folder / "page") == "newer");
  BOOST_TEST(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 2);
  BOOST_CHECK_THROW(write_text(folder.path(), "x"), UserError);
  BOOST_CHECK_THROW(write_text("/dev/full", "x"), RunError);
}

BOOST_AUTO_TEST_CASE(tables) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "m.jsonl";
  Written(path)
      .start(0, json::object(), "/scratch/a, \"b\"")
      .train(1, 5.25)
      .line({{"type", "train"}, {"step", 2}, {"loss", 4}, {"tokens", 200}, {"mean_token_accuracy", 0.25}, {"entropy", 1.5}})
      .line({{"type", "valid"}, {"step", 2}, {"loss", 4.5}, {"mean_token_accuracy", 0.125}, {"entropy", 2}});
  std::istringstream csv(to_csv(read_runs(path)));
  std::vector<std::string> lines;
  for (std::string line; std::getline(csv, line);) lines.push_back(line);
  BOOST_TEST_REQUIRE(lines.size() == 4u);
  BOOST_TEST(lines[1].starts_with("\"a, \"\"b\"\"\",train,1,100,5.25,,,5.35,0.001,0.5,,10000,20000,100,0.4,,10,1,4000"));
  BOOST_TEST(text_summary(read_runs(path)[0])
                 .find(": update 2, loss 4.0000, token accuracy 0.250, entropy 1.500, validation 4.5000 ") !=
             std::string::npos);
  BOOST_TEST(lines[0].starts_with("run,type,step,tokens,loss,mean_token_accuracy,entropy,max_loss,"));
  BOOST_TEST(lines[2].starts_with("\"a, \"\"b\"\"\",train,2,200,4,0.25,1.5,"));
  BOOST_TEST(lines[3].starts_with("\"a, \"\"b\"\"\",valid,2,200,4.5,0.125,2,"));
  for (const std::string& line : lines)
    BOOST_TEST(std::count(line.begin(), line.end(), ',') == (line == lines[0] ? 18 : 19));  // one is in the name

  // A spreadsheet takes no name for a formula, and a terminal none for a command.
  for (const char* name : {"=SUM(A1)", "+1", "-1", "@x", "\x1b=1\n\u009B"}) {
    Written(path).start(0, json::object(), std::string("/scratch/") + name).train(1, -5);
    const std::string table = to_csv(read_runs(path));
    const std::string row = table.substr(table.find('\n') + 1);
    BOOST_TEST((row.starts_with("'") && row.find(",train,1,100,-5,") != std::string::npos), row);
    BOOST_TEST(row.find_first_of("\x1b\xC2") == std::string::npos);
    BOOST_TEST(std::count(row.begin(), row.end(), '\n') == 1);
  }
}

BOOST_AUTO_TEST_CASE(quantiles) {
  BOOST_TEST(quantile({3, 1, 2}, 0.5) == 2);
  BOOST_TEST(quantile({1, 2}, 0.5) == 1.5);
  BOOST_TEST(quantile({NAN, 4, INFINITY}, 1) == 4);
  BOOST_TEST(std::isnan(quantile({}, 0.5)));
}
