#include "fsdp-bench/scaling.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/clean_text.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "base/program.hpp"
#include "base/terminal.hpp"
#include "device/cuda_library.hpp"
#include "files/json.hpp"
#include "files/scratch_folder.hpp"
#include "plan/traffic.hpp"
#include "report/page_parts.hpp"
#include "report/run_report.hpp"

namespace fsdp {

namespace {

std::size_t size_of_point(const Scaling& scaling, const ScalingPoint& point) {
  return static_cast<std::size_t>(scaling.by_ranks ? point.layout.per_node : point.layout.nodes);
}
std::string unit_of(const Scaling& scaling) { return scaling.by_ranks ? "rank" : "node"; }

std::size_t tokens_of_update(const Scaling& scaling, const ScalingPoint& point) {
  return scaling.tokens_of_rank * point.micro_batches * static_cast<std::size_t>(point.layout.ranks());
}

/// What a node sends to others in an update or, on one node, what a rank sends.
double sent_bytes(const Transformer& model, const ShardingOptions& sharding, const CommOptions& comm,
                  const ScalingPoint& point) {
  if (point.layout.ranks() == 1) return 0;
  ShardingOptions options = sharding;
  options.plan.micro_batches = point.micro_batches;
  const MeshShape shape = mesh_shape(find_placement(options.strategy), point.layout.ranks(),
                                     options.shard_group_size > 0 ? options.shard_group_size : point.layout.per_node);
  const ShardedPlan planned = plan_sharding(model, options, shape);
  const ClusterTraffic traffic = traffic_of_cluster(collectives_of_update(planned.plan.update, point.micro_batches), shape,
                                                    {.nodes = point.layout.nodes,
                                                     .ranks_per_node = point.layout.per_node,
                                                     .between = find_backend(comm.kind).between,
                                                     .sum_order = comm.sum_order});
  return static_cast<double>(point.layout.nodes > 1 ? traffic.out_of_node : traffic.rank.total());
}

std::string ms_or_dash(std::optional<double> ms) { return ms ? format("{:.1f}", *ms) : "-"; }
std::string percent_or_dash(std::optional<double> share) { return share ? format("{:.0f} %", 100 * *share) : "-"; }

/// Without the first column of the table if that is the number of ranks, too.
Cells columns(const Scaling& scaling, Cells all) {
  if (scaling.by_ranks) all.erase(all.begin());
  return all;
}
Cells row_of(const Scaling& scaling, const std::vector<ScalingPoint>& points, std::size_t i) {
  const ScalingPoint& point = points[i];
  const bool measured = point.is_measured();
  return columns(scaling,
                 {format("{}", point.layout.nodes), format("{}", point.layout.ranks()),
                  format("{}", tokens_of_update(scaling, point)), measured ? format("{:.1f}", point.ms) : "-",
                  ms_or_dash(point.predicted_ms), measured ? format("{:.0f}", point.tokens_per_second) : "-",
                  percent_or_dash(efficiency(points, i)), measured ? format("{:.1f} %", 100 * point.exposed_share()) : "-",
                  measured ? format("{:.1f} %", 100 * (1 - point.exposed_share())) : "-",
                  point.joules_per_token ? format("{:.3g}", *point.joules_per_token) : "-"});
}
std::vector<Cells> rows_of(const Scaling& scaling, const std::vector<ScalingPoint>& points) {
  std::vector<Cells> rows = {columns(scaling, {"nodes", "ranks", "tokens/update", "ms/update", "predicted", "tokens/s",
                                               "efficiency", "exposed", "goodput", "J/token"})};
  for (std::size_t i = 0; i < points.size(); ++i) rows.push_back(row_of(scaling, points, i));
  return rows;
}

std::string title_of(const Scaling& scaling) {
  return format("{}, {}, {}, {}", scaling.model, scaling.strategy, scaling.precision, scaling.device);
}

std::string warning_of(const Scaling& scaling) {
  return scaling.shares_cores ? "Ranks shared processor cores: these times show that the job runs, and prove nothing about "
                                "scaling. Give each rank its own cores, on nodes of their own."
                              : "";
}

std::vector<std::string> problems_of(const Scaling& scaling) {
  std::vector<std::string> all;
  for (const auto* points : {&scaling.weak, &scaling.strong})
    for (const ScalingPoint& point : *points)
      if (!point.problem.empty())
        all.push_back(format("{} ({}): {}", plural(size_of_point(scaling, point), unit_of(scaling)),
                             points == &scaling.weak ? "weak" : "strong", point.problem));
  return all;
}

std::string asked_text(const Scaling& scaling) {
  std::string text;
  for (const ScalingPoint& point : scaling.asked)
    text += format("extrapolated by the plan to {}: {} for an update of {} tokens, {}\n",
                   plural(size_of_point(scaling, point), unit_of(scaling)), ms_or_dash(point.predicted_ms) + " ms",
                   tokens_of_update(scaling, point),
                   point.predicted_ms ? format("{:.0f} tokens/s", 1e3 * static_cast<double>(tokens_of_update(scaling, point)) /
                                                                      *point.predicted_ms)
                                      : std::string("unknown, because the largest measurement has no transfers to begin with"));
  return text;
}

constexpr std::string_view how =
    "weak: each rank keeps its micro-batches; strong: all ranks together keep them. predicted: from the row above, with the "
    "bytes that the plan sends. exposed: the part of an update that waits for transfers (updates with and without transfers "
    "take turns); goodput: the rest, in which ranks compute. J/token: processors and GPUs, where the machine reports them";

}  // namespace

std::vector<int> counts_up_to(int most) {
  std::vector<int> counts;
  for (int count = 1; count < most; count *= 2) counts.push_back(count);
  counts.push_back(most);
  return counts;
}

void read_result(const ChildEnd& end, double limit_s, ScalingPoint& point, Scaling& scaling) {
  const ChildAnswer answer = read_child(end, "fsdp-bench", limit_s);
  point.problem = answer.problem + (answer.hung ? "; raise --run-limit if it is only slow" : "");
  if (!point.problem.empty()) return;
  const nlohmann::json& json = answer.json;
  try {
    point.ms = json.at("ms");
    point.compute_ms = point.layout.ranks() == 1 ? point.ms : json.at("fake_ms").get<double>();  // one rank has no transfers
    point.tokens_per_second = json.at("tokens_per_second");
    if (const auto& joules = json.at("joules_per_token"); joules.is_number()) point.joules_per_token = joules;
    scaling.shares_cores = scaling.shares_cores || json.at("threads") > json.at("processors");
    scaling.device = json.at("device");
    scaling.model = json.at("arch");
    scaling.precision = json.at("precision");
    scaling.strategy = json.at("strategy");
    if (json.contains("comm")) scaling.comm = json["comm"];
  } catch (const nlohmann::json::exception&) {
    point.problem = "it printed another object than fsdp-bench step; use one installation";
  }
}

std::optional<double> predict(const ScalingPoint& from, const ScalingPoint& point) {
  if (!from.is_measured() || (point.layout.nodes > 1 && from.layout.nodes == 1)) return std::nullopt;
  const double computing = from.compute_ms * static_cast<double>(point.micro_batches) / static_cast<double>(from.micro_batches);
  const double exposed = std::max(0.0, from.ms - from.compute_ms);
  if (from.sent_bytes <= 0) return point.sent_bytes > 0 ? std::nullopt : std::optional(computing);
  return computing + exposed * point.sent_bytes / from.sent_bytes;
}

void predict_all(Scaling& scaling) {
  for (auto* points : {&scaling.weak, &scaling.strong})
    for (std::size_t i = 1; i < points->size(); ++i) (*points)[i].predicted_ms = predict((*points)[i - 1], (*points)[i]);
  for (ScalingPoint& point : scaling.asked)
    if (!scaling.weak.empty()) point.predicted_ms = predict(scaling.weak.back(), point);
}

std::optional<double> efficiency(const std::vector<ScalingPoint>& points, std::size_t i) {
  const ScalingPoint &first = points[0], &point = points[i];
  if (!first.problem.empty() || !point.problem.empty() || first.tokens_per_second <= 0) return std::nullopt;
  return point.tokens_per_second / first.tokens_per_second * first.layout.ranks() / point.layout.ranks();
}

std::string describe(const Scaling& scaling) {
  std::string text = title_of(scaling) + "\n";
  if (!scaling.comm.empty()) text += scaling.comm + "\n";
  for (const auto& [name, points] : {std::pair("weak scaling", &scaling.weak), std::pair("strong scaling", &scaling.strong)})
    text += format("\n{}\n{}", name, lay_out(rows_of(scaling, *points), 2));
  text += "\n" + wrap(std::string(how), 0, 110) + "\n";
  for (const std::string& problem : problems_of(scaling)) text += problem + "\n";
  text += asked_text(scaling);
  if (const std::string warning = warning_of(scaling); !warning.empty()) text += "\n" + wrap(warning, 0, 110) + "\n";
  return text;
}

nlohmann::json to_json(const Scaling& scaling) {
  const auto list = [&](const std::vector<ScalingPoint>& points) {
    nlohmann::json all = nlohmann::json::array();
    const auto number = [](std::optional<double> value) { return value ? nlohmann::json(*value) : nlohmann::json(); };
    for (std::size_t i = 0; i < points.size(); ++i) {
      const ScalingPoint& point = points[i];
      const bool measured = point.is_measured();
      all.push_back({{"nodes", point.layout.nodes},
                     {"ranks", point.layout.ranks()},
                     {"micro_batches", point.micro_batches},
                     {"tokens", tokens_of_update(scaling, point)},
                     {"sent_bytes", point.sent_bytes},
                     {"ms", measured ? nlohmann::json(point.ms) : nlohmann::json()},
                     {"predicted_ms", number(point.predicted_ms)},
                     {"tokens_per_second", measured ? nlohmann::json(point.tokens_per_second) : nlohmann::json()},
                     {"efficiency", number(efficiency(points, i))},
                     {"exposed", measured ? nlohmann::json(point.exposed_share()) : nlohmann::json()},
                     {"joules_per_token", number(point.joules_per_token)},
                     {"problem", point.problem}});
    }
    return all;
  };
  return {{"model", scaling.model},         {"device", scaling.device},       {"comm", scaling.comm},
          {"precision", scaling.precision}, {"strategy", scaling.strategy},   {"shares_cores", scaling.shares_cores},
          {"weak", list(scaling.weak)},     {"strong", list(scaling.strong)}, {"asked", list(scaling.asked)}};
}

std::string to_csv(const Scaling& scaling) {
  std::string text =
      "scaling,nodes,ranks,micro_batches,tokens,ms,predicted_ms,tokens_per_second,efficiency,exposed,goodput,joules_per_"
      "token\n";
  for (const auto& [name, points] : {std::pair("weak", &scaling.weak), std::pair("strong", &scaling.strong)})
    for (std::size_t i = 0; i < points->size(); ++i) {
      const ScalingPoint& point = (*points)[i];
      const bool measured = point.is_measured();
      const auto number = [](std::optional<double> value) { return value ? format("{:.6g}", *value) : std::string(); };
      const auto if_measured = [&](double value) { return measured ? format("{:.6g}", value) : std::string(); };
      text += format("{},{},{},{},{},{},{},{},{},{},{},{}\n", name, point.layout.nodes, point.layout.ranks(),
                     point.micro_batches, tokens_of_update(scaling, point), if_measured(point.ms), number(point.predicted_ms),
                     if_measured(point.tokens_per_second), number(efficiency(*points, i)), if_measured(point.exposed_share()),
                     if_measured(1 - point.exposed_share()), number(point.joules_per_token));
    }
  return text;
}

std::vector<std::string> sentences_of(const Scaling& scaling) {
  if (scaling.shares_cores) return {};
  std::vector<std::string> all;
  const auto of = [&](const char* kind, const std::vector<ScalingPoint>& points, const std::string& what) {
    const auto last = points.empty() ? std::nullopt : efficiency(points, points.size() - 1);
    if (points.size() < 2 || !last) return;
    const ScalingPoint &first = points.front(), &largest = points.back();
    all.push_back(format(
        "{} scaling: {}, the training throughput of {} grows from {:.0f} tokens/s on {} to {:.0f} tokens/s on {} (a speedup of "
        "{:.2f}, parallel efficiency {:.0f} %); {:.1f} % of an update on {} waits for communication.",
        kind, what, scaling.model, first.tokens_per_second, plural(size_of_point(scaling, first), unit_of(scaling)),
        largest.tokens_per_second, plural(size_of_point(scaling, largest), unit_of(scaling)),
        largest.tokens_per_second / first.tokens_per_second, 100 * *last, 100 * largest.exposed_share(),
        plural(size_of_point(scaling, largest), unit_of(scaling))));
  };
  if (!scaling.strong.empty())
    of("Strong", scaling.strong, format("with {} tokens per update", tokens_of_update(scaling, scaling.strong.back())));
  if (!scaling.weak.empty())
    of("Weak", scaling.weak,
       format("with {} tokens per update and rank", scaling.tokens_of_rank * scaling.weak.back().micro_batches));
  if (all.empty()) return all;
  std::vector<std::string> counts;
  for (const ScalingPoint& point : scaling.weak)
    if (point.problem.empty()) counts.push_back(format("{}", size_of_point(scaling, point)));
  all.push_back(
      format("Measured with fsdp on {}: {} at {} of {}s ({}), strategy {}, {}; each figure is the median of several updates.",
             scaling.device, scaling.strong.empty() ? "weak scaling" : "weak and strong scaling",
             plural(counts.size(), "number"), unit_of(scaling), fmt::join(counts, ", "), scaling.strategy, scaling.precision));
  if (counts.size() < 3)
    all.push_back("CSC asks for at least three node counts (Roihu's large partitions): measure on more nodes.");
  if (!scaling.weak.empty() && scaling.weak.back().joules_per_token)
    all.push_back(format("Energy on {}: {:.3g} J per token.",
                         plural(size_of_point(scaling, scaling.weak.back()), unit_of(scaling)),
                         *scaling.weak.back().joules_per_token));
  return all;
}

std::string scaling_page(const Scaling& scaling) {
  std::string body = format("<h1>Scaling of {}</h1>\n<p>{}{}</p>\n", escaped(scaling.model), escaped(title_of(scaling)),
                            scaling.comm.empty() ? "" : "; " + escaped(scaling.comm));
  if (const std::string warning = warning_of(scaling); !warning.empty())
    body += format("<p><strong>{}</strong></p>\n", escaped(warning));
  std::string plots;
  for (const auto& [name, points] : {std::pair("Weak scaling", &scaling.weak), std::pair("Strong scaling", &scaling.strong)}) {
    if (points->empty()) continue;
    Curve measured{.name = "measured", .x = {}, .y = {}, .colour = curve_colour(0)},
        predicted{.name = "predicted", .x = {}, .y = {}, .colour = curve_colour(1), .look = Curve::Look::dashes};
    for (const ScalingPoint& point : *points) {
      const auto x = static_cast<double>(size_of_point(scaling, point));
      if (point.is_measured()) measured.x.push_back(x), measured.y.push_back(point.tokens_per_second);
      if (point.predicted_ms)
        predicted.x.push_back(x),
            predicted.y.push_back(1e3 * static_cast<double>(tokens_of_update(scaling, point)) / *point.predicted_ms);
    }
    plots += plot_element(throughput_plot(name, unit_of(scaling) + "s", {measured, predicted}));
  }
  body += plots_of(plots);
  body += html_section("weak", "Weak scaling", table(rows_of(scaling, scaling.weak)));
  body += html_section("strong", "Strong scaling", scaling.strong.empty() ? "" : table(rows_of(scaling, scaling.strong)));
  std::string notes = format("<p>{}.</p>\n", escaped(how));
  for (const std::string& problem : problems_of(scaling)) notes += format("<p>{}</p>\n", escaped(problem));
  if (const std::string asked = asked_text(scaling); !asked.empty()) notes += format("<p>{}</p>\n", escaped(asked));
  body += html_section("how", "How it was measured", notes);
  std::string sentences;
  for (const std::string& sentence : sentences_of(scaling)) sentences += format("<p>{}</p>\n", escaped(sentence));
  body += html_section("forms", "For forms of CSC, EuroHPC and INCITE", sentences);
  return html_page("scaling of " + scaling.model, body);
}

int run_scaling(const BenchOptions& options, const std::vector<std::string>& words) {
  const Allocation allocation = find_allocation(options.launcher);
  std::string why;
  const RankLayout whole = choose_layout(allocation, options.nodes, options.ranks_per_node,
                                         options.device == DeviceChoice::cpu ? 0 : visible_gpus(&why));
  const int nodes = whole.nodes, per_node = whole.per_node;
  if (!options.out.empty()) ScratchFolder(options.out, ".fsdp-bench");  // throws UserError if nothing can be written there
  Scaling scaling;
  scaling.by_ranks = nodes == 1;
  const int most = scaling.by_ranks ? per_node : nodes;
  if (most == 1)
    throw UserError("one rank cannot show scaling; start this in a job of several nodes, or give --ranks-per-node");
  const auto layout_of = [&](int count) { return scaling.by_ranks ? RankLayout{1, count} : RankLayout{count, per_node}; };
  const ShardingOptions& sharding = options.sharding;
  const Transformer model(config_of(options), cpu_traits(1));
  scaling.tokens_of_rank = sharding.batch.rows();
  const std::size_t K = sharding.plan.micro_batches;
  const auto point_of = [&](int count, std::size_t micro_batches) {
    ScalingPoint point{.layout = layout_of(count), .micro_batches = micro_batches};
    check_sharding(model, sharding, point.layout.ranks());
    point.sent_bytes = sent_bytes(model, sharding, options.comm, point);
    return point;
  };
  for (const int count : counts_up_to(most)) {
    scaling.weak.push_back(point_of(count, K));
    if (most % count == 0) scaling.strong.push_back(point_of(count, K * static_cast<std::size_t>(most / count)));
  }
  if (options.extrapolate > 0) scaling.asked.push_back(point_of(options.extrapolate, K));

  const std::string bench = program_beside("fsdp-bench");
  const auto run = [&](ScalingPoint& point) {
    print_to(stderr, "{}, {} of an update ...\n", plural(size_of_point(scaling, point), unit_of(scaling)),
             plural(point.micro_batches, "micro-batch", "micro-batches"));
    std::vector<std::string> program = {bench, "step", "--exposed", "--json"};
    program.insert(program.end(), words.begin(), words.end());
    program.push_back(format("--update-freq={}", point.micro_batches));
    read_result(run_ranks(allocation, point.layout, options.run_limit_s, program), options.run_limit_s, point, scaling);
  };
  for (ScalingPoint& point : scaling.weak) run(point);
  for (ScalingPoint& point : scaling.strong)
    if (point.micro_batches == K)  // the largest number of nodes, which weak scaling has measured
      point = scaling.weak.back();
    else
      run(point);
  predict_all(scaling);
  print_raw(stdout, options.json ? json_text(to_json(scaling)) + "\n" : clean_lines(describe(scaling)));
  if (!options.out.empty()) {
    write_text(options.out / "scaling.html", scaling_page(scaling));
    write_text(options.out / "scaling.csv", to_csv(scaling));
  }
  if (!options.json && !options.out.empty()) print_to(stdout, "\npage: {}\n", (options.out / "scaling.html").string());
  return problems_of(scaling).empty() ? exit_code::done : exit_code::failed;
}

}  // namespace fsdp
