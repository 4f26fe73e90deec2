#include "report/page.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "base/format.hpp"
#include "files/json.hpp"
#include "report/page_style.hpp"
#include "report/plot.hpp"

namespace fsdp {

namespace {

using nlohmann::json;
using Cells = std::vector<std::string>;

constexpr double plot_width = 560, plot_height = 270;

std::string date_text(double seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm utc{};
  gmtime_r(&time, &utc);
  return format("{:04}-{:02}-{:02} {:02}:{:02} UTC", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min);
}

std::string known(double value, const std::function<std::string(double)>& text) {
  return std::isfinite(value) ? text(value) : "–";
}
std::string percent(double share) { return format("{:.1f} %", 100 * share); }
std::string loss_text(double loss) { return format("{:.4f}", loss); }

double at(const json& object, const char* key) {
  if (!object.is_object()) return not_known;
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : not_known;
}
std::string string_at(const json& object, const char* key) {
  if (!object.is_object()) return {};
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// A table of text; the first row is its head. Cells are escaped.
std::string table(const std::vector<Cells>& rows) {
  std::string out = "<div class=\"wide\"><table>\n";
  for (std::size_t r = 0; r < rows.size(); ++r) {
    out += r == 0 ? "<thead><tr>" : "<tr>";
    for (const std::string& cell : rows[r])
      out += r == 0 ? format("<th>{}</th>", escaped(cell)) : format("<td>{}</td>", escaped(cell));
    out += r == 0 ? "</tr></thead>\n" : "</tr>\n";
  }
  return out + "</table></div>\n";
}

/// The rank that computed longest in an update, and the median one if it is another.
std::vector<int> slowest_and_median_rank(const Trace& trace, std::uint64_t update) {
  std::map<int, double> computing;
  for (const Trace::Event& event : trace.events)
    if (event.update == update && event.stream == "compute") computing[event.rank] += event.length_us;
  std::vector<std::pair<double, int>> ranks;
  for (const auto& [rank, time] : computing) ranks.emplace_back(time, rank);
  if (ranks.empty()) return {trace.ranks.front()};
  std::sort(ranks.begin(), ranks.end());
  const int slowest = ranks.back().second, median = ranks[(ranks.size() - 1) / 2].second;
  return slowest == median ? std::vector<int>{slowest} : std::vector<int>{slowest, median};
}

std::string plot_element(const Plot& plot, double width = plot_width, double height = plot_height) {
  const auto drawn = draw(plot, width, height);
  if (!drawn) return {};
  return format("<figure>{}</figure>\n", drawn->svg.element(drawn->height, plot.title, drawn->attributes));
}

using UpdateColumn = std::vector<double> Updates::*;

/// Training and validation of all runs; of one run also the largest loss of a rank.
Plot plot_of_losses(const std::vector<Run>& runs, UpdateColumn x, std::vector<double> Run::*valid_x, PlotPlace place) {
  Plot plot{.title = "Loss", .x_name = "update", .y_name = "nats per token", .curves = {}};
  const bool several = runs.size() > 1;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    const auto colour = [&](std::size_t of_one) { return curve_colour(several ? i : of_one, place); };
    if (!several && at(run.starts.back().line, "world_size") > 1)
      plot.curves.push_back({.name = "largest over ranks",
                             .x = run.updates.*x,
                             .y = run.updates.largest_loss,
                             .colour = colour(1),
                             .look = Curve::Look::faint});
    plot.curves.push_back({.name = several ? run.name : "training",
                           .x = run.updates.*x,
                           .y = run.updates.loss,
                           .colour = colour(0),
                           .look = uses_dashes(i) ? Curve::Look::dashes : Curve::Look::line});
    if (!run.valid_loss.empty())
      plot.curves.push_back({.name = several ? run.name + ", validation" : "validation",
                             .x = run.*valid_x,
                             .y = run.valid_loss,
                             .colour = colour(2),
                             .look = Curve::Look::points});
  }
  return plot;
}

class Page {
 public:
  Page(const std::vector<Run>& runs, const PageParts& parts, const std::string& version)
      : runs_(runs), parts_(parts), version_(version) {}

