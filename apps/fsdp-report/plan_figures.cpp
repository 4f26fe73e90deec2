#include "fsdp-report/plan_figures.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "base/error.hpp"
#include "plan/schedule.hpp"

namespace fsdp {

namespace {

constexpr double right = figure_width - figure_margin;
constexpr Stroke rule = {.colour = paint::rule}, thin = {.colour = "#999", .width = 0.6};
constexpr std::array<std::string_view, 3> state_names = {"parameters", "gradients", "optimizer state"};
constexpr std::array<std::string_view, 3> state_paints = {paint::blue, paint::orange, paint::mint};
constexpr std::array<std::string_view, 8> rank_paints = {paint::blue, paint::yellow, paint::mint,   paint::pink,
                                                         paint::cyan, paint::pear,   paint::orange, paint::grey};
constexpr std::array<std::string_view, 4> gradient_tints = {"#fbd5c8", "#f6b49e", "#ee8866", "#cf6644"};

double real(std::uint64_t number) { return static_cast<double>(number); }
/// The part of `of` that `part` is.
double ratio(std::uint64_t part, std::uint64_t of) { return of == 0 ? 0 : real(part) / real(of); }

/// Draws a strip of the model's units; the parts in shard `shard` of `shards` are filled.
void draw_strip(Svg& svg, Point at, double width, double height, const ExplainedPlan& plan, std::uint64_t shards,
                std::uint64_t shard, std::string_view fill, std::string_view ground, const std::string& hint) {
  const std::uint64_t all = sum_of(plan.units, [](const ExplainedPlan::Unit& unit) { return unit.padded; });
  const bool one = plan.units.size() > 12;  // more units do not fit
  for (const ExplainedPlan::Unit& unit : plan.units) {
    const double w = one ? width : width * ratio(unit.padded, all);
    svg.box(at.x, at.y, w, height, ground, thin, hint);
    svg.box(at.x + w * ratio(shard, shards), at.y, w / real(shards), height, fill, box_edge, hint);
    at.x += w;
    if (one) break;
  }
}

/// Refuses a unit that the plan does not have.
const ExplainedPlan::Unit& unit_of(const ExplainedPlan& plan, std::size_t unit) {
  if (unit >= plan.units.size())
    throw UserError(format("there is no unit {} (the plan of '{}' has units 0 to {}); give a smaller `drawn-unit`", unit,
                           plan.path.string(), plan.units.size() - 1));
  return plan.units[unit];
}

/// A tensor's name without the prefix of its block.
std::string_view short_name(std::string_view name) {
  for (const std::string_view part : {".h.", ".layers."})
    if (const std::size_t at = name.find(part); at != std::string_view::npos) {
      const std::size_t digits = at + part.size(), dot = name.find_first_not_of("0123456789", digits);
      if (dot != std::string_view::npos && dot > digits && name[dot] == '.') return name.substr(dot + 1);
    }
  return name;
}

/// Draws the units in a table with their shards, from `y` on. If there are many, only the first two of each size are drawn, and
/// unit `also`. Returns the y below.
double draw_table_of_units(Svg& svg, double y, const ExplainedPlan& plan, std::size_t also) {
  constexpr double begin = 130, gap = 24;
  struct Column {
    std::string_view heading;
    std::uint64_t ExplainedPlan::Unit::*count;
    std::uint64_t sum;
    double end;
  };
  std::array<Column, 3> columns = {{{"elements", &ExplainedPlan::Unit::elements, 0, 0},
                                    {"with padding", &ExplainedPlan::Unit::padded, 0, 0},
                                    {"of a rank", &ExplainedPlan::Unit::of_a_rank, 0, right}}};
  double end = right;
  for (std::size_t c = columns.size(); c-- > 0;) {
    Column& column = columns[c];
    column.sum = sum_of(plan.units, [&](const ExplainedPlan::Unit& unit) { return unit.*column.count; });
    column.end = end;
    end -= gap + std::max(width_of(column.heading, bold_text), width_of(grouped(column.sum), TextStyle()));
  }
  const double room = end - begin;
  const std::uint64_t most = std::ranges::max(plan.units, {}, &ExplainedPlan::Unit::padded).padded;

  svg.text(figure_margin, y, "unit", bold_text);
  text_if_it_fits(svg, begin, y, room, "cut into shards, one for each rank", bold_text);
  for (const Column& column : columns) svg.text(column.end, y, column.heading, bold_end);
  y += 12;
  std::map<std::uint64_t, int> drawn;  // rows by the number of elements
  bool left_out = false;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const ExplainedPlan::Unit& unit = plan.units[u];
    if (plan.units.size() > 8 && u != also && (drawn[unit.elements] >= 2 || drawn.size() > 20)) {
      if (!left_out) svg.text(figure_margin, y + 10, "..."), y += 20;
      left_out = true;
      continue;
    }
    ++drawn[unit.elements], left_out = false;
    fitted_text(svg, figure_margin, y + 17, begin - figure_margin - 8, unit.name, {});
    const double width = room * ratio(unit.padded, most), part = width / real(unit.shards);
    if (part < 3) {
      svg.box(begin, y + 2, width, 20, paint::grey, box_edge, unit.name);
      text_if_it_fits(svg, begin + width / 2, y + 16, width - 2, format("{} shards", unit.shards), small_middle);
    } else {
      for (std::uint64_t r = 0; r < unit.shards; ++r) {
        const std::string name = format("rank {}", r);
        svg.box(begin + part * real(r), y + 2, part, 20, rank_paints[r % rank_paints.size()], box_edge,
                unit.name + ", " + name);
        text_if_it_fits(svg, begin + part * (real(r) + 0.5), y + 16, part - 2,
                        width_of(name, small_text) <= part - 2 ? name : format("{}", r), small_middle);
      }
    }
    for (const Column& column : columns) svg.text(column.end, y + 17, grouped(unit.*column.count), {.anchor = Anchor::end});
    y += 30;
  }
  svg.line({end + gap, y}, {right, y}, rule);
  for (const Column& column : columns) svg.text(column.end, y + 17, grouped(column.sum), {.anchor = Anchor::end});
  return y + 24;
}

/// The labels of tensors that are too narrow for a label in their box: these are slanted, above the boxes.
struct SlantedLabel {
  std::uint64_t elements = 0;
  double tensor = 0, at = 0;  // the middle of the tensor, and the place of the label
  std::string text;
};
constexpr double slanted_gap = 15, slanted_sine = 0.866;

/// Moves labels so that they are slanted_gap apart, from `first` to `last`. If there is not room for all, those of the
/// smallest tensors are left out.
void spread(std::vector<SlantedLabel>& labels, double first, double last) {
  const auto room = static_cast<std::size_t>((last - first) / slanted_gap) + 1;
  if (labels.size() > room) {
    std::stable_sort(labels.begin(), labels.end(), [](const auto& a, const auto& b) { return a.elements > b.elements; });
    labels.resize(room);
    std::sort(labels.begin(), labels.end(), [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
  }
  double least = first;
  for (SlantedLabel& label : labels) label.at = std::max(label.tensor, least), least = label.at + slanted_gap;
  double most = last;
  for (std::size_t i = labels.size(); i-- > 0;) labels[i].at = std::min(labels[i].at, most), most = labels[i].at - slanted_gap;
}

/// Draws the flat buffer of a unit: its tensors, its shards, and which parts of tensors are in which shard. Returns the y
/// below.
double draw_buffer(Svg& svg, double y, const ExplainedPlan::Unit& unit) {
  constexpr double begin = 72, width = right - begin;
  const auto at = [&](std::uint64_t element) { return begin + width * ratio(element, unit.padded); };
  std::vector<SlantedLabel> slanted;
  for (const ExplainedPlan::Tensor& tensor : unit.tensors)
    if (const double from = at(tensor.offset), to = at(tensor.offset + tensor.elements);
        width_of(short_name(tensor.name), small_text) > to - from - 4)
      slanted.push_back({tensor.elements, (from + to) / 2, 0, fitted(short_name(tensor.name), 2 * (begin - 12), small_size)});
  spread(slanted, begin, right - 8);
  double longest = 0;
  for (const SlantedLabel& label : slanted) longest = std::max(longest, width_of(label.text, small_text));
  y += slanted.empty() ? 12 : 28 + slanted_sine * longest;

  const auto padding = [&](std::uint64_t from, std::uint64_t to) {
    if (to > from)
      svg.box(at(from), y, at(to) - at(from), 34, "url(#padding)", {}, format("padding: {} elements", grouped(to - from)));
  };
  std::uint64_t end = 0;
  for (const ExplainedPlan::Tensor& tensor : unit.tensors) {
    padding(end, tensor.offset);
    end = tensor.offset + tensor.elements;
    svg.box(at(tensor.offset), y, at(end) - at(tensor.offset), 34, "#f2f2f2", box_edge,
            format("{}: {} elements", tensor.name, grouped(tensor.elements)));
  }
  padding(end, unit.padded);
  for (const SlantedLabel& label : slanted) {
    svg.line({label.tensor, y}, {label.at, y - 12}, {.colour = "#999"});
    svg.text(label.at + 3, y - 14, label.text, {.size = small_size, .anchor = Anchor::end, .rotate = 60});
  }

  const double part = width / real(unit.shards);
  constexpr std::size_t most_lines = 12;
  std::size_t lines = 0;
  if (part < 3) {
    svg.box(begin, y + 42, width, 22, paint::grey, box_edge);
    svg.text(begin + width / 2, y + 57,
             format("{} shards of {} elements, one for each rank", grouped(unit.shards), grouped(unit.of_a_rank)),
             small_middle);
  }
  for (std::uint64_t r = 0; r < unit.shards && part >= 3; ++r) {
    const std::uint64_t first = r * unit.of_a_rank;
    const double from = at(first), middle = from + part / 2;
    const std::string name = format("rank {}: elements {} to {}", r, grouped(first), grouped(first + unit.of_a_rank - 1));
    svg.box(from, y + 42, part, 22, rank_paints[r % rank_paints.size()], box_edge, name);
    text_if_it_fits(svg, middle, y + 57, part - 4, width_of(name, small_text) <= part - 4 ? name : format("{}", r),
                    small_middle);
    if (r > 0) svg.line({from, y - 8}, {from, y + 42}, {.colour = paint::ink, .width = part < 30 ? 0.7 : 1.4, .dashes = "3 2"});
    if (part <= 100) continue;  // the names do not fit
    const std::vector<ExplainedPlan::Part>& parts = unit.shard_slices[r];
    for (std::size_t i = 0; i < parts.size() && i < most_lines; ++i) {
      const bool more = i + 1 == most_lines && parts.size() > most_lines;
      const std::string range = format(" [{}, {})", grouped(parts[i].begin), grouped(parts[i].end));
      fitted_text(svg, middle, y + 80 + 14 * real(i), part - 6,
                  more ? format("and {} more", parts.size() - i)
                       : fitted(short_name(parts[i].tensor), part - 6 - width_of(range, quiet_text), small_size) + range,
                  quiet_middle);
    }
    lines = std::max(lines, std::min(parts.size(), most_lines));
  }
  for (const ExplainedPlan::Tensor& tensor : unit.tensors) {  // over the cuts between shards, with a halo
    const double from = at(tensor.offset), to = at(tensor.offset + tensor.elements), room = to - from - 4;
    if (width_of(short_name(tensor.name), small_text) > room) continue;
    const TextStyle name = {.size = small_size, .anchor = Anchor::middle, .halo = "#f2f2f2"};
    TextStyle shape = name;
    shape.fill = paint::quiet;
    svg.text((from + to) / 2, y + 15, short_name(tensor.name), name);
    text_if_it_fits(svg, (from + to) / 2, y + 29, room, format("{}", fmt::join(tensor.shape, " x ")), shape);
  }
  return y + 88 + 14 * real(lines);
}

}  // namespace

Figure draw_strategies(const ExplainedPlan& plan) {
  struct Known {
    std::string_view name, others;
  };
  constexpr std::array<Known, 5> order = {{{"none", "DDP, NO_SHARD"},
                                           {"optim", "ZeRO-1"},
                                           {"grad-op", "ZeRO-2, SHARD_GRAD_OP"},
                                           {"full", "ZeRO-3, FULL_SHARD"},
                                           {"hybrid", "HYBRID_SHARD"}}};
  struct Row {
    const PlanRow* strategy;
    std::string_view others;
    std::array<std::string, 5> numbers;
  };
  std::vector<Row> rows;
  double numbers_width = width_of("bytes of a rank", bold_text);
  for (const Known& known : order) {
    const auto found = std::find_if(plan.strategies.begin(), plan.strategies.end(),
                                    [&](const PlanRow& one) { return one.placement->name == known.name; });
    if (found == plan.strategies.end()) continue;
    Row row{&*found, known.others, {}};
    const MemoryAccount& memory = found->keeping.memory;
    const std::array<std::uint64_t, 3> bytes = {memory.of(BufferRole::parameters), memory.of(BufferRole::gradients),
                                                memory.of(BufferRole::optimizer_state)};
    const std::uint64_t slots = memory.of(BufferRole::gathered_parameters) + memory.of(BufferRole::unreduced_gradients);
    for (std::size_t s = 0; s < state_names.size(); ++s) row.numbers[s] = grouped(bytes[s]);
    row.numbers[3] = "+ slots " + grouped(slots);
    row.numbers[4] = "= " + grouped(bytes[0] + bytes[1] + bytes[2] + slots);
    for (const std::string& number : row.numbers) numbers_width = std::max(numbers_width, width_of(number, small_text));
    rows.push_back(std::move(row));
  }
  Svg svg(figure_width);
  const std::uint64_t all = plan.nodes * plan.ranks_per_node, ranks = std::min<std::uint64_t>(all, 8);
  constexpr double begin = 174;
  const double w = (right - numbers_width - 20 - begin) / real(ranks), strip = w - 14;
  if (all > ranks) svg.text(figure_margin, 24, format("{} of {} ranks", ranks, grouped(all)), quiet_text);
  for (std::uint64_t r = 0; r < ranks; ++r)
    text_if_it_fits(svg, begin + w * real(r) + strip / 2, 24, w, format("rank {}", r), bold_middle);
  svg.text(right, 24, "bytes of a rank", bold_end);
  double y = 38;
  bool whole_parameters = false, whole_gradients = false;
  for (const auto& [strategy, others, numbers] : rows) {
    svg.line({figure_margin, y}, {right, y}, rule);
    svg.text(figure_margin, y + 24, strategy->placement->name, bold_text);
    svg.text(figure_margin, y + 42, others, quiet_text);
    if (strategy->mesh.shard > 1 && strategy->mesh.replicate > 1)
      svg.text(figure_margin, y + 58, format("groups of {}", strategy->mesh.shard), quiet_text);
    for (std::uint64_t r = 0; r < ranks; ++r)
      for (std::size_t s = 0; s < state_names.size(); ++s) {
        const std::uint64_t parts = strategy->parts_of(s);
        const std::string_view ground = !strategy->kept_whole()[s] ? "#fff" : s == 0 ? paint::light_cyan : paint::light_pink;
        draw_strip(svg, {begin + w * real(r), y + 10 + 14 * real(s)}, strip, 10, plan, parts, r % parts, state_paints[s],
                   ground, format("{}, rank {}: {}", strategy->placement->name, r, state_names[s]));
      }
    for (std::size_t n = 0; n < numbers.size(); ++n)
      svg.text(right, y + (n < 3 ? 19 + 14 * real(n) : 16 * real(n + 1)), numbers[n], small_end);
    whole_parameters = whole_parameters || strategy->kept_whole()[0],
    whole_gradients = whole_gradients || strategy->kept_whole()[1];
    y += 90;
  }
  svg.line({figure_margin, y}, {right, y}, rule);
  std::vector<LegendEntry> legend;
  for (std::size_t s = 0; s < state_names.size(); ++s) legend.push_back({std::string(state_names[s]), state_paints[s]});
  if (whole_parameters) legend.push_back({"whole from forward to backward, in slots", paint::light_cyan});
  if (whole_gradients) legend.push_back({"whole until they are reduced, in slots", paint::light_pink});
  const double end = draw_legend(svg, figure_margin, y + 22, legend);
  return {svg, end + 14};
}

Figure draw_units(const ExplainedPlan& plan, std::size_t unit) {
  const ExplainedPlan::Unit& chosen = unit_of(plan, unit);
  Svg svg(figure_width);
  svg.hatch("padding", "#fff", "#888");
  double y = draw_table_of_units(svg, 20, plan, unit) + 16;
  fitted_text(svg, figure_margin, y, right - figure_margin, format("the flat buffer of {}, tensor by tensor", chosen.name),
              bold_text);
  y = draw_buffer(svg, y, chosen);
  const std::array<LegendEntry, 1> legend = {{{"padding", "url(#padding)"}}};
  draw_legend(svg, 72, y, legend);
  svg.text(172, y + 1, "so that every tensor and shard starts on a cache line (16 elements)", quiet_text);
  return {svg, y + 16};
}

Figure draw_step(const ExplainedPlan& plan, std::size_t unit) {
  const ExplainedPlan::Unit& chosen = unit_of(plan, unit);
  std::uint64_t gathered = 0, reduced = 0;
  for (const ExplainedPlan::Operation& op : plan.operations) {
    if (op.unit != static_cast<int>(unit)) continue;
    if (op.kind == "all-gather") gathered = op.moved_bytes;
    if (op.kind == "reduce-scatter") reduced = op.moved_bytes;
  }
  if (gathered == 0 || reduced == 0)
    throw UserError(
        format("unit {} is not both gathered and reduced in this plan, so there is no step to draw; draw a plan of "
               "`sharded-plan`, or another `drawn-unit`",
               chosen.name));
  if (chosen.shards > 16)
    throw UserError(format("there is room for 16 ranks (the plan of '{}' has {} shards); draw a plan for fewer ranks",
                           plan.path.string(), chosen.shards));
  const std::uint64_t shards = chosen.shards;
  struct Row {
    std::string_view title;
    std::string first, second;
  };
  const std::array<Row, 5> rows = {
      {{"at rest", format("a rank has its shard of {}:", chosen.name),
        format("{} parameters, {}", grouped(chosen.of_a_rank), short_bytes(chosen.parameter_bytes))},
       {"all-gather",
        "a rank sends its shard to each other:", format("{} x {}; all are the same then", shards - 1, short_bytes(gathered))},
       {"forward and backward", "each with tokens of its own: gradients", "differ; a rank has all " + grouped(chosen.padded)},
       {"reduce-scatter",
        "each shard is added up where it stays:", format("a rank sends {} x {}", shards - 1, short_bytes(reduced))},
       {"optimizer", "a rank updates its shard alone, with",
        format("the {} of its moments", short_bytes(chosen.optimizer_state_bytes))}}};
  Svg svg(figure_width);
  constexpr double begin = 236;
  const double w = (right - begin) / real(shards), cell = (w - 16) / real(shards);
  for (std::uint64_t r = 0; r < shards; ++r)
    text_if_it_fits(svg, begin + w * (real(r) + 0.5) - 8, 24, w - 2,
                    width_of(format("rank {}", r), bold_text) <= w - 2 ? format("rank {}", r) : format("{}", r), bold_middle);
  double y = 36;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    svg.line({figure_margin, y}, {right, y}, rule);
    svg.text(figure_margin, y + 22, rows[i].title, bold_text);
    fitted_text(svg, figure_margin, y + 38, begin - figure_margin - 8, rows[i].first, quiet_text);
    fitted_text(svg, figure_margin, y + 52, begin - figure_margin - 8, rows[i].second, quiet_text);
    for (std::uint64_t r = 0; r < shards; ++r)
      for (std::uint64_t q = 0; q < shards; ++q) {
        const double x = begin + w * real(r) + cell * real(q), top = y + 14;
        const bool mine = q == r;
        const auto say = [&](double baseline, const std::string& text) {
          text_if_it_fits(svg, x + cell / 2, baseline, cell - 2, text, small_middle);
        };
        const Stroke frame = {.colour = "#777", .width = 0.6};
        if (i == 0) {
          svg.box(x, top, cell, 36, mine ? paint::blue : "#fff", frame);
          if (mine) say(y + 36, format("w{}", q));
        } else if (i == 1) {
          svg.box(x, top, cell, 36, mine ? paint::blue : paint::cyan, frame);
          say(y + 36, format("w{}", q));
        } else if (i == 2) {
          svg.box(x, top, cell, 36, gradient_tints[r % gradient_tints.size()], frame);
          say(y + 36, format("g{}", q));
        } else if (!mine) {
          svg.box(x, top, cell, 36, "#fff", frame);
        } else if (i == 3) {
          for (std::uint64_t j = 0; j < shards; ++j)
            svg.box(x, top + 36 * ratio(j, shards), cell, 36 / real(shards), gradient_tints[j % gradient_tints.size()],
                    {.colour = "#777", .width = 0.3});
          say(y + 36, "sum");
        } else {
          svg.box(x, top, cell, 18, paint::blue, box_edge);
          svg.box(x, top + 18, cell, 18, paint::mint, box_edge);
          say(y + 27, format("w{}'", q));
          say(y + 45, "m, v");
        }
      }
    y += 66;
  }
  svg.line({figure_margin, y}, {right, y}, rule);
  const std::array<LegendEntry, 3> legend = {
      {{"parameters", paint::blue}, {"gathered parameters", paint::cyan}, {"optimizer state", paint::mint}}};
  draw_legend(svg, figure_margin, y + 20, legend);
  const std::size_t tints = std::min<std::size_t>(shards, gradient_tints.size());
  for (std::size_t j = 0; j < tints; ++j) svg.box(414 + 14 * real(j), y + 10, 13, 13, gradient_tints[j], box_edge);
  std::string of_ranks;
  for (std::size_t j = 0; j < tints; ++j) of_ranks += format("{}{}", j > 0 ? ", " : "", j);
  svg.text(420 + 14 * real(tints), y + 21,
           format("gradients, of the tokens of rank {}{}", of_ranks, shards > tints ? ", ..." : ""), small_text);
  return {svg, y + 34};
}

Figure draw_nodes(std::span<const TitledPlan> plans) {
  const std::uint64_t nodes = plans.front().plan.nodes, per = plans.front().plan.ranks_per_node;
  for (const TitledPlan& one : plans)
    if (one.plan.nodes != nodes || one.plan.ranks_per_node != per)
      throw UserError(format(
          "'{}' is planned for {} nodes of {} ranks, and '{}' for {} of {} (a figure shows one cluster); plan all for "
          "the same one",
          plans.front().plan.path.string(), nodes, per, one.plan.path.string(), one.plan.nodes, one.plan.ranks_per_node));
  if (nodes * per > 8)
    throw UserError(format("there is room for 8 ranks (the plan of '{}' has {}); draw a plan for fewer ranks",
                           plans.front().plan.path.string(), nodes * per));
  std::uint64_t most = 0;
  for (const TitledPlan& one : plans) {
    const RankTraffic& rank = one.plan.chosen.keeping.traffic.rank;
    most = std::max(most, rank.within_node + rank.between_nodes);
  }

  Svg svg(figure_width);
  constexpr double begin = 130, sent = right - 224;
  const double node_width = (sent - 16 - begin) / real(nodes) - 16, w = node_width / real(per);
  const auto node_at = [&](std::uint64_t node) { return begin + (node_width + 16) * real(node); };
  double y = 22;
  for (std::uint64_t node = 0; node < nodes; ++node)
    text_if_it_fits(svg, node_at(node) + node_width / 2 - 6, y, node_width + 10, format("node {}", node), bold_middle);
  svg.text(sent, y, "a rank sends per update", bold_text);
  y += 12;
  for (const TitledPlan& one : plans) {
    const PlanRow& row = one.plan.chosen;
    const RankTraffic& rank = row.keeping.traffic.rank;
    const std::uint64_t shards = row.parts_of(0);
    svg.line({figure_margin, y}, {right, y}, rule);
    fitted_text(svg, figure_margin, y + 26, begin - figure_margin - 12,
                one.title.empty() ? std::string(row.placement->name) : one.title, bold_text);
    fitted_text(svg, figure_margin, y + 42, begin - figure_margin - 12,
                format("mesh {} x {}", row.mesh.shard, row.mesh.replicate), quiet_text);
    for (std::uint64_t r = 0; r < nodes * per; ++r) {
      const double x = node_at(r / per) + w * real(r % per);
      if (r % per == 0) svg.box(x - 6, y + 8, node_width, 46, "#f7f7f7", rule, {}, 4);
      text_if_it_fits(svg, x + (w - 14) / 2, y + 22, w - 2, format("rank {}", r), small_middle);
      draw_strip(svg, {x, y + 30}, w - 14, 14, one.plan, shards, r % shards, paint::blue, "#fff",
                 format("parameters of rank {}", r));
    }
    const double within = (right - sent) * ratio(rank.within_node, most),
                 between = (right - sent) * ratio(rank.between_nodes, most);
    svg.box(sent, y + 12, within, 16, paint::grey, box_edge, "within a node");
    svg.box(sent + within, y + 12, between, 16, paint::orange, box_edge, "between nodes");
    svg.text(sent, y + 44, format("{} within, {} between", short_bytes(rank.within_node), short_bytes(rank.between_nodes)),
             small_text);
    svg.text(sent, y + 59, format("a node sends {} to others", short_bytes(row.keeping.traffic.out_of_node)), small_text);
    y += 70;
  }
  svg.line({figure_margin, y}, {right, y}, rule);
  const std::array<LegendEntry, 3> legend = {
      {{"parameters", paint::blue}, {"within a node", paint::grey}, {"between nodes", paint::orange}}};
  draw_legend(svg, begin, y + 20, legend);
  return {svg, y + 34};
}

Figure draw_bytes(std::span<const TitledPlan> plans) {
  const std::array<LegendEntry, 4> kinds = {{{"parameters computed with", paint::blue},
                                             {"fp32 copy", paint::cyan},
                                             {"gradients", paint::orange},
                                             {"optimizer state", paint::mint}}};
  constexpr std::array<std::uint64_t ExplainedPlan::Unit::*, 4> counts = {
      &ExplainedPlan::Unit::parameter_bytes, &ExplainedPlan::Unit::fp32_copy_bytes, &ExplainedPlan::Unit::gradient_bytes,
      &ExplainedPlan::Unit::optimizer_state_bytes};
  std::vector<std::array<double, 4>> bars;  // bytes per parameter
  double most = 0;
  for (const TitledPlan& one : plans) {
    const auto of_a_rank = sum_of(one.plan.units, [](const ExplainedPlan::Unit& unit) { return unit.of_a_rank; });
    const auto whole = sum_of(one.plan.units, [](const ExplainedPlan::Unit& unit) { return unit.padded; });
    std::array<double, 4>& bar = bars.emplace_back();
    double sum = 0;
    for (std::size_t k = 0; k < bar.size(); ++k) {
      const bool is_whole = k == 0 && one.plan.chosen.parts_of(0) == 1;
      bar[k] = ratio(sum_of(one.plan.units, [&](const ExplainedPlan::Unit& unit) { return unit.*counts[k]; }),
                     is_whole ? whole : of_a_rank);
      sum += bar[k];
    }
    most = std::max(most, sum);
  }
  Svg svg(figure_width);
  constexpr double begin = 330;
  const double scale = most > 0 ? (right - 46 - begin) / most : 0;
  double y = 16;
  for (std::size_t p = 0; p < plans.size(); ++p) {
    fitted_text(svg, figure_margin, y + 21, begin - figure_margin - 12, plans[p].title, {});
    double at = begin, sum = 0;
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      const double width = bars[p][k] * scale;
      sum += bars[p][k];
      if (width == 0) continue;
      svg.box(at, y + 4, width, 26, kinds[k].fill, box_edge, kinds[k].name);
      text_if_it_fits(svg, at + width / 2, y + 21, width - 2, format("{:.3g}", bars[p][k]), small_middle);
      at += width;
    }
    svg.text(at + 10, y + 21, format("{:.3g}", sum), bold_text);
    y += 36;
  }
  draw_legend(svg, figure_margin, y + 20, kinds);
  svg.text(right, y + 21, "bytes per parameter", quiet_end);
  return {svg, y + 36};
}

