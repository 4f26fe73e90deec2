// Figures of plans: what fsdp-plan computes is read back from the coordinates of the drawings.
#include "fsdp-report/plan_figures.hpp"

#include <locale>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "fsdp-plan/plan_table.hpp"
#include "report/svg_reader.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;
using json = nlohmann::json;

namespace {

/// A plan as fsdp-report draws it, and what `fsdp-plan --json --explain` prints of it.
struct Planned {
  json printed;
  ExplainedPlan drawn;
  const json& operator[](const char* key) const { return printed.at(key); }
};

/// Plans the model of docs/how-it-works.md; `more` may be another model.
Planned plan_of(std::vector<const char*> more) {
  std::vector<const char*> words = {"fsdp-plan", "--config", FSDP_TEST_DATA "/../../inputs/lesson.cfg", "--json", "--explain"};
  words.insert(words.end(), more.begin(), more.end());
  PlanTableOptions options;
  OptionTable table = plan_option_table(options);
  table.parse(static_cast<int>(words.size()), words.data());
  const PlanTable made = make_plan_table(options);
  return {to_json(made), explained_plan(made)};
}
Planned four_ranks(std::vector<const char*> more = {}) {
  more.insert(more.end(), {"--ranks-per-node", "4"});
  return plan_of(more);
}

TitledPlan titled(const std::string& title, const Planned& plan, Queues queues = Queues::streams) {
  return {title, plan.drawn, queues};
}

/// Reads a figure, which must have no faults.
Picture checked(const Figure& figure) {
  Picture picture = read_svg(figure.svg.file(figure.height));
  BOOST_TEST(faults_of(picture) == "");
  return picture;
}

const json& row_of(const Planned& plan, const std::string& strategy) {
  for (const json& row : plan["strategies"])
    if (row["strategy"] == strategy) return row;
  throw std::runtime_error("no strategy " + strategy);
}

/// Returns `planned` with a few other operations, whose lengths are easy to add up.
struct Step {
  const char *kind, *label, *stream;
  UpdatePart part;
  double length;
  std::vector<int> waits;
};
Planned with_operations(Planned planned, const std::vector<Step>& steps) {
  planned.drawn.operations.clear();
  for (const auto& [kind, label, stream, part, length, waits] : steps) {
    ExplainedPlan::Operation& op = planned.drawn.operations.emplace_back();
    op.title = std::string(kind) + " " + label;
    op.kind = kind, op.label = label, op.stream = stream, op.part = part, op.drawn_time = length, op.waits = waits;
  }
  return planned;
}

/// The begins and lengths of the boxes with this hint, in pixels from the begin of the timeline.
std::vector<std::pair<double, double>> times_of(const Picture& picture, const std::string& hint) {
  std::vector<std::pair<double, double>> times;
  for (const SvgElement& box : picture.all("rect", hint)) times.emplace_back(box.number("x") - 92, box.number("width"));
  return times;
}

bool is_near(double a, double b, double most) { return std::abs(a - b) <= most; }

}  // namespace