  std::string make() {
    std::string title;
    for (const Run& run : runs_) title += (title.empty() ? "" : ", ") + run.name;
    header(title);
    notes();
    if (runs_.size() > 1) differences();
    summary();
    curves();
    time_of_updates();
    timeline();
    memory();
    saves();
    goodput();
    stragglers();
    flights();
    samples();
    options();
    return format(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
        "content=\"width=device-width, initial-scale=1\"><title>{}</title>\n<style>{}</style></head>\n<body>\n{}"
        "<footer>Written by fsdp-report {} from {}.</footer>\n<script>{}</script>\n</body></html>\n",
        escaped("fsdp: " + title), page_style, body_, escaped(version_), escaped(sources()), page_script);
  }

 private:
  bool several() const { return runs_.size() > 1; }
  std::string label(std::size_t i, const std::string& what) const { return several() ? runs_[i].name : what; }
  std::string paint(std::size_t i) const { return curve_colour(i); }
  Curve::Look look(std::size_t i) const { return uses_dashes(i) ? Curve::Look::dashes : Curve::Look::line; }

  std::string sources() const {
    std::string out;
    for (const Run& run : runs_)
      if (out.find(run.metrics.string()) == std::string::npos) out += (out.empty() ? "" : ", ") + run.metrics.string();
    return out;
  }

  void section(const std::string& id, const std::string& title, const std::string& content) {
    if (content.empty()) return;
    body_ += format("<section id=\"{}\"><h2>{}</h2>\n{}</section>\n", id, escaped(title), content);
  }

  void header(const std::string& title) {
    const Run& run = runs_[0];
    const json& line = run.starts.back().line;
    std::string about;
    if (!several()) {
      const json shown = run.options();
      about = format(
          "{}{} parameters, strategy {} over {}", string_at(shown, "arch").empty() ? "" : string_at(shown, "arch") + ", ",
          known(at(line, "parameters"), format_count), string_at(line, "strategy"),
          plural(static_cast<std::uint64_t>(std::isfinite(at(line, "world_size")) ? at(line, "world_size") : 1), "rank"));
      about += format("; last written {}", date_text(run.last_time));
    }
    body_ += format("<header><h1>{}</h1><p>{}</p></header>\n", escaped(title), escaped(about));
  }

  void notes() {
    std::string items;
    for (const Run& run : runs_)
      for (const std::string& note : run.notes)
        items += format("<li>{}</li>\n", escaped(several() ? run.name + ": " + note : note));
    if (!items.empty()) body_ += format("<aside><strong>Notes</strong><ul>\n{}</ul></aside>\n", items);
  }

  /// The options that are not the same in all runs.
  void differences() {
    std::set<std::string> keys;
    for (const Run& run : runs_)
      if (const json shown = run.options(); shown.is_object())
        for (const auto& [key, value] : shown.items()) keys.insert(key);
    std::vector<Cells> rows = {{"option"}};
    for (const Run& run : runs_) rows[0].push_back(run.name);
    const auto add = [&](const std::string& key, const std::function<std::string(const Run&)>& text) {
      Cells row = {key};
      for (const Run& run : runs_) row.push_back(text(run));
      if (std::any_of(row.begin() + 1, row.end(), [&](const std::string& cell) { return cell != row[1]; })) rows.push_back(row);
    };
    for (const char* key : {"version", "world_size", "nodes"})
      add(key, [&](const Run& run) {
        const json& line = run.starts.back().line;
        return line.contains(key) ? value_text(line[key]) : "–";
      });
    for (const std::string& key : keys)
      add("--" + key, [&](const Run& run) {
        const json shown = run.options();
        return shown.is_object() && shown.contains(key) ? value_text(shown[key]) : "–";
      });
    section("differences", "What differs between the runs", rows.size() > 1 ? table(rows) : "<p>No option differs.</p>\n");
  }

  static std::string value_text(const json& value) {
    return value.is_string() ? value.get<std::string>() : value.is_null() ? "none" : json_text(value);
  }

  void summary() {
    std::vector<Cells> rows = {{"run", "updates", "tokens", "loss", "validation loss", "smallest", "tokens/s: p5", "median",
                                "p95", "MFU: p5", "median", "p95", "ms: p5", "median", "p95", "starts", "skipped"}};
    for (const Run& run : runs_) {
      const Updates& u = run.updates;
      const auto speed = [&](double share) { return known(quantile(u.positions_per_second, share), format_count); };
      const auto mfu = [&](double share) { return known(quantile(u.mfu, share), percent); };
      const auto ms = [&](double share) { return known(quantile(u.ms, share), [](double x) { return format("{:.4g}", x); }); };
      const double smallest = quantile(run.valid_loss, 0);
      rows.push_back({run.name, u.size() == 0 ? "0" : format("{:.0f}", u.step.back()),
                      u.size() == 0 ? "0" : known(u.tokens.back(), format_count),
                      u.size() == 0 ? "–" : known(u.loss.back(), loss_text),
                      run.valid_loss.empty() ? "–" : known(run.valid_loss.back(), loss_text), known(smallest, loss_text),
                      speed(0.05), speed(0.5), speed(0.95), mfu(0.05), mfu(0.5), mfu(0.95), ms(0.05), ms(0.5), ms(0.95),
                      format("{}", run.starts.size()), format("{}", run.skipped.size())});
    }
    section("summary", "Summary", table(rows));
  }

