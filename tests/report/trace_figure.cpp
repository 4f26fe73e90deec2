// The timeline of a trace, read back from the coordinates of the drawing.
#include "report/trace_figure.hpp"

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "report/svg_reader.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;
using json = nlohmann::json;

namespace {

json event(int rank, std::uint64_t update, const std::string& title, const char* stream, double ts, double dur,
           json more = {}) {
  const char* const part = title.starts_with("all-gather") ? "gather"
                           : title.starts_with("reduce")   ? "reduce"
                           : title.starts_with("forward")  ? "forward"
                           : title.starts_with("backward") ? "backward"
                                                           : "other";
  json args = {{"operation", 3}, {"update", update}, {"part", part}};
  if (more.is_object()) args.update(more);
  return {{"ph", "X"}, {"pid", rank}, {"tid", 1}, {"name", title}, {"cat", stream}, {"ts", ts}, {"dur", dur}, {"args", args}};
}

/// A trace of two updates on three ranks; update 7 begins at 2000 us.
json small_trace() {
  json events = {{{"ph", "M"}, {"name", "process_name"}, {"pid", 0}, {"args", {{"name", "rank 0"}}}},
                 {{"ph", "s"}, {"pid", 0}, {"tid", 1}, {"ts", 5}, {"name", "arrow"}, {"cat", "arrow"}, {"id", "0/0/0"}}};
  for (const int rank : {0, 1, 2})
    for (const std::uint64_t update : {6, 7}) {
      const double begin = update == 7 ? 2000 : 0;
      events.push_back(event(rank, update, "all-gather <root>", "gather", begin + 100 * rank, 50, {{"unit", "<root>"}}));
      events.push_back(event(rank, update, "forward block 12", "compute", begin + 200, 300.5, {{"block", 12}}));
      events.push_back(event(rank, update, "backward block 12, add", "compute", begin + 500.5, 400, {{"block", 12}}));
      events.push_back(event(rank, update, "read batch", "compute", begin + 1, 0.1));
      events.push_back(event(rank, update, "reduce-scatter block 12", "reduce", begin + 900, 100, {{"unit", "block 12"}}));
    }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", events}, {"otherData", {{"ranks", 3}}}};
}

Trace read_back(const std::string& text) {
  const TemporaryFolder folder;
  write_file(folder / "trace.json", text);
  return read_trace(folder / "trace.json");
}

Picture checked(const Figure& figure) {
  Picture picture = read_svg(figure.svg.file(figure.height));
  BOOST_TEST(faults_of(picture) == "");
  return picture;
}

}  // namespace

BOOST_AUTO_TEST_CASE(boxes_begin_and_end_as_measured) {
  const Trace trace = read_back(small_trace().dump());
  BOOST_TEST((trace.ranks == std::vector<int>{0, 1, 2}));
  BOOST_TEST((trace.updates == std::vector<std::uint64_t>{6, 7}));
  const Picture picture = checked(draw_trace_timeline(trace, {.update = 7}));
  BOOST_TEST(picture.says("update 7, 1.0 ms from left to right, measured") == 1u);
  const double per_us = 774 / 1000.0;  // from the first begin, at 2000 us, to the last end
  const auto is_at = [&](const SvgElement& box, double begin_us, double length_us) {
    BOOST_TEST(std::abs(box.number("x") - 92 - begin_us * per_us) < 0.11, box.hint << " at " << box.number("x"));
    BOOST_TEST(std::abs(box.number("width") - length_us * per_us) < 0.11, box.hint << " of " << box.number("width"));
  };
  const auto gathers = picture.all("rect", "all-gather <root>, 0.050 ms");
  BOOST_TEST_REQUIRE(gathers.size() == 3u);
  for (std::size_t rank = 0; rank < 3; ++rank) is_at(gathers[rank], 100.0 * static_cast<double>(rank), 50);
  for (const SvgElement& box : picture.all("rect", "forward block 12, ")) is_at(box, 200, 300.5);
  for (const SvgElement& box : picture.all("rect", "backward block 12, add, 0.400 ms")) is_at(box, 500.5, 400);
  BOOST_TEST(picture.says("12") == 9u);  // forward, backward and reduction of each rank
  BOOST_TEST(picture.says("<root>") == 3u);
  BOOST_TEST(picture.says("gather") == 3u);
  BOOST_TEST(picture.says("load") == 0u);
  for (const char* entry : {"all-gather", "forward", "backward"}) BOOST_TEST(picture.says(entry) == 1u, entry);
  BOOST_TEST(picture.says("other work") == 0u);  // it is too short to be seen
  BOOST_TEST(checked(draw_trace_timeline(trace, {})).says("update 6, 1.0 ms from left to right, measured") == 1u);
}