BOOST_AUTO_TEST_CASE(no_figure_has_a_fault) {
  const std::string hostile =
      "<\"&'\xFF and a title that is much too long for the place that it has in any of the figures, or in most";
  const std::vector<std::pair<const char*, Planned>> plans = {
      {"full", four_ranks()},
      {"none", four_ranks({"--sharding-strategy", "none"})},
      {"hybrid", plan_of({"--nodes", "2", "--ranks-per-node", "2", "--sharding-strategy", "hybrid"})},
      {"one rank", plan_of({"--ranks-per-node", "1"})},
      {"one unit", four_ranks({"--wrap-policy", "none"})},
      {"frozen", four_ranks({"--train-only", "h.2.*"})},
      {"offload", four_ranks({"--device", "cuda", "--offload-params", "cpu"})},
      {"muon", four_ranks({"--optimizer", "muon"})},
      {"bf16", four_ranks({"--bf16"})},
      {"many blocks and ranks",
       plan_of({"--nodes", "8", "--ranks-per-node", "8", "--decoder-layers", "40", "--update-freq", "2"})},
      {"a large model", plan_of({"--ranks-per-node", "8", "--decoder-layers", "4", "--decoder-embed-dim", "8190",
                                 "--decoder-attention-heads", "9", "--wrap-policy", "none"})}};
  for (const auto& [name, plan] : plans)
    for (const std::string& title : {std::string("a title"), hostile}) BOOST_TEST_CONTEXT(name << ", " << title) {
        const std::vector<TitledPlan> one = {titled(title, plan)};
        const ExplainedPlan& file = one[0].plan;
        checked(draw_strategies(file));
        for (std::size_t unit = 0; unit < file.units.size(); unit += 3) checked(draw_units(file, unit));
        checked(draw_bytes(one));
        checked(draw_memory(one));
        checked(draw_memory(std::vector<TitledPlan>(14, one[0])));
        checked(draw_plan_timeline(one, true));
        if (file.nodes * file.ranks_per_node <= 8) checked(draw_nodes(std::vector<TitledPlan>(3, one[0])));
      }
  for (const char* ranks : {"2", "4", "8", "16"}) checked(draw_step(plan_of({"--ranks-per-node", ranks}).drawn, 1));
}

BOOST_AUTO_TEST_CASE(names_of_a_model_are_escaped) {
  Planned plan = four_ranks();
  for (ExplainedPlan::Unit& unit : plan.drawn.units) {
    unit.name = "<block> & \"quotes\"";
    for (ExplainedPlan::Tensor& tensor : unit.tensors) tensor.name = "<tensor>";
    unit.shard_slices[0][0].tensor = "<tensor> of a long name that is cut somewhere";
  }
  const Picture picture = checked(draw_units(plan.drawn, 1));
  BOOST_TEST(picture.says("the flat buffer of <block> & \"quotes\", tensor by tensor") == 1u);
  BOOST_TEST(picture.says("<tensor>") > 5u);
  BOOST_TEST(checked(draw_plan_timeline(std::vector<TitledPlan>{titled("a\xFFz", plan)}, true)).says("a\xEF\xBF\xBDz") == 1u);
}

BOOST_AUTO_TEST_CASE(strategies_are_cut_as_the_table_says) {
  const Planned plan = four_ranks({"--shard-group-size", "2"});
  const Picture picture = checked(draw_strategies(plan.drawn));
  // The filled part of each unit, of all ranks: "full, rank 1: gradients".
  const auto part = [&](const std::string& hint, const std::string& fill) {
    double filled = 0, whole = 0;
    for (const SvgElement& box : picture.all("rect", hint))
      (box.attribute("fill") == fill ? filled : whole) += box.number("width");
    return filled / whole;
  };
  BOOST_TEST(part("none, rank 1: parameters", "#77aadd") == 1, boost::test_tools::tolerance(0.01));
  BOOST_TEST(part("optim, rank 1: parameters", "#77aadd") == 1, boost::test_tools::tolerance(0.01));
  BOOST_TEST(part("optim, rank 1: optimizer state", "#44bb99") == 0.25, boost::test_tools::tolerance(0.02));
  BOOST_TEST(part("full, rank 3: parameters", "#77aadd") == 0.25, boost::test_tools::tolerance(0.02));
  BOOST_TEST(part("hybrid, rank 3: gradients", "#ee8866") == 0.5, boost::test_tools::tolerance(0.02));
  // Ranks of a shard group hold different parts, one after the other, and rank 2 of the second group what rank 0 holds.
  const auto left = [&](const std::string& strategy, int rank) {
    const auto filled = picture.all("rect", [&](const SvgElement& box) {
      return box.hint == format("{}, rank {}: parameters", strategy, rank) && box.attribute("fill") == "#77aadd";
    });
    const auto strip = picture.all("rect", format("{}, rank {}: parameters", strategy, rank));
    return filled.back().number("x") - strip.front().number("x");
  };
  BOOST_TEST(left("full", 0) < left("full", 1));
  BOOST_TEST(left("full", 2) < left("full", 3));
  BOOST_TEST(is_near(left("hybrid", 2), left("hybrid", 0), 0.11));
  BOOST_TEST(picture.says("groups of 2") == 1u);
  for (const char* strategy : {"none", "optim", "grad-op", "full", "hybrid"}) {
    const json& memory = row_of(plan, strategy)["keeping"]["memory"];
    std::uint64_t sum = 0;
    for (const char* state : {"parameters", "gradients", "optimizer_state", "gathered_parameters", "unreduced_gradients"})
      sum += memory[state].get<std::uint64_t>();
    BOOST_TEST(picture.says("= " + grouped(sum)) == 1u);
  }
  for (const char* entry : {"parameters", "gradients", "optimizer state", "whole from forward to backward, in slots"})
    BOOST_TEST(picture.says(entry) == 1u, entry);
}