  Curve curve(std::size_t i, const std::string& what, const std::vector<double>& x, const std::vector<double>& y) const {
    return {.name = label(i, what), .x = x, .y = y, .colour = paint(i), .look = look(i)};
  }

  std::string loss_plot(const std::string& title, const std::string& x_name, UpdateColumn x,
                        std::vector<double> Run::*valid_x) const {
    Plot plot = plot_of_losses(runs_, x, valid_x, PlotPlace::page);
    plot.title = title, plot.x_name = x_name;
    add_marks(plot, x);
    return plot_element(plot);
  }

  /// Marks the starts after the first one. Several runs have no marks: they could not be told apart.
  void add_marks(Plot& plot, UpdateColumn x) const {
    if (several()) return;
    const Run& run = runs_[0];
    for (std::size_t s = 1; s < run.starts.size(); ++s) {
      const auto after =
          std::upper_bound(run.updates.step.begin(), run.updates.step.end(), static_cast<double>(run.starts[s].step));
      if (after == run.updates.step.end()) continue;
      const auto index = static_cast<std::size_t>(after - run.updates.step.begin());
      plot.marks.push_back({(run.updates.*x)[index], format("start {} after update {}; before it: {}", s + 1,
                                                            run.starts[s].step, run.starts[s - 1].why)});
    }
  }

  std::string column_plot(const std::string& title, const std::string& y_name, UpdateColumn column, bool from_zero = false,
                          const std::function<void(Plot&)>& more = nullptr) const {
    Plot plot{.title = title, .x_name = "update", .y_name = y_name, .curves = {}};
    plot.from_zero = from_zero;
    for (std::size_t i = 0; i < runs_.size(); ++i)
      plot.curves.push_back(curve(i, title, runs_[i].updates.step, runs_[i].updates.*column));
    add_marks(plot, &Updates::step);
    if (more) more(plot);
    return plot_element(plot);
  }

  void curves() {
    section("loss", "Loss",
            "<div class=\"plots\">" + loss_plot("Loss over updates", "update", &Updates::step, &Run::valid_step) +
                loss_plot("Loss over tokens", "tokens", &Updates::tokens, &Run::valid_tokens) +
                loss_plot("Loss over time", "seconds of training, without starts", &Updates::time, &Run::valid_time) +
                "</div>\n");
    const auto with_phases = [&](Plot& plot) {
      if (several()) return;
      const Updates& u = runs_[0].updates;
      const double highest = quantile(u.learning_rate, 1);
      if (!std::isfinite(highest)) return;
      std::size_t first = 0, last = 0;
      for (std::size_t k = 0; k < u.size(); ++k)
        if (u.learning_rate[k] >= highest * (1 - 1e-9)) last = k, first = first == 0 ? k + 1 : first;
      if (first > 1) plot.marks.push_back({u.step[first - 1], format("the warm-up ends at update {:.0f}", u.step[first - 1])});
      if (last > first && last + 1 < u.size())
        plot.marks.push_back({u.step[last], format("the rate falls from update {:.0f} on", u.step[last])});
    };
    const auto with_limit = [&](Plot& plot) {
      std::set<double> limits;
      for (const Run& run : runs_)
        if (const double clip = at(run.options(), "clip-norm"); clip > 0) limits.insert(clip);
      if (limits.size() == 1) plot.limit = *limits.begin(), plot.limit_name = format("--clip-norm {:.6g}", *limits.begin());
      plot.logarithmic = true;
      if (several() || runs_[0].skipped.empty()) return;
      // A skipped update has no norm that counts: its points lie at the bottom.
      const double lowest = quantile(runs_[0].updates.gradient_norm, 0);
      Curve points{.name = format("skipped updates ({})", runs_[0].skipped.size()),
                   .x = {},
                   .y = {},
                   .colour = curve_colour(1),
                   .look = Curve::Look::points};
      for (const SkippedUpdate& skip : runs_[0].skipped) points.x.push_back(skip.step), points.y.push_back(lowest);
      plot.curves.push_back(std::move(points));
    };
    section("schedule", "Learning rate and gradient norm",
            "<div class=\"plots\">" + column_plot("Learning rate", "", &Updates::learning_rate, true, with_phases) +
                column_plot("Gradient norm before clipping", "", &Updates::gradient_norm, false, with_limit) +
                column_plot("Loss scale", "", &Updates::loss_scale) + "</div>\n");
    section("speed", "Speed",
            "<div class=\"plots\">" + column_plot("Tokens per second", "of all ranks", &Updates::positions_per_second, true) +
                column_plot("Model FLOPs utilization", "share of the peak", &Updates::mfu, true) +
                column_plot("Duration of an update", "ms", &Updates::ms, true) + "</div>\n");
  }