BOOST_AUTO_TEST_CASE(the_time_of_an_update_is_split) {
  json trace = small_trace();
  trace["traceEvents"].push_back(event(1, 7, "forward block 13", "compute", 2905, 200));  // rank 1 computes longest
  const Trace read = read_back(trace.dump());
  const RanksOfUpdate ranks = slowest_and_median_rank(read, 7);
  BOOST_TEST(ranks.slowest == 1);
  BOOST_TEST(ranks.median == 2);
  // Of rank 0 in update 7, in us: all-gather 0 to 50 (and "read batch" 1 to 1.1), nothing until 200, forward until 500.5,
  // backward until 900.5, reduction from 900 until 1000.
  const UpdateSplit split = split_of(read, 7, 0);
  const auto is = [](double ms, double us) { BOOST_TEST(std::abs(1e3 * ms - us) < 1e-6, 1e3 * ms << " is not " << us); };
  is(split.forward, 300.5);
  is(split.backward, 400);
  is(split.other, 0.1);
  is(split.gather, 49.9);
  is(split.idle, 150);
  is(split.reduce, 99.5);
  is(split.optimizer, 0);
}

BOOST_AUTO_TEST_CASE(ranks_are_chosen) {
  const Trace trace = read_back(small_trace().dump());
  const Picture picture = checked(draw_trace_timeline(trace, {.ranks = {2, 0}}));
  BOOST_TEST(picture.says("rank 0") == 1u);
  BOOST_TEST(picture.says("rank 1") == 0u);
  BOOST_TEST(picture.text("rank 2").number("y") > picture.text("rank 0").number("y"));
  BOOST_TEST(picture.all("rect", "all-gather").size() == 2u);
  // A part of a page.
  const Figure figure = draw_trace_timeline(trace, {.ranks = {1}});
  const auto drawings = drawings_in("<p>" + figure.svg.element(figure.height, "a trace") + "</p>");
  BOOST_TEST_REQUIRE(drawings.size() == 1u);
  BOOST_TEST(faults_of(drawings[0]) == "");
  CHECK_CONTAINS(message_of([&] { draw_trace_timeline(trace, {.ranks = {0, 3}}); }), "has no rank 3 (it has 0, 1 and 2)");
  CHECK_CONTAINS(message_of([&] { draw_trace_timeline(trace, {.update = 8}); }),
                 "has no update 8 (it has 6 and 7); give one of these as `drawn-update`");
}

BOOST_AUTO_TEST_CASE(large_numbers_stay_whole) {
  json trace = small_trace();
  trace["traceEvents"].push_back(event(0, 9007199254740993, "forward block 1", "compute", 4e14, 10));
  const Picture picture = checked(draw_trace_timeline(read_back(trace.dump()), {.update = 9007199254740993, .ranks = {0}}));
  BOOST_TEST(picture.says("update 9007199254740993, 0.0 ms from left to right, measured") == 1u);
  BOOST_TEST(picture.one("rect", "forward").number("width") == 774);
  // An update may have no operation on the chosen ranks, or only one of no length.
  checked(draw_trace_timeline(read_back(trace.dump()), {.update = 9007199254740993, .ranks = {1}}));
  json instant = {{"traceEvents", {event(0, 1, "forward", "compute", 5, 0)}}};
  checked(draw_trace_timeline(read_back(instant.dump()), {}));
}

BOOST_AUTO_TEST_CASE(files_that_are_no_traces_are_refused) {
  const auto refused = [](const std::string& text, const std::string& why) {
    const std::string message = message_of([&] { read_back(text); });
    CHECK_CONTAINS(message, why);
    CHECK_CONTAINS(message, "make it with `trace-of-run`");
  };
  const std::string good = small_trace().dump();
  refused(good.substr(0, good.size() / 2), "(it is cut off, or no JSON)");
  refused("{}", "(it has no operations)");
  refused("[1, 2]", "(it has no operations)");
  for (const char* key : {"/pid", "/ts", "/dur", "/name", "/cat", "/args/update", "/args/part"})
    for (const json& value : {json("x\xFF"), json(-1e300), json(nullptr), json::array({1})}) {
      if (value.is_string() && (key == std::string("/name") || key == std::string("/cat"))) continue;
      json trace = small_trace();
      trace["traceEvents"][4][json::json_pointer(key)] = value;
      const std::string text = trace.dump(-1, ' ', false, json::error_handler_t::replace);
      BOOST_TEST_CONTEXT(key << " " << value.type_name()) refused(text, "(this operation is incomplete: {");
    }
  json negative = small_trace();
  negative["traceEvents"][4]["dur"] = -1;
  refused(negative.dump(), "incomplete");
  json older = small_trace();
  older["traceEvents"][4]["args"].erase("part");
  refused(older.dump(), "(an older version wrote this operation: {");
  const TemporaryFolder folder;
  write_file(folder / "trace", good);
  write_file(folder / "plan", "{\"plan\": {}}");
  BOOST_TEST(is_trace(folder / "trace"));
  BOOST_TEST(!is_trace(folder / "plan"));
}
