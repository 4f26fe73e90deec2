#include "fsdp-plan/plan_scaling.hpp"

#include <algorithm>
#include <optional>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "base/number_in.hpp"
#include "base/terminal.hpp"
#include "fsdp-plan/prediction_notes.hpp"
#include "report/page_parts.hpp"

namespace fsdp {

namespace {

/// Throws UserError if the strategy cannot use this number of ranks.
PredictedPoint predict_point(const PlanTable& table, int ranks) {
  PlanTable at{table.options, table.model, table.rates, {}, {}, {}, {}};
  PlanTableOptions& o = at.options;
  const int per_node = std::min(ranks, o.cluster.ranks_per_node);
  if (ranks % per_node != 0)
    throw UserError(
        format("{} ranks are not whole nodes (--ranks-per-node is {}); give a multiple of it, or less than one node", ranks,
               per_node));
  o.cluster.nodes = ranks / per_node, o.cluster.ranks_per_node = per_node;
  if (o.cluster.nodes > 1 && table.rates->network.ports == 0)
    throw UserError(format("{} has no figure for a network between nodes; give --network NAME or PORTSxGBIT, or at most {}",
                           table.rates->machine, plural(per_node, "rank")));
  if (o.slow.rank >= ranks)
    throw UserError(format("the job has no rank {}, which --slow-rank names; give a lower rank", o.slow.rank));
  TrainOptions& train = o.train;
  if (o.keeps_total_batch) {
    const std::size_t of_all = train.sharding.batch.B * static_cast<std::size_t>(ranks);
    if (train.total_batch_size % of_all != 0)
      throw UserError(
          format("--total-batch-size {} is not a multiple of --batch-size {} x {} ranks; choose another number, or "
                 "give --update-freq instead of --total-batch-size",
                 train.total_batch_size, train.sharding.batch.B, ranks));
    train.sharding.plan.micro_batches = train.total_batch_size / of_all;
  }
  const PlanRow row = plan_strategy(at, find_placement(train.sharding.strategy));
  const bool recompute = recomputes(o) || !at.fits(row.keeping) ||
                         (at.fits(row.recomputing) && row.recomputing.step.total < row.keeping.step.total);
  return {o.cluster, train.sharding.plan.micro_batches, recompute, row.variant(recompute)};
}

std::size_t tokens_of(const PlanTable& table, const PredictedPoint& point) {
  return table.options.train.sharding.batch.rows() * point.micro_batches * static_cast<std::size_t>(point.cluster.ranks());
}

double per_rank(const PredictedPoint& point) { return point.variant.tokens_per_second / point.cluster.ranks(); }

std::string recomputed_text(const PlanTable& table, const PredictedPoint& point) {
  if (!point.recomputes) return "no";
  return recomputes_first_blocks(table.options) ? format("{}", point.variant.recomputed_blocks) : "all";
}

Cells cells_of(const PlanTable& table, const PredictedPoint& point) {
  const StepPrediction& step = point.variant.step;
  const std::optional<double> share = efficiency(table, point);
  return {format("{}", point.cluster.nodes),
          format("{}", point.cluster.ranks()),
          ms_cell(step.total),
          format("{:.0f}", point.variant.tokens_per_second),
          format("{:.0f}", per_rank(point)),
          share ? format("{:.0f} %", 100 * *share) : "-",
          ms_cell(step.slowed),
          ms_cell(step.exposed),
          format("{:.0f} %", 100 * point.variant.mfu),
          format_bytes(static_cast<double>(point.variant.memory.total())),
          recomputed_text(table, point),
          table.fits(point.variant) ? "yes" : "no"};
}

std::string scaling_headline(const PlanTable& table) {
  const TrainOptions& train = table.options.train;
  return format(
      "{} by --sharding-strategy {}: {}", table.options.keeps_total_batch ? "strong scaling" : "weak scaling",
      train.sharding.strategy,
      table.options.keeps_total_batch
          ? format("all ranks together keep {} tokens of an update", tokens_of(table, table.scaling.front()))
          : format("each rank keeps {} x {} tokens of an update",
                   plural(train.sharding.plan.micro_batches, "micro-batch", "micro-batches"), train.sharding.batch.rows()));
}

std::string legend_of(const PlanTable& table) {
  const bool some_fit =
      std::ranges::any_of(table.scaling, [&](const PredictedPoint& point) { return table.fits(point.variant); });
  return format(
      "Efficiency: tokens per second and rank, against the first row that fits. Slowed and exposed are ms of an update. Memory "
      "is that of a rank. Recomputed: blocks whose activations are recomputed{}.{}",
      recomputes(table.options) ? ", as the options say" : "; all if the update is then faster, or if it does not fit without",
      some_fit ? "" : " Nothing fits, so there is no efficiency, and --out draws no curves.");
}

}  // namespace

std::vector<int> numbers_of_ranks(const std::vector<std::string>& items, int most) {
  std::vector<int> all;
  const auto refuse = [](const std::string& item, const std::string& why) {
    throw UserError(format("--scaling {}: {}", excerpt(item), why));
  };
  for (const std::string& item : items) {
    const std::size_t dots = item.find("..");
    const auto first = number_in<int>(item.substr(0, dots)),
               last = dots == item.npos ? first : number_in<int>(item.substr(dots + 2));
    if (!first || !last || *first < 1 || *first > most || *last < 1 || *last > most)
      refuse(item, format("not a number of ranks (1 to {}; 4..64 means 4, 8, ... 64); correct it", most));
    if (!all.empty() && *first <= all.back())
      refuse(item, format("it comes after {} (the numbers must ascend); change the order", all.back()));
    std::int64_t ranks = *first;
    for (; ranks < *last; ranks *= 2) all.push_back(static_cast<int>(ranks));
    if (ranks != *last) refuse(item, format("doubling {} does not reach {}; list the numbers", *first, *last));
    all.push_back(*last);
  }
  return all;
}

std::vector<PredictedPoint> predict_scaling(const PlanTable& table) {
  std::vector<PredictedPoint> points;
  for (const int ranks : table.options.scaling) {
    try {
      points.push_back(predict_point(table, ranks));
    } catch (const UserError& error) {
      throw UserError(format("--scaling {}: {}", ranks, error.what()));
    }
  }
  return points;
}

std::optional<double> efficiency(const PlanTable& table, const PredictedPoint& point) {
  if (!table.fits(point.variant)) return std::nullopt;
  const auto first =
      std::ranges::find_if(table.scaling, [&](const PredictedPoint& other) { return table.fits(other.variant); });
  return per_rank(point) / per_rank(*first);
}

std::string describe_scaling(const PlanTable& table) {
  if (table.scaling.empty()) return "";
  std::vector<Cells> rows = {
      {"", "", "ms per", "tokens", "/s and", "effi-", "", "ex-", "", "", "recom-", ""},
      {"nodes", "ranks", "update", "/s", "rank", "ciency", "slowed", "posed", "MFU", "memory", "puted", "fits"}};
  for (const PredictedPoint& point : table.scaling) rows.push_back(cells_of(table, point));
  for (Cells& row : rows) row[0].insert(0, "  ");
  return format("\n{}\n{}{}\n{}", scaling_headline(table), lay_out(rows, 2), wrap(legend_of(table), 0, 100),
                text_of(prediction_notes(table)));
}

nlohmann::json to_json(const PlanTable& table, const PredictedPoint& point) {
  const std::optional<double> share = efficiency(table, point);
  return {{"nodes", point.cluster.nodes},
          {"ranks", point.cluster.ranks()},
          {"micro_batches", point.micro_batches},
          {"tokens", tokens_of(table, point)},
          {"tokens_per_second_and_rank", per_rank(point)},
          {"efficiency", share ? nlohmann::json(*share) : nlohmann::json()},
          {"recomputing", point.recomputes},
          {"recomputed_blocks", table.recomputed_blocks(point.variant, point.recomputes)},
          {"memory_bytes", point.variant.memory.total()},
          {"fits", table.fits(point.variant)}};
}

std::string scaling_csv(const PlanTable& table) {
  std::string text =
      "nodes,ranks,micro_batches,tokens,ms,tokens_per_second,tokens_per_second_and_rank,efficiency,slowed_ms,exposed_ms,mfu,"
      "memory_bytes,recomputed,fits\n";
  for (const PredictedPoint& point : table.scaling) {
    const StepPrediction& step = point.variant.step;
    const std::optional<double> share = efficiency(table, point);
    text += format("{},{},{},{},{:.6g},{:.6g},{:.6g},{},{:.6g},{:.6g},{:.6g},{},{},{}\n", point.cluster.nodes,
                   point.cluster.ranks(), point.micro_batches, tokens_of(table, point), 1e3 * step.total,
                   point.variant.tokens_per_second, per_rank(point), share ? format("{:.6g}", *share) : "", 1e3 * step.slowed,
                   1e3 * step.exposed, point.variant.mfu, point.variant.memory.total(), recomputed_text(table, point),
                   table.fits(point.variant) ? "yes" : "no");
  }
  return text;
}

std::string scaling_page(const PlanTable& table) {
  const TrainOptions& train = table.options.train;
  const Rates& rates = *table.rates;
  const std::string model = train.arch.empty() ? train.model.string() : train.arch;
  // Values of the points that fit.
  const auto curve = [&](const char* name, std::size_t colour, auto&& value) {
    Curve made{.name = name, .x = {}, .y = {}, .colour = curve_colour(colour)};
    for (const PredictedPoint& point : table.scaling)
      if (table.fits(point.variant)) made.x.push_back(point.cluster.ranks()), made.y.push_back(value(point));
    return made;
  };
  Plot throughput =
      throughput_plot("Tokens per second", "ranks",
                      {curve("predicted", 0, [](const PredictedPoint& point) { return point.variant.tokens_per_second; })});
  throughput.logarithmic = true, throughput.from_zero = false;
  Plot share{.title = "Efficiency",
             .x_name = "ranks",
             .y_name = "% of the first that fits",
             .curves = {curve("efficiency", 0, [&](const PredictedPoint& point) { return 100 * *efficiency(table, point); })},
             .from_zero = true};
  Plot parts{
      .title = "Parts of an update",
      .x_name = "ranks",
      .y_name = "ms",
      .curves = {curve("computing", 0,
                       [](const PredictedPoint& point) {
                         const StepPrediction& step = point.variant.step;
                         return 1e3 * (step.total - step.slowed - step.exposed - step.host);
                       }),
                 curve("slowed by collectives", 1, [](const PredictedPoint& point) { return 1e3 * point.variant.step.slowed; }),
                 curve("exposed", 2, [](const PredictedPoint& point) { return 1e3 * point.variant.step.exposed; })},
      .from_zero = true};
  constexpr double gibi = 1 << 30;
  Plot memory{
      .title = "Memory of a rank",
      .x_name = "ranks",
      .y_name = "GiB",
      .curves = {curve("memory", 0,
                       [](const PredictedPoint& point) { return static_cast<double>(point.variant.memory.total()) / gibi; })},
      .from_zero = true};
  if (table.options.memory_limit > 0)
    memory.limit = static_cast<double>(table.options.memory_limit) / gibi, memory.limit_name = "limit";
  std::string plots;
  for (Plot* const plot : {&throughput, &share, &parts, &memory}) plot->logarithmic_x = true, plots += plot_element(*plot);

  std::vector<Cells> rows = {{"nodes", "ranks", "ms/update", "tokens/s", "tokens/s and rank", "efficiency", "slowed", "exposed",
                              "MFU", "memory", "recomputed", "fits"}};
  for (const PredictedPoint& point : table.scaling) rows.push_back(cells_of(table, point));
  std::string notes = format("<p>{}</p>\n", escaped(legend_of(table)));
  for (const std::string& note : prediction_notes(table)) notes += format("<p>{}</p>\n", escaped(note));
  std::vector<Cells> constants = {{"constant", "value", "source"}};
  for (const NamedRate& rate : named_rates(rates)) constants.push_back({rate.name, rate.value, rate.source});
  return html_page("predicted scaling of " + model,
                   format("<h1>Predicted scaling of {}</h1>\n<p>Not measured. {}, {}; {}</p>\n", escaped(model),
                          escaped(rates.machine), name_of(rates.type), escaped(scaling_headline(table))) +
                       plots_of(plots) + html_section("points", "Numbers of ranks", fsdp::table(rows)) +
                       html_section("notes", "What these figures are", notes) +
                       html_section("constants", "Constants of the prediction", fsdp::table(constants)));
}

}  // namespace fsdp