  /// A horizontal bar in parts.
  struct Part {
    std::string name;
    double value;
    std::string colour;
  };
  static std::string bar(const std::string& title, const std::vector<Part>& parts,
                         const std::function<std::string(double)>& text) {
    double total = 0;
    for (const Part& part : parts) total += std::max(part.value, 0.0);
    if (!(total > 0)) return {};
    std::string out = format("<div class=\"bar\"><p>{}</p><div class=\"parts\" role=\"img\" aria-label=\"{}\">", escaped(title),
                             escaped(title));
    std::string legend;
    for (const Part& part : parts) {
      if (!(part.value > 0)) continue;
      const double share = part.value / total;
      out += format("<span style=\"width:{:.3f}%;background:{}\" title=\"{}: {}\"></span>", 100 * share, part.colour,
                    escaped(part.name), escaped(text(part.value)));
      legend += format("<li><i style=\"background:{}\"></i>{} {} ({:.1f} %)</li>", part.colour, escaped(part.name),
                       escaped(text(part.value)), 100 * share);
    }
    return out + format("</div><ul class=\"legend\">{}</ul></div>\n", legend);
  }

  static double mean(const std::vector<double>& values) {
    double sum = 0, n = 0;
    for (const double v : values)
      if (std::isfinite(v)) sum += v, ++n;
    return n > 0 ? sum / n : not_known;
  }

  void time_of_updates() {
    std::string out;
    const auto ms = [](double x) { return format("{:.3g} ms", x); };
    for (const Run& run : runs_) {
      const Updates& u = run.updates;
      const double total = mean(u.ms), exposed = mean(u.exposed_ms), data = mean(u.data_wait_ms);
      if (!std::isfinite(total)) continue;
      const bool split = std::isfinite(exposed);
      out += bar(format("{}a mean update, measured: {}", several() ? run.name + ": " : "", ms(total)),
                 {{split ? "computing" : "computing and communication (not split without --trace)",
                   total - (split ? exposed : 0) - (std::isfinite(data) ? data : 0), curve_colour(0)},
                  {"communication that computing waits for", split ? exposed : 0, curve_colour(1)},
                  {"waiting for data", std::isfinite(data) ? data : 0, curve_colour(3)}},
                 ms);
      const json& line = run.starts.back().line;
      if (const auto predicted = line.find("predicted"); predicted != line.end() && predicted->is_object()) {
        const auto part = [&](const char* key) { return 1e3 * at(*predicted, key); };
        out += bar(format("{}predicted from the plan and the GPU's datasheet: {}", several() ? run.name + ": " : "",
                          ms(part("total"))),
                   {{"products", part("products"), curve_colour(0)},
                    {"attention", part("attention"), curve_colour(4)},
                    {"other kernels", part("memory_bound"), curve_colour(5)},
                    {"optimizer", part("optimizer"), curve_colour(2)},
                    {"communication that computing waits for", part("exposed"), curve_colour(1)}},
                   ms);
      }
      double saved = 0, useful = 0;
      for (const Save& save : run.saves) saved += std::isfinite(save.stall_ms) ? 1e-3 * save.stall_ms : 0;
      for (const double x : u.ms) useful += std::isfinite(x) ? 1e-3 * x : 0;
      const json end = run.starts.back().end;
      const double validation = end.is_object() && end.contains("time_spent") ? at(end["time_spent"], "validation_s") : 0;
      if (saved > 0 || validation > 0)
        out += bar(format("{}the whole run", several() ? run.name + ": " : ""),
                   {{"updates", useful, curve_colour(0)},
                    {"waiting for saves", saved, curve_colour(2)},
                    {"validation", std::isfinite(validation) ? validation : 0, curve_colour(3)}},
                   [](double s) { return format_duration(s); });
    }
    section("update", "Where the time of an update goes", out);
  }

