// fsdp-report --figure: its options and arguments. The figures themselves are tested in tests/report/.
#include "fsdp-report/figure.hpp"

#include <boost/test/unit_test.hpp>

#include "report/svg_reader.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Reads the options as fsdp-report does, and returns the drawing. In messages, options have their names.
std::string draw(std::vector<std::string> words) {
  FigureOptions options;
  std::vector<std::string> files;
  OptionTable table("fsdp-report", "FILE...", "");
  table.list("files", "FILE", files, "").positional();
  add_figure_options(table, options);
  std::vector<const char*> arguments = {"fsdp-report"};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  table.parse(static_cast<int>(arguments.size()), arguments.data());
  try {
    return draw_figure(options, files, {});
  } catch (const UserError& error) {
    throw UserError(table.name_options(error.what()));
  }
}

const TemporaryFolder folder;

/// A trace with one operation on each of `ranks` ranks.
std::string trace_of(int ranks) {
  std::string events;
  for (int rank = 0; rank < ranks; ++rank)
    events += format(
        "{}{{\"ph\": \"X\", \"pid\": {}, \"name\": \"forward\", \"cat\": \"compute\", \"ts\": 1, \"dur\": 2, "
        "\"args\": {{\"update\": 2, \"part\": \"forward\"}}}}",
        rank > 0 ? ",\n" : "", rank);
  write_file(folder / "trace.json", "{\"traceEvents\": [" + events + "]}");
  return (folder / "trace.json").string();
}

/// A file with the options of a plan.
std::string plan_of(const std::string& name, const std::string& more = "") {
  write_file(folder / name,
             "arch = gpt2\ndecoder-layers = 3\ndecoder-embed-dim = 12\ndecoder-attention-heads = 3\nvocab-size = 50\n"
             "tokens-per-sample = 16\nbatch-size = 1\n" +
                 more);
  return (folder / name).string();
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_figure_is_drawn) {
  const std::string plan = plan_of("plan");
  for (const std::string figure : {"strategies", "units", "nodes", "bytes", "memory", "timeline"}) {
    std::vector<std::string> words = {"--figure", figure, plan};
    if (figure == "units") words.insert(words.end(), {"--unit", "0"});
    BOOST_TEST(faults_of(read_svg(draw(words))) == "", figure);
  }
  CHECK_CONTAINS(message_of([&] {
                   draw({"--figure", "step", "--unit", "0", plan});
                 }),
                 "draw a plan of --sharding-strategy full, or another --unit");
}

BOOST_AUTO_TEST_CASE(files_have_titles_and_modes) {
  const std::string one = plan_of("one"), two = plan_of("two", "ranks-per-node = 4\n");
  const Picture picture = read_svg(draw({"--figure", "timeline", "--", "--forward-prefetch=false, and more=" + one,
                                         "a@b.c, all in one@one=" + two, "@thread=" + one}));
  BOOST_TEST(picture.says("--forward-prefetch=false, and more") == 1u);
  BOOST_TEST(picture.says("a@b.c, all in one") == 1u);
  BOOST_TEST((draw({"--figure", "timeline", "t@one=" + two}) != draw({"--figure", "timeline", "t=" + two})));
  CHECK_CONTAINS(message_of([&] {
                   draw({"--figure", "timeline", "two@onne=" + one});
                 }),
                 "'two@onne' has an unknown mode (a title with '@' is TITLE@streams, TITLE@thread or TITLE@one)");
  CHECK_CONTAINS(message_of([&] { draw({"--figure", "timeline", "title="}); }), "names no file");
  CHECK_CONTAINS(message_of([&] {
                   FigureOptions options;
                   options.figure = "timeline";
                   draw_figure(options, {"title=" + one}, one);
                 }),
                 "would be written over");
}

BOOST_AUTO_TEST_CASE(the_first_ranks_of_a_trace_are_drawn) {
  const std::string trace = trace_of(5);
  BOOST_TEST(read_svg(draw({"--figure", "timeline", trace})).all("rect", "forward").size() == 2u);
  BOOST_TEST(read_svg(draw({"--figure", "timeline", "--ranks", "4", trace})).all("rect", "forward").size() == 4u);
  BOOST_TEST(read_svg(draw({"--figure", "timeline", "--ranks", "9", "--update", "2", trace})).all("rect", "forward").size() ==
             5u);
  CHECK_CONTAINS(message_of([&] {
                   draw({"--figure", "timeline", "--update", "3", trace});
                 }),
                 "has no update 3 (it has 2); give one of these as --update");
}

BOOST_AUTO_TEST_CASE(a_trace_is_drawn_below_predicted_times) {
  const std::string plan = plan_of("predicted", "gpu = h100\nranks-per-node = 2\n"), trace = trace_of(3);
  const Picture picture = read_svg(draw({"--figure", "timeline", "--slots", "a run=" + trace, "a plan=" + plan}));
  BOOST_TEST(faults_of(picture) == "");
  BOOST_TEST(picture.text("a run, rank 0").number("y") > picture.text("a plan").number("y"));
  BOOST_TEST(picture.says("update 2, 0.0 ms, measured") == 2u);
  // With one queue, a plan takes longer than with one for each stream.
  BOOST_TEST((draw({"--figure", "timeline", "--queues", "one", plan}) != draw({"--figure", "timeline", plan})));
  CHECK_CONTAINS(message_of([&] {
                   draw({"--figure", "timeline", plan_of("plan"), trace});
                 }),
                 "has no times, but the trace has (all have one scale); make its file with fsdp-plan --gpu NAME, too");
}

BOOST_AUTO_TEST_CASE(mistakes_are_told) {
  const std::string plan = plan_of("plan"), trace = trace_of(2);
  const auto refused = [](std::vector<std::string> words) { return message_of([&] { draw(std::move(words)); }); };
  CHECK_CONTAINS(refused({"--figure", "units-of", plan}), "there is no figure 'units-of' (there are strategies, units, ");
  CHECK_CONTAINS(refused({"--figure", "timelime", plan}), "did you mean timeline?");
  CHECK_CONTAINS(refused({"--figure", "units"}), "no file is given");
  CHECK_CONTAINS(refused({"--figure", "units", plan, plan}), "2 files are given (the figure units shows one)");
  CHECK_CONTAINS(refused({"--figure", "units", "--unit", "4", plan}), "there is no unit 4 (the plan of ");
  CHECK_CONTAINS(refused({"--figure", "units", "--unit", "4", plan}), "give a smaller --unit");
  CHECK_CONTAINS(refused({"--figure", "memory", "--slots", plan}), "--slots changes nothing in the figure memory");
  CHECK_CONTAINS(refused({"--unit", "1"}), "--unit changes nothing (there is no --figure)");
  CHECK_CONTAINS(refused({"--figure", "timeline", "--ranks", "1", plan}), "--update and --ranks are for traces");
  CHECK_CONTAINS(refused({"--figure", "timeline", "--slots", trace}), "is a trace");
  CHECK_CONTAINS(refused({"--figure", "timeline", trace, trace}), "is a trace");
  CHECK_CONTAINS(refused({"--figure", "memory", trace}),
                 "(it is JSON); give a file that fsdp-plan [options] --print-config has printed");
  CHECK_CONTAINS(refused({"--figure", "memory", "none"}), "cannot read 'none' (no such file");
  write_file(folder / "cut", "{\"traceEvents\": [");
  CHECK_CONTAINS(refused({"--figure", "timeline", (folder / "cut").string()}), "make it with fsdp-train --trace");
}