Figure draw_memory(std::span<const TitledPlan> plans) {
  const std::array<LegendEntry, 5> roles = {{{"parameters", paint::blue},
                                             {"gradients", paint::orange},
                                             {"optimizer state", paint::mint},
                                             {"gathered parameters", paint::cyan},
                                             {"unreduced gradients", paint::pink}}};
  constexpr double begin = 62, top = 60, height = 250, gap = 14, least = 40;
  const double width = (right + 4 - begin) / real(plans.size()) - gap;
  if (width < least)
    throw UserError(format("there is room for {} plans side by side (there are {}); draw them in several figures",
                           static_cast<int>((right + 4 - begin) / (least + gap)), plans.size()));
  struct Panel {
    std::array<std::uint64_t, 5> held = {};
    std::uint64_t peak = 0;
  };
  std::vector<Panel> panels;
  std::uint64_t most = 1;
  for (const TitledPlan& one : plans) {
    Panel& panel = panels.emplace_back();
    for (const ExplainedPlan::Operation& op : one.plan.operations) panel.peak = std::max(panel.peak, op.activations);
    for (std::size_t k = 0; k < roles.size(); ++k) {
      panel.held[k] = sum_of(one.plan.buffers, [&](const ExplainedPlan::Buffer& buffer) {
        return buffer.whole_run && !buffer.on_host && buffer.role == roles[k].name ? buffer.bytes : 0;
      });
      panel.peak += panel.held[k];
    }
    most = std::max(most, panel.peak);
  }
  Svg svg(figure_width);
  const double step = step_of_axis(real(most), 10), high = step * std::ceil(real(most) / step - 1e-9);
  double unit = 1e3;
  std::string_view unit_name = "kB";
  for (const std::string_view larger : {"MB", "GB", "TB", "PB", "EB"})
    if (high >= 1000 * unit) unit *= 1000, unit_name = larger;
  const auto y_of = [&](double bytes) { return top + height - height * bytes / high; };
  for (int i = 0; step * i <= high * (1 + 1e-9); ++i) {
    svg.line({begin - 4, y_of(step * i)}, {right + 4, y_of(step * i)}, {.colour = paint::grid});
    svg.text(begin - 8, y_of(step * i) + 4, format("{:.4g}", step * i / unit), small_end);
  }
  svg.text(begin - 8, top - 12, unit_name, small_end);
  for (std::size_t p = 0; p < plans.size(); ++p) {
    const Panel& panel = panels[p];
    const std::vector<ExplainedPlan::Operation>& operations = plans[p].plan.operations;
    const double x = begin + (width + gap) * real(p), n = real(operations.size());
    fitted_text(svg, x + width / 2, 18, width + gap - 4, plans[p].title, bold_middle);
    const std::string peak = panel.peak < 1'000'000 ? grouped(panel.peak) + " B" : short_bytes(panel.peak);
    text_if_it_fits(svg, x + width / 2, 36, width + gap - 4,
                    width_of("at most " + peak, small_text) <= width + gap - 4 ? "at most " + peak : peak, small_middle);
    double base = 0;
    for (std::size_t k = 0; k < roles.size(); ++k) {
      if (panel.held[k] == 0) continue;
      const double bytes = real(panel.held[k]);
      svg.box(x, y_of(base + bytes), width, height * bytes / high, roles[k].fill, {},
              format("{}: {} B", roles[k].name, grouped(panel.held[k])));
      base += bytes;
    }
    std::vector<Point> outline = {{x, y_of(base)}};
    for (std::size_t i = 0; i < operations.size(); ++i) {
      const double y = y_of(base + real(operations[i].activations));
      outline.push_back({x + width * real(i) / n, y});
      outline.push_back({x + width * real(i + 1) / n, y});
    }
    outline.push_back({x + width, y_of(base)});
    svg.path(outline, {}, paint::yellow, "activations");
    svg.box(x, top, width, height, "none", box_edge);
    // The sections: of each micro-batch, forward up to the head, then backward; after the norm, the optimizer.
    std::size_t last = 0;
    double free_from = x - gap / 2;  // where the next label may begin
    const auto section = [&](std::size_t end, std::string_view name) {
      const double middle = x + width * real(last + end) / 2 / n, half = width_of(name, small_text) / 2;
      if (end > last && half * 2 <= width * real(end - last) / n + gap && middle - half >= free_from &&
          middle + half <= x + width + gap / 2) {
        svg.text(middle, top + height + 16, name, small_middle);
        free_from = middle + half + 4;
      }
      last = end;
    };
    for (std::size_t i = 0; i < operations.size(); ++i) {
      const bool head = operations[i].kind == "head and loss", next = operations[i].kind == "read batch" && i > 0;
      if (!head && !next && operations[i].kind != "gradient norm") continue;
      const std::size_t end = next ? i : i + 1;
      const double cut = x + width * real(end) / n;
      svg.line({cut, top}, {cut, top + height + 4}, {.colour = "#777", .width = 0.8, .dashes = "2 2"});
      section(end, head ? "forward" : "backward");
    }
    section(operations.size(), "opt.");
  }
  std::vector<LegendEntry> legend(roles.begin(), roles.end());
  legend.push_back({"activations", paint::yellow});
  const double end = draw_legend(svg, figure_margin, top + height + 42, legend);
  return {svg, end + 14};
}