BOOST_AUTO_TEST_CASE(units_have_their_sizes) {
  const Planned plan = four_ranks();
  const json& units = plan["plan"]["units"];
  const Picture picture = checked(draw_units(plan.drawn, 1));
  const double per_element = picture.one("rect", "block 0, rank 0").number("width") / units[1]["of_a_rank"].get<double>();
  BOOST_TEST(
      is_near(picture.one("rect", "root, rank 3").number("width"), per_element * units[0]["of_a_rank"].get<double>(), 0.11));
  BOOST_TEST(picture.says("6,468") == 1u);
  BOOST_TEST(picture.says("1,884") == 3u);
  // The tensors of block 0 in its flat buffer, which is 794 pixels wide.
  const double scale = 794 / units[1]["padded"].get<double>();
  for (const json& tensor : units[1]["tensors"]) {
    const SvgElement box = picture.one("rect", tensor["name"].get<std::string>() + ":");
    BOOST_TEST(is_near((box.number("x") - 72) / scale, tensor["offset"].get<double>(), 0.06 / scale));
    BOOST_TEST(is_near(box.number("width") / scale, tensor["elements"].get<double>(), 0.06 / scale));
  }
  BOOST_TEST(picture.says("rank 2: elements 960 to 1,439") == 1u);
  BOOST_TEST(picture.says("mlp.c_fc.weight [256, 576)") == 1u);
  BOOST_TEST(picture.says("12 x 48") == 1u);
  BOOST_TEST(picture.says("padding") == 1u);
}

BOOST_AUTO_TEST_CASE(of_many_units_two_of_each_size_are_drawn) {
  const Planned plan = four_ranks({"--optimizer", "muon", "--decoder-layers", "20"});  // each block has two units
  const Picture picture = checked(draw_units(plan.drawn, 9));
  BOOST_TEST(plan["plan"]["units"].size() > 40u);
  for (const auto& [name, times] :
       std::map<std::string, std::size_t>{{"block 0", 1}, {"block 1", 1}, {"block 2", 0}, {"block 4", 1}, {"...", 2}})
    BOOST_TEST(picture.says(name) == times, name);
}