  void timeline() {
    std::string out;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      if (!parts_.traces[i]) continue;
      const Trace& trace = *parts_.traces[i];
      const std::uint64_t update = trace.updates.front();
      const std::vector<int> ranks = slowest_and_median_rank(trace, update);
      const Figure figure = draw_trace_timeline(trace, {.update = update, .ranks = ranks});
      out += format("<figure class=\"broad\">{}<figcaption>{}the rank that computed longest{}</figcaption></figure>\n",
                    figure.svg.element(figure.height, "timeline of an update"), several() ? escaped(runs_[i].name) + ": " : "",
                    ranks.size() > 1 ? ", then the median one" : "");
    }
    section("timeline", "An update, operation by operation", out);
  }

  void memory() {
    std::string out;
    const auto bytes = [](double x) { return format_bytes(x); };
    for (const Run& run : runs_) {
      const json& line = run.starts.back().line;
      const double used = quantile(run.updates.memory, 1), planned = at(line, "plan_peak_bytes");
      std::vector<Part> parts;
      if (const auto roles = line.find("plan_bytes"); roles != line.end() && roles->is_object()) {
        for (const auto& [role, size] : roles->items())
          if (size.is_number()) parts.push_back({role, size.get<double>(), ""});
        std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.value > b.value; });
        for (; parts.size() > 8; parts.pop_back()) {
          parts[parts.size() - 2].name = "others";
          parts[parts.size() - 2].value += parts.back().value;
        }
        for (std::size_t k = 0; k < parts.size(); ++k) parts[k].colour = curve_colour(k);
      } else if (std::isfinite(planned)) {
        parts.push_back({"the plan's buffers", planned, curve_colour(0)});
      }
      out += bar(format("{}a rank's memory by the plan: {}; measured peak {}", several() ? run.name + ": " : "",
                        known(planned, format_bytes), known(used, format_bytes)),
                 parts, bytes);
    }
    section("memory", "Memory", out);
  }

  void saves() {
    std::vector<Cells> rows = {{"run", "saves", "median duration", "longest", "training waited: median", "longest", "in all"}};
    for (const Run& run : runs_) {
      if (run.saves.empty()) continue;
      std::vector<double> ms, stall;
      for (const Save& save : run.saves) ms.push_back(save.ms), stall.push_back(save.stall_ms);
      const auto time = [](double x) { return format_duration(1e-3 * x); };
      rows.push_back({run.name, format("{}", run.saves.size()), known(quantile(ms, 0.5), time), known(quantile(ms, 1), time),
                      known(quantile(stall, 0.5), time), known(quantile(stall, 1), time),
                      known(std::accumulate(stall.begin(), stall.end(), 0.0), time)});
    }
    section("saves", "Saves", rows.size() > 1 ? table(rows) : "");
  }

  void goodput() {
    std::string out;
    for (const Run& run : runs_) {
      const json& end = run.starts.back().end;
      if (const double goodput = at(end, "goodput"); std::isfinite(goodput)) {
        const json spent = end.value("time_spent", json::object());
        out += bar(format("{}goodput {}", several() ? run.name + ": " : "", percent(goodput)),
                   {{"updates that count", at(spent, "useful_s"), curve_colour(2)},
                    {"updates done again", at(spent, "lost_s"), curve_colour(1)},
                    {"skipped updates", at(spent, "skipped_s"), curve_colour(3)},
                    {"starts", at(spent, "startup_s"), curve_colour(0)},
                    {"waiting for saves", at(spent, "saves_s"), curve_colour(4)},
                    {"validation", at(spent, "validation_s"), curve_colour(5)}},
                   [](double s) { return format_duration(s); });
      }
      std::vector<Cells> rows = {{"start", "began", "ranks", "updates", "lasted", "ended", "lines done again later"}};
      for (std::size_t s = 0; s < run.starts.size(); ++s) {
        const RunStart& start = run.starts[s];
        rows.push_back({format("{}", s + 1), date_text(start.began),
                        known(at(start.line, "world_size"), [](double x) { return format("{:.0f}", x); }),
                        start.last > start.step ? format("{} to {}", start.step + 1, start.last) : "none",
                        format_duration(std::max(0.0, start.ended - start.began)), start.why,
                        start.lost_updates > 0 ? format("{:.0f}", start.lost_updates) : "–"});
      }
      out += (several() ? format("<h3>{}</h3>", escaped(run.name)) : "") + table(rows);
      const double joules = at(end, "processors_j"), gpus = at(end, "gpus_j"), per_token = at(end, "joules_per_token");
      if (std::isfinite(per_token))
        out += format("<p>Energy of the last start: {:.3g} J per token{}{}.</p>\n", per_token,
                      std::isfinite(joules) ? format("; processors {:.4g} kJ", 1e-3 * joules) : "",
                      std::isfinite(gpus) ? format("; GPUs {:.4g} kJ", 1e-3 * gpus) : "");
    }
    section("starts", "Starts and goodput", out);
  }

  void stragglers() {
    struct Host {
      double times = 0, excess = 0;
    };
    std::string out;
    for (const Run& run : runs_) {
      std::map<std::string, Host> hosts;
      for (const SlowRank& slow : run.slow_ranks) {
        Host& host = hosts[slow.host];
        ++host.times;
        if (slow.median_ms > 0) host.excess += slow.ms / slow.median_ms - 1;
      }
      if (hosts.empty()) continue;
      std::vector<Cells> rows = {
          {several() ? run.name + ": node" : "node", "had the slowest rank", "longer than the median by"}};
      for (const auto& [name, host] : hosts)
        rows.push_back(
            {name, format("{:.0f} of {} times", host.times, run.slow_ranks.size()), percent(host.excess / host.times)});
      out += table(rows);
    }
    section("stragglers", "Slow nodes", out);
  }

  void flights() {
    std::string out;
    for (std::size_t i = 0; i < runs_.size() && i < parts_.flights.size(); ++i)
      if (!parts_.flights[i].empty())
        out += (several() ? format("<h3>{}</h3>", escaped(runs_[i].name)) : "") +
               format("<pre>{}</pre>\n", escaped(parts_.flights[i]));
    section("flight", "What the ranks did last before the run ended abnormally", out);
  }

  void samples() {
    std::string out;
    for (const Run& run : runs_) {
      if (run.samples.empty()) continue;
      const std::size_t shown = std::min<std::size_t>(run.samples.size(), 5);
      if (several()) out += format("<h3>{}</h3>", escaped(run.name));
      for (std::size_t k = run.samples.size() - shown; k < run.samples.size(); ++k)
        out += format("<h4>update {:.0f}</h4><pre>{}</pre>\n", run.samples[k].step, escaped(run.samples[k].text));
    }
    section("samples", "Samples of text, the newest last", out);
  }

  void options() {
    std::string out;
    for (const Run& run : runs_) {
      const json& line = run.starts.back().line;
      std::vector<Cells> rows = {{"option", "value"}};
      if (const json shown = run.options(); shown.is_object())
        for (const auto& [key, value] : shown.items()) rows.push_back({"--" + key, value_text(value)});
      std::string about = format("<p>fsdp {}", escaped(string_at(line, "version")));
      if (const std::string modules = string_at(line, "modules"); !modules.empty())
        about += format("; modules {}", escaped(modules));
      if (const std::string job = string_at(line, "slurm_job"); !job.empty()) about += format("; Slurm job {}", escaped(job));
      out += format("<details><summary>{}{} options</summary>{}</p>{}</details>\n", several() ? escaped(run.name) + ": " : "",
                    rows.size() - 1, about, table(rows));
    }
    section("options", "Options and versions", out);
  }

  const std::vector<Run>& runs_;
  const PageParts& parts_;
  const std::string& version_;
  std::string body_;
};

}  // namespace

Figure draw_losses(const std::vector<Run>& runs) {
  auto drawn = draw(plot_of_losses(runs, &Updates::step, &Run::valid_step, PlotPlace::file), 760, 420, PlotPlace::file);
  if (!drawn) throw UserError(format("'{}' has no loss yet; draw it after the first update", runs[0].metrics.string()));
  return {std::move(drawn->svg), drawn->height};
}

double quantile(std::vector<double> values, double share) {
  std::erase_if(values, [](double x) { return !std::isfinite(x); });
  if (values.empty()) return not_known;
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

std::string make_page(const std::vector<Run>& runs, const PageParts& parts, const std::string& version) {
  return Page(runs, parts, version).make();
}

}  // namespace fsdp