namespace {

/// When each operation of a plan without predicted times is drawn; the forward pass of a block takes 1.
std::vector<TaskTime> drawn_times(const TitledPlan& titled) {
  const std::vector<ExplainedPlan::Operation>& operations = titled.plan.operations;
  const std::vector<TimelineRow> rows = rows_of_streams();
  std::vector<Task> tasks;
  std::vector<std::vector<int>> waits(operations.size());
  int computing = -1;  // the last operation of the compute stream so far
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const ExplainedPlan::Operation& op = operations[i];
    const bool computes = op.stream == "compute", by_thread = titled.queues == Queues::thread && !computes;
    waits[i] = op.waits;
    if (by_thread && computing >= 0) waits[i].push_back(computing);  // the computing thread enqueues this work
    if (computes) computing = static_cast<int>(i);
    const auto stream = std::ranges::find(rows, op.stream, &TimelineRow::name) - rows.begin();
    tasks.push_back({.queue = titled.queues == Queues::one ? 0
                              : by_thread                  ? 1 + static_cast<int>(rows.size())
                                                           : static_cast<int>(stream),
                     .length = op.drawn_time,
                     .waits = waits[i]});
  }
  return schedule(tasks);
}

TimelinePanel make_panel(const TitledPlan& titled, bool slots) {
  const ExplainedPlan& plan = titled.plan;
  TimelinePanel panel{.title = titled.title, .note = {}, .rows = rows_of_streams()};
  std::vector<TaskTime> times;
  if (plan.is_predicted)
    for (const ExplainedPlan::Operation& op : plan.operations) times.push_back({op.begin_ms, op.end_ms});
  else
    times = drawn_times(titled);
  double used = 0, waited = 0, length = 0;
  std::map<BufferId, std::pair<double, std::string>> occupied;  // slots, by buffer: the begin of their use, and the unit
  for (std::size_t i = 0; i < plan.operations.size(); ++i) {
    const ExplainedPlan::Operation& op = plan.operations[i];
    const double begin = times[i].begin, end = times[i].end;
    if (end > begin) {
      if (op.stream == "compute" && begin > used + 1e-9) {
        add_box(panel, "compute", {used, begin, "", "waits", waiting_stage().fill, &waiting_stage()});
        waited += begin - used;
      }
      std::string label = op.label.substr(0, op.label.find(','));
      if (const std::size_t root = label.find("root"); root != std::string::npos) label.erase(root, 4);
      const DrawnPart& stage = stage_of(op.part);
      add_box(panel, op.stream,
              {begin, end, label, plan.is_predicted ? format("{}, {:.3f} ms", op.title, end - begin) : op.title, stage.fill,
               &stage});
      if (op.stream == "compute") used = end;
    }
    length = std::max(length, end);
    // A slot is used from a gather to its release.
    if (!slots) continue;
    const auto row = [&](BufferId buffer) { return "slot " + plan.buffers[static_cast<std::size_t>(buffer)].name; };
    if (op.kind == "all-gather" && !op.writes.empty() && op.unit >= 0) {
      occupied.insert_or_assign(op.writes[0], std::pair(begin, plan.units[static_cast<std::size_t>(op.unit)].name));
      // Rows are in the order of their first gathers.
      if (std::ranges::find(panel.rows, row(op.writes[0]), &TimelineRow::name) == panel.rows.end())
        panel.rows.push_back({row(op.writes[0]), {}});
    } else if (op.kind == "release" && !op.reads.empty()) {
      const auto use = occupied.find(op.reads[0]);
      if (use == occupied.end()) continue;
      const auto& [from, unit] = use->second;
      add_box(panel, row(op.reads[0]), {from, begin, unit, unit, paint::light_cyan});
      occupied.erase(use);
    }
  }
  if (!plan.is_predicted)
    panel.note = format("length {:.1f}, compute waits {:.1f} (1 is the forward pass of a block)", length, waited);
  else
    panel.note = format("{:.1f} ms{}, predicted; compute waits {:.1f} ms", length,
                        plan.micro_batches > 2 ? format(" with 2 of {} micro-batches", plan.micro_batches) : "", waited);
  return panel;
}

}  // namespace

Figure draw_plan_timeline(std::span<const TitledPlan> plans, bool slots, std::span<const TimelinePanel> trace) {
  std::vector<TimelinePanel> panels;
  const auto predicted = std::ranges::count_if(plans, [](const TitledPlan& one) { return one.plan.is_predicted; });
  for (const TitledPlan& one : plans) {
    if (!one.plan.is_predicted && (predicted > 0 || !trace.empty()))
      throw UserError(
          format("the plan of '{}' has no times, but {} (all have one scale); make its file with fsdp-plan --gpu NAME, too",
                 one.plan.path.string(), trace.empty() ? "another one has" : "the trace has"));
    panels.push_back(make_panel(one, slots));
  }
  panels.insert(panels.end(), trace.begin(), trace.end());
  Figure figure = draw_timeline_panels(panels, trace.empty());
  figure.svg.hatch("held", "#fff", "#bbb");
  return figure;
}

}  // namespace fsdp