BOOST_AUTO_TEST_CASE(numbers_are_whole_up_to_2_to_the_63) {
  Planned plan = four_ranks();
  const std::uint64_t huge = (std::uint64_t{1} << 62) + 1;  // 4,611,686,018,427,387,905
  ExplainedPlan::Unit& unit = plan.drawn.units[0];
  unit.elements = huge, unit.padded = huge + 3, unit.of_a_rank = (huge + 3) / 4;
  const Picture units = checked(draw_units(plan.drawn, 1));
  BOOST_TEST(units.says("4,611,686,018,427,387,905") == 1u);
  BOOST_TEST(units.says("4,611,686,018,427,393,557") == 1u);  // + 3 * 1,884
  MemoryAccount& memory = plan.drawn.strategies[0].keeping.memory;
  memory.by_role = {};
  memory.by_role[static_cast<std::size_t>(BufferRole::parameters)] = (std::size_t{1} << 53) + 1;
  const Picture strategies = checked(draw_strategies(plan.drawn));
  BOOST_TEST(strategies.says("9,007,199,254,740,993") >= 1u);
  plan.drawn.buffers[0].bytes = std::uint64_t{1} << 63;
  BOOST_TEST(checked(draw_memory(std::vector<TitledPlan>{titled("", plan)})).says("at most 9.2 EB") == 1u);
}

BOOST_AUTO_TEST_CASE(a_step_moves_the_bytes_of_its_shard) {
  const Planned plan = four_ranks();
  const Picture picture = checked(draw_step(plan.drawn, 1));
  BOOST_TEST(picture.says("480 parameters, 1,920 B") == 1u);
  BOOST_TEST(picture.says("3 x 1,920 B; all are the same then") == 1u);
  BOOST_TEST(picture.says("a rank sends 3 x 1,920 B") == 1u);
  BOOST_TEST(picture.says("the 3,840 B of its moments") == 1u);
  BOOST_TEST(picture.says("w2") == 1u + 4u);
  BOOST_TEST(picture.says("sum") == 4u);
  CHECK_CONTAINS(message_of([&] {
                   draw_step(four_ranks({"--sharding-strategy", "none"}).drawn, 1);
                 }),
                 "is not both gathered and reduced");
  CHECK_CONTAINS(message_of([&] { draw_step(plan.drawn, 4); }), "there is no unit 4 (the plan of");
  CHECK_CONTAINS(message_of([&] { draw_step(plan_of({"--ranks-per-node", "32"}).drawn, 1); }), "room for 16 ranks");
}

BOOST_AUTO_TEST_CASE(bars_of_traffic_are_on_one_scale) {
  std::vector<TitledPlan> plans;
  std::vector<json> rows;
  for (const char* strategy : {"none", "full", "hybrid"}) {
    const Planned plan = plan_of({"--nodes", "2", "--ranks-per-node", "2", "--sharding-strategy", strategy});
    plans.push_back(titled("", plan));
    rows.push_back(row_of(plan, strategy)["keeping"]["traffic"]);
  }
  const Picture picture = checked(draw_nodes(plans));
  const auto entry = [](const SvgElement& box) { return box.number("height") == 16; };
  const auto bars = picture.all("rect", entry);  // within and between nodes, by plan
  BOOST_TEST_REQUIRE(bars.size() == 6u);
  double most = 0;
  for (const json& row : rows) most = std::max(most, row["within_node"].get<double>() + row["between_nodes"].get<double>());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    BOOST_TEST(is_near(bars[2 * i].number("width") * most / 224, rows[i]["within_node"].get<double>(), 0.06 * most / 224));
    BOOST_TEST(
        is_near(bars[2 * i + 1].number("width") * most / 224, rows[i]["between_nodes"].get<double>(), 0.06 * most / 224));
    BOOST_TEST(is_near(bars[2 * i + 1].number("x"), bars[2 * i].number("x") + bars[2 * i].number("width"), 0.11));
  }
  plans.push_back(titled("", four_ranks()));
  CHECK_CONTAINS(message_of([&] { draw_nodes(plans); }), "a figure shows one cluster");
}

BOOST_AUTO_TEST_CASE(bytes_per_parameter) {
  const std::vector<TitledPlan> plans = {titled("fp32", four_ranks()), titled("bf16", four_ranks({"--bf16"})),
                                         titled("optim", four_ranks({"--bf16", "--sharding-strategy", "optim"}))};
  const Picture picture = checked(draw_bytes(plans));
  BOOST_TEST(picture.says("16") == 1u);
  BOOST_TEST(picture.says("18") == 2u);  // also where the parameters are whole on each rank
  const auto widths = [&](const char* hint) {
    std::vector<double> all;
    for (const SvgElement& box : picture.all("rect", hint)) all.push_back(box.number("width"));
    return all;
  };
  const double per_byte = widths("optimizer state").at(0) / 8;
  BOOST_TEST(is_near(widths("parameters computed with").at(0), 4 * per_byte, 0.11));
  BOOST_TEST(is_near(widths("parameters computed with").at(2), 2 * per_byte, 0.11));
  BOOST_TEST(widths("fp32 copy").size() == 2u);
}

BOOST_AUTO_TEST_CASE(memory_is_read_back) {
  const std::vector<Planned> plans = {four_ranks({"--sharding-strategy", "none"}), four_ranks()};
  const Picture picture = checked(draw_memory(std::vector<TitledPlan>{titled("none", plans[0]), titled("full", plans[1])}));
  // The scale comes from the labels of the axis: the base lines of "0" and "100" kB, 4 pixels below their lines.
  const double zero = picture.text("0").number("y") - 4;
  const double per_byte = (zero - picture.text("100").number("y") + 4) / 100'000;
  for (std::size_t p = 0; p < plans.size(); ++p) {
    const json& plan = plans[p]["plan"];
    std::map<std::string, double> held;
    double base = 0;
    for (const json& buffer : plan["buffers"])
      if (buffer["whole_run"] && !buffer["on_host"]) held[buffer["role"]] += buffer["bytes"].get<double>();
    for (const char* role : {"parameters", "gradients", "optimizer state", "gathered parameters", "unreduced gradients"}) {
      if (held[role] == 0) continue;
      const auto boxes = picture.all("rect", std::string(role) + ": " + grouped(static_cast<std::uint64_t>(held[role])) + " B");
      BOOST_TEST_REQUIRE(boxes.size() >= 1u);
      const SvgElement& box = boxes.front();
      BOOST_TEST(is_near((zero - box.number("y") - box.number("height")) / per_byte, base, 0.16 / per_byte));
      BOOST_TEST(is_near(box.number("height") / per_byte, held[role], 0.16 / per_byte));
      base += held[role];
    }
    const auto outline = picture.all("polygon", "activations").at(p).points();
    BOOST_TEST_REQUIRE(outline.size() == 2 * plan["operations"].size() + 2);
    for (std::size_t i = 0; i < plan["operations"].size(); ++i)
      BOOST_TEST(is_near((zero - outline[2 * i + 1].y) / per_byte, base + plan["operations"][i]["activations"].get<double>(),
                         0.16 / per_byte));
  }
  BOOST_TEST(picture.says("activations") == 1u);
  BOOST_TEST(picture.says("backward") == 2u);
  const Picture twice = checked(draw_memory(std::vector<TitledPlan>{titled("", four_ranks({"--update-freq", "2"}))}));
  BOOST_TEST(twice.says("forward") == 2u);
  BOOST_TEST(twice.says("backward") == 2u);
  CHECK_CONTAINS(message_of([&] { draw_memory(std::vector<TitledPlan>(15, titled("", plans[0]))); }),
                 "there is room for 14 plans side by side (there are 15)");
}

BOOST_AUTO_TEST_CASE(operations_begin_when_their_stream_and_what_they_wait_for_are_done) {
  using Times = std::vector<std::pair<double, double>>;
  const Planned plan = with_operations(four_ranks(), {{"all-gather", "G0", "gather", UpdatePart::gather, 1, {}},
                                                      {"all-gather", "G1", "gather", UpdatePart::gather, 2, {}},
                                                      {"forward", "F0", "compute", UpdatePart::forward, 1, {0}},
                                                      {"forward", "F1", "compute", UpdatePart::forward, 1, {1}},
                                                      {"backward", "B1", "compute", UpdatePart::backward, 2, {}},
                                                      {"all-gather", "G2", "gather", UpdatePart::gather, 1, {}},
                                                      {"reduce-scatter", "R1", "reduce", UpdatePart::reduce, 1, {4}},
                                                      {"release", " ", "compute", UpdatePart::other, 0, {6}},
                                                      {"optimizer", "Oroot, add", "compute", UpdatePart::optimizer, 1, {6}}});
  struct Expected {
    Queues queues;
    double length;
    std::map<std::string, std::pair<double, double>> times;
    Times waits;
  };
  const std::vector<Expected> all = {
      {Queues::streams,
       8,
       {{"all-gather G1", {1, 2}},
        {"forward F0", {1, 1}},
        {"forward F1", {3, 1}},
        {"backward", {4, 2}},
        {"all-gather G2", {3, 1}},
        {"reduce", {6, 1}},
        {"optimizer", {7, 1}}},
       {{0, 1}, {2, 1}, {6, 1}}},
      // The thread that communicates gets G2 when the computing thread has done the backward pass, which is before G2 in the
      // plan.
      {Queues::thread,
       9,
       {{"forward F1", {3, 1}}, {"all-gather G2", {6, 1}}, {"reduce", {7, 1}}, {"optimizer", {8, 1}}},
       {{0, 1}, {2, 1}, {6, 2}}},
      {Queues::one,
       10,
       {{"all-gather G1", {1, 2}}, {"forward F0", {3, 1}}, {"backward", {5, 2}}, {"reduce", {8, 1}}, {"optimizer", {9, 1}}},
       {{0, 3}, {7, 2}}}};
  for (const Expected& expected : all) {
    const Picture picture = checked(draw_plan_timeline(std::vector<TitledPlan>{titled("t", plan, expected.queues)}, false));
    const double per_unit = 774 / expected.length;
    const auto are = [&](const Times& drawn, const Times& times) {
      bool same = drawn.size() == times.size();
      for (std::size_t i = 0; same && i < drawn.size(); ++i)
        same = is_near(drawn[i].first, times[i].first * per_unit, 0.11) &&
               is_near(drawn[i].second, times[i].second * per_unit, 0.11);
      return same;
    };
    for (const auto& [hint, time] : expected.times)
      BOOST_TEST(are(times_of(picture, hint), {time}), hint << " in mode " << static_cast<int>(expected.queues));
    BOOST_TEST(are(times_of(picture, "waits"), expected.waits));
    double waited = 0;
    for (const auto& [begin, length] : expected.waits) waited += length;
    BOOST_TEST(picture.says(format("length {:.1f}, compute waits {:.1f} (1 is the forward pass of a block)", expected.length,
                                   waited)) == 1u);
    BOOST_TEST(picture.says("O") == 1u);  // without "root" and what follows
    BOOST_TEST(picture.says("forward (F)") == 1u);
    BOOST_TEST(picture.says("waits") == 1u);
  }
}

BOOST_AUTO_TEST_CASE(predicted_times_are_drawn_in_milliseconds) {
  const Planned plan = four_ranks({"--bf16", "--gpu", "h100", "--update-freq", "5", "--batch-size", "64"});
  const json& operations = plan["plan"]["operations"];
  double length = 0, waited = 0, used = 0;
  for (const json& op : operations) {
    const double begin = op["begin_ms"], end = op["end_ms"];
    length = std::max(length, end);
    for (const json& before : op["waits"]) BOOST_TEST(operations[before.get<std::size_t>()]["end_ms"].get<double>() <= begin);
    if (op["stream"] != "compute" || end <= begin) continue;
    waited += std::max(0.0, begin - used), used = end;
  }
  // A trace of one operation, which takes as long as the plan, halves the scale if it begins at the plan's end.
  TimelinePanel measured{.title = "rank 0", .note = "measured", .rows = {}};
  add_box(measured, "compute", {length, 2 * length, "", "traced", paint::pear});
  const std::vector<TitledPlan> plans = {titled("t", plan)};
  for (const bool with_trace : {false, true}) {
    const std::vector<TimelinePanel> trace(with_trace ? 1 : 0, measured);
    const Picture picture = checked(draw_plan_timeline(plans, false, trace));
    const double per_ms = 774 / (with_trace ? 2 * length : length);
    for (const json& op : operations) {
      const double begin = op["begin_ms"], duration = op["end_ms"].get<double>() - begin;
      if (duration * per_ms < 0.3) continue;
      const auto boxes = times_of(picture, format("{}, {:.3f} ms", op["title"].get<std::string>(), duration));
      BOOST_TEST(std::ranges::any_of(boxes,
                                     [&](const auto& box) {
                                       return is_near(box.first, begin * per_ms, 0.11) &&
                                              is_near(box.second, duration * per_ms, 0.11);
                                     }),
                 op["title"]);
    }
    BOOST_TEST(
        picture.says(format("{:.1f} ms with 2 of 5 micro-batches, predicted; compute waits {:.1f} ms", length, waited)) == 1u);
    BOOST_TEST(picture.says("measured") == (with_trace ? 1u : 0u));
    if (with_trace) BOOST_TEST(is_near(times_of(picture, "traced").at(0).first, 387, 0.11));
  }
  const Planned without = four_ranks();
  BOOST_TEST(!without["plan"]["operations"][0].contains("begin_ms"));
  CHECK_CONTAINS(message_of([&] {
                   draw_plan_timeline(std::vector{titled("t", plan), titled("u", without)}, false);
                 }),
                 "has no times, but another one has (all have one scale); make its file with fsdp-plan --gpu NAME, too");
}

BOOST_AUTO_TEST_CASE(a_legend_has_as_many_lines_as_it_needs) {
  Svg svg(figure_width);
  const double end = draw_legend(svg, figure_margin, 20, std::vector<LegendEntry>(12, {"an entry of a legend", paint::blue}));
  BOOST_TEST(end == 40);
  BOOST_TEST(checked({svg, end + 10}).says("an entry of a legend") == 12u);
}

BOOST_AUTO_TEST_CASE(slots_are_used_from_a_gather_to_its_release) {
  const Planned plan = four_ranks();
  const Picture picture = checked(draw_plan_timeline(std::vector<TitledPlan>{titled("t", plan)}, true));
  BOOST_TEST(picture.says("slot P root") == 1u);
  BOOST_TEST(picture.says("slot P1") == 1u);
  BOOST_TEST(picture.says("root") == 1u);
  // The root is gathered first and released after the head: its slot is used for as long.
  const double head_ends = times_of(picture, "head and loss").at(0).first + times_of(picture, "head and loss").at(0).second;
  const auto root = times_of(picture, "root").at(0);
  BOOST_TEST(is_near(root.first, times_of(picture, "all-gather root").at(0).first, 0.11));
  BOOST_TEST(is_near(root.first + root.second, head_ends, 0.21));
  BOOST_TEST(checked(draw_plan_timeline(std::vector<TitledPlan>{titled("t", plan)}, false)).says("slot P1") == 0u);
}

BOOST_AUTO_TEST_CASE(numbers_do_not_depend_on_the_locale) {
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::vector<TitledPlan> plans = {titled("t", four_ranks())};
  const auto draw = [&] {
    std::string text;
    for (const Figure& figure : {draw_units(plans[0].plan, 1), draw_memory(plans), draw_plan_timeline(plans, true)})
      text += figure.svg.file(figure.height);
    return text;
  };
  const std::string expected = draw();
  const std::locale before = std::locale::global(std::locale(std::locale(), new Comma));
  const std::string drawn = draw();
  std::locale::global(before);
  BOOST_TEST((drawn == expected));
}
