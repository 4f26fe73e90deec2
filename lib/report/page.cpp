// The page of one or several runs.
#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "base/format.hpp"
#include "base/quantile.hpp"
#include "base/version.hpp"
#include "files/json.hpp"
#include "plan/plan.hpp"
#include "record/goodput.hpp"
#include "report/compared_update.hpp"
#include "report/page_parts.hpp"
#include "report/plot.hpp"
#include "report/run_report.hpp"
#include "text/data_counts.hpp"

namespace fsdp {

namespace {

using nlohmann::json;

std::string date_text(double seconds) {
  const auto time = static_cast<std::time_t>(std::min<std::uint64_t>(whole_number(seconds), 250'000'000'000));
  std::tm utc{};
  gmtime_r(&time, &utc);
  return format("{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour,
                utc.tm_min, utc.tm_sec);
}

std::string known(double value, const std::function<std::string(double)>& text, const char* otherwise = "–") {
  return std::isfinite(value) ? text(value) : otherwise;
}
std::string whole_text(double value) {
  return known(value, [](double x) { return format("{:.0f}", x); });
}
std::string loss_text(double loss) { return format("{:.4f}", loss); }
std::string nats_text(double nats) { return format("{:.3f} nats", nats); }

std::string value_text(const json& value) {
  if (value.is_null()) return "none";
  if (!value.is_string()) return json_text(value);
  const auto text = value.get<std::string>();
  const bool is_plain = !text.empty() && text.front() != ' ' && text.back() != ' ' &&
                        std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < ' '; });
  return is_plain ? text : json_text(value);
}

/// Options that differ although the training is the same: names of files, and numbers that follow from others.
bool is_minor(const std::string& option) {
  static const std::set<std::string> minor = {"fp16-scale-window", "log-file", "log-interval",  "no-report",  "save-dir",
                                              "tensorboard",       "trace",    "trace-updates", "update-freq"};
  return minor.contains(option);
}

/// The colours of what takes time; the same in all bars.
enum : std::size_t { computing_colour, waiting_colour, validation_colour, data_colour, start_colour, save_colour, lost_colour };
constexpr std::size_t other_colour = 7;

/// The curve of run `i` of several, or curve number `of_one` of one run.
Curve curve_of(const std::vector<Run>& runs, std::size_t i, const std::string& what, std::size_t of_one, PlotPlace place) {
  const bool several = runs.size() > 1;
  return {.name = several ? runs[i].name : what,
          .x = {},
          .y = {},
          .colour = curve_colour(several ? i : of_one, place),
          .look = several && uses_dashes(i) ? Curve::Look::dashes : Curve::Look::line};
}

/// A quantity that updates and validations have.
struct Measured {
  const char *title, *unit;
  UpdateColumn of_updates;
  std::vector<double> Run::*of_validations;
};
constexpr Measured measured_loss = {"Loss", "nats per token", &Updates::loss, &Run::valid_loss};

/// Training and validation of all runs; of one run also the largest loss of a rank.
Plot plot_of(const Measured& what, const std::vector<Run>& runs, UpdateColumn x, std::vector<double> Run::*valid_x,
             PlotPlace place) {
  Plot plot{.title = what.title, .x_name = "update", .y_name = what.unit, .curves = {}};
  const bool several = runs.size() > 1;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    const auto add = [&](const std::string& name, std::size_t of_one, const std::vector<double>& values, Curve::Look look) {
      Curve curve = curve_of(runs, i, name, of_one, place);
      if (several && look == Curve::Look::points) curve.name += ", validation";
      curve.x = look == Curve::Look::points ? run.*valid_x : run.updates.*x;
      curve.y = values;
      if (look != Curve::Look::line) curve.look = look;
      plot.curves.push_back(std::move(curve));
    };
    if (!several && what.of_updates == &Updates::loss && number_at(run.starts.back().line, "world_size") > 1)
      add("largest over ranks", 1, run.updates.largest_loss, Curve::Look::faint);
    add("training", 0, run.updates.*what.of_updates, Curve::Look::line);
    if (!run.valid_loss.empty()) add("validation", validation_colour, run.*what.of_validations, Curve::Look::points);
  }
  return plot;
}

/// The mean of the finite values among those `which` holds for.
double mean(const std::vector<double>& values, const std::function<bool(std::size_t)>& which) {
  double sum = 0, n = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (std::isfinite(values[i]) && which(i)) sum += values[i], ++n;
  return n > 0 ? sum / n : not_known;
}
/// The mean of the 50 updates, or fewer, up to `tokens`.
double late_mean(const Updates& u, UpdateColumn column, double tokens = std::numeric_limits<double>::infinity()) {
  std::size_t end = u.size();
  while (end > 0 && u.tokens[end - 1] > tokens) --end;
  return mean(u.*column, [&](std::size_t i) { return i < end && i + 50 >= end; });
}

/// "0.26 % of 1.24 B parameters are trained"; without adapters and frozen parts "1.24 B parameters".
std::string parameters_text(const json& start) {
  const double all = number_at(start, "parameters"), trained = number_at(start, "trained_parameters");
  if (!std::isfinite(all)) return {};
  return trained < all ? format("{:.3g} % of {} parameters are trained", 100 * trained / all, format_count(all))
                       : format_count(all) + " parameters";
}

/// "bf16, master weights in fp32, gradients in fp32, adamw with its state in fp32".
std::string types_text(const json& options) {
  const std::string precision = text_at(options, "precision");
  if (precision.empty()) return "–";
  std::string text = precision;
  const auto add = [&](const char* words, const char* option) {
    if (const std::string type = text_at(options, option); !type.empty()) text += format(", {} in {}", words, type);
  };
  if (precision != "fp32") add("master weights", "master-dtype");
  add("gradients", "grad-dtype");
  add((text_at(options, "optimizer") + " with its state").c_str(), "optimizer-state-dtype");
  return text;
}

/// What the newest start's training data have, together.
DataCounts train_counts(const Run& run) {
  DataCounts all;
  const json& line = run.starts.back().line;
  if (line.contains("data") && line["data"].is_array())
    for (const json& set : line["data"])
      if (text_at(set, "split") == "train") all += counts_of_json(set);
  return all;
}

/// "150 conversations, 3 more left out, 2 truncated; 110 sequences".
std::string rows_text(const DataCounts& counts) {
  std::string text;
  if (counts.rows > 0) text = plural(counts.rows, counts.conversations == counts.rows ? "conversation" : "document");
  const auto add = [&](std::uint64_t n, const char* words) {
    if (n > 0) text += format("{}{} {}", text.empty() ? "" : ", ", n, words);
  };
  add(counts.skipped, "more left out"), add(counts.truncated_rows, "truncated"), add(counts.dropped_rows, "dropped");
  if (counts.sequences > 0) text += (text.empty() ? "" : "; ") + plural(counts.sequences, "sequence");
  return text.empty() ? "–" : text;
}

std::string share_of(std::uint64_t part, std::uint64_t all) {
  return all == 0 ? "–" : format("{} ({})", part, percent(static_cast<double>(part) / static_cast<double>(all)));
}

class Page {
 public:
  explicit Page(const std::vector<Run>& runs) : runs_(runs) {}

  std::string make() {
    std::string title;
    for (const Run& run : runs_) title += (title.empty() ? "" : ", ") + run.name;
    header();
    notes();
    if (several()) differences();
    summary();
    if (!several()) starts();  // of several runs, the curves are more interesting
    curves();
    if (several()) starts();
    time_of_updates();
    timeline();
    memory();
    saves();
    stragglers();
    flights();
    data();
    samples();
    options();
    return html_page(
        title, format("{}<footer>Written by fsdp-report {} from {}.</footer>\n", body_, version_string(), escaped(sources())));
  }

 private:
  bool several() const { return runs_.size() > 1; }
  /// "NAME: " if there are several runs.
  std::string prefix(const Run& run) const { return several() ? run.name + ": " : ""; }
  std::string heading(const Run& run) const { return several() ? format("<h3>{}</h3>", escaped(run.name)) : ""; }

  std::string sources() const {
    std::string out;
    for (const Run& run : runs_)
      if (out.find(run.metrics.string()) == std::string::npos) out += (out.empty() ? "" : ", ") + run.metrics.string();
    return out;
  }

  void section(const std::string& id, const std::string& title, const std::string& content) {
    body_ += html_section(id, title, content);
  }

  static std::string ranks_of(const RunStart& start) {
    return known(number_at(start.line, "world_size"), [](double x) { return plural(whole_number(x), "rank"); }) +
           (shares_cores(start) ? " that share cores" : "");
  }
  /// "2 → 3 ranks": of all starts, in their order; at most the newest five.
  static std::string ranks_of_starts(const Run& run) {
    std::vector<std::string> numbers;
    for (const RunStart& start : run.starts) {
      const std::string number = whole_text(number_at(start.line, "world_size"));
      if (numbers.empty() || numbers.back() != number) numbers.push_back(number);
    }
    if (numbers.size() == 1) return ranks_of(run.starts.back());
    if (numbers.size() > 5) numbers.erase(numbers.begin(), numbers.end() - 5);
    return format("{} ranks", fmt::join(numbers, " → "));
  }
  static bool shares_cores(const RunStart& start) {
    return number_at(start.line, "cores") < 0.95 * number_at(start.line, "threads");
  }

  void header() {
    std::string about, names;
    for (const Run& run : runs_)  // <bdi>: a name that is written from right to left does not turn the others around
      names += format("{}<bdi>{}</bdi>", names.empty() ? "" : ", ", escaped(run.name));
    if (!several()) {
      const Run& run = runs_[0];
      const RunStart& newest = run.starts.back();
      const json shown = run.options();
      for (const std::string& part :
           {text_at(shown, "arch"), parameters_text(newest.line), text_at(shown, "precision"),
            "strategy " + text_at(newest.line, "strategy"), ranks_of_starts(run), "last written " + date_text(run.last_time)})
        about += (about.empty() || part.empty() ? "" : ", ") + part;
    }
    body_ += format("<header><h1>{}</h1><p>{}</p></header>\n", names, escaped(about));
  }

  void notes() {
    std::string items;
    for (const Run& run : runs_)
      for (const std::string& note : run.notes) items += format("<li>{}</li>\n", escaped(prefix(run) + note));
    if (!items.empty()) body_ += format("<aside><strong>Notes</strong><ul>\n{}</ul></aside>\n", items);
  }

  /// The options that are not the same in all runs; the minor ones come last.
  void differences() {
    std::set<std::string> keys;
    for (const Run& run : runs_)
      for (const json shown = run.options(); const auto& [key, value] : shown.items()) keys.insert(key);
    std::vector<Cells> rows = {{"option"}};
    for (const Run& run : runs_) rows[0].push_back(run.name);
    const auto add = [&](const std::string& name, const std::function<json(const Run&)>& of, const std::string& key) {
      Cells row = {name};
      for (const Run& run : runs_) {
        const json from = of(run);
        row.push_back(from.is_object() && from.contains(key) ? value_text(from[key]) : "–");
      }
      if (std::any_of(row.begin() + 1, row.end(), [&](const std::string& cell) { return cell != row[1]; })) rows.push_back(row);
    };
    const auto line = [](const Run& run) { return run.starts.back().line; };
    const auto shown = [](const Run& run) { return run.options(); };
    for (const char* key : {"version", "parameters", "world_size", "nodes"}) add(key, line, key);
    for (const bool minor : {false, true}) {
      for (const std::string& key : keys)
        if (is_minor(key) == minor) add("--" + key, shown, key);
      if (!minor)
        for (const char* key : {"host", "modules"}) add(key, line, key);
    }
    section("differences", "What differs between the runs", rows.size() > 1 ? table(rows) : "<p>No option differs.</p>\n");
  }

  static std::string how_it_ended(const Run& run) {
    const double wanted = number_at(run.options(), "max-update");
    return format("{}{} updates: {}", run.updates.size() == 0 ? "0" : format("{:.0f}", run.updates.step.back()),
                  wanted > 0 ? format(" of {:.0f}", wanted) : "", run.starts.back().why);
  }

  static bool keeps_best(const Run& run) { return !text_at(run.options(), "keep-best").empty(); }
  /// The index of the best validation: as the run judged it, or in files of earlier versions the first with the smallest loss.
  static std::size_t best_validation(const Run& run) {
    const auto judged = std::find(run.valid_step.begin(), run.valid_step.end(), run.best_step);
    if (judged != run.valid_step.end()) return static_cast<std::size_t>(judged - run.valid_step.begin());
    const auto smallest = std::min_element(run.valid_loss.begin(), run.valid_loss.end(),
                                           [](double a, double b) { return a < b || (std::isnan(b) && !std::isnan(a)); });
    return static_cast<std::size_t>(smallest - run.valid_loss.begin());
  }

  /// One column for each run.
  void summary() {
    std::vector<Cells> rows = {{"run"}};
    for (const Run& run : runs_) rows[0].push_back(run.name);
    const auto row = [&](const std::string& name, const std::function<std::string(const Run&)>& text) {
      Cells cells = {name};
      for (const Run& run : runs_) cells.push_back(text(run));
      if (std::any_of(cells.begin() + 1, cells.end(), [](const std::string& cell) { return cell != "–"; }))
        rows.push_back(std::move(cells));
    };
    const auto spread = [&](const std::string& name, UpdateColumn column, const std::function<std::string(double)>& text) {
      row(name, [&](const Run& run) {
        const auto at = [&](double share) { return quantile(run.updates.*column, share); };
        const double median = at(0.5);
        return std::isfinite(median) ? format("{} ({} to {})", text(median), text(at(0.05)), text(at(0.95))) : "–";
      });
    };
    row("updates", how_it_ended);
    row("trained", [](const Run& run) {
      const json& line = run.starts.back().line;
      const double all = number_at(line, "parameters"), trained = number_at(line, "trained_parameters");
      return trained < all ? format("{} ({})", parameters_text(line), format_count(trained)) : "–";
    });
    const auto adapters = [](const Run& run) {
      const json& line = run.starts.back().line;
      return line.contains("adapters") && line["adapters"].is_object() ? line["adapters"] : json();
    };
    row("adapters", [&](const Run& run) {
      const json found = adapters(run);
      if (found.is_null()) return std::string("–");
      std::vector<std::string> targets;
      if (found.contains("targets"))
        for (const json& target : found["targets"]) targets.push_back(target.is_string() ? target.get<std::string>() : "?");
      const std::string whole = text_at(run.options(), "modules-to-save");
      return format("rank {:.6g}, alpha {:.6g}, scale {:.6g}, of {}{}", number_at(found, "rank"), number_at(found, "alpha"),
                    number_at(found, "scale"), fmt::join(targets, ", "), whole.empty() ? "" : "; trained as a whole: " + whole);
    });
    row("base model", [&](const Run& run) {
      const json found = adapters(run);
      const std::string type = text_at(found, "base_type");
      if (found.is_object()) return format("{}{}", text_at(found, "base"), type.empty() ? "" : ", blocks in " + type);
      for (auto start = run.starts.rbegin(); start != run.starts.rend(); ++start) {  // a resume need not name it
        const json shown = start->options();
        if (const std::string path = text_at(shown, "finetune-from"); !path.empty()) return path;
        if (const std::string path = text_at(shown, "model"); !path.empty() && text_at(shown, "init") == "pretrained")
          return path;
      }
      return std::string("–");
    });
    row("types", [](const Run& run) { return types_text(run.options()); });
    row("rows", [](const Run& run) { return rows_text(train_counts(run)); });
    row("tokens in the loss", [](const Run& run) {
      const DataCounts counts = train_counts(run);
      return counts.tokens > 0 ? format("{} of {}", share_of(counts.targets, counts.tokens), counts.tokens) : "–";
    });
    row("padding", [](const Run& run) {
      return known(mean(run.updates.padding, [](std::size_t) { return true; }),
                   [](double share) { return percent(share) + " of the computed positions"; });
    });
    row("tokens",
        [](const Run& run) { return run.updates.size() == 0 ? "–" : known(run.updates.tokens.back(), format_count); });
    row("loss, mean of the last 50 updates",
        [](const Run& run) { return known(late_mean(run.updates, &Updates::loss), loss_text); });
    if (several()) {
      double common = std::numeric_limits<double>::infinity();
      for (const Run& run : runs_) common = std::min(common, quantile(run.updates.tokens, 1));
      if (std::isfinite(common))
        row(format("the same until {} tokens", format_count(common)),
            [&](const Run& run) { return known(late_mean(run.updates, &Updates::loss, common), loss_text); });
    }
    row("token accuracy and entropy, mean of the last 50 updates", [](const Run& run) {
      return known(late_mean(run.updates, &Updates::accuracy), [&](double accuracy) {
        return format("{}, {}", percent(accuracy), known(late_mean(run.updates, &Updates::entropy), nats_text));
      });
    });
    const auto validation = [](const Run& run, std::size_t i) {
      if (i >= run.valid_loss.size()) return std::string("–");
      const double accuracy = run.valid_accuracy[i];
      return format("{} (update {:.0f}{})", loss_text(run.valid_loss[i]), run.valid_step[i],
                    known(
                        accuracy,
                        [&](double) {
                          return format(", token accuracy {}, entropy {}", percent(accuracy), nats_text(run.valid_entropy[i]));
                        },
                        ""));
    };
    row("validation loss, last", [&](const Run& run) { return validation(run, run.valid_loss.size() - 1); });
    row("validation loss, smallest", [&](const Run& run) {
      return validation(run, best_validation(run)) + (!run.valid_loss.empty() && keeps_best(run) ? ": the step best" : "");
    });
    spread("tokens/s of all ranks: median (5 % to 95 %)", &Updates::positions_per_second, format_count);
    spread("MFU: median (5 % to 95 %)", &Updates::mfu, percent);
    spread("duration of an update: median (5 % to 95 %)", &Updates::ms, ms_text);
    row("updates that took over twice the median", [](const Run& run) {
      const double limit = 2 * quantile(run.updates.ms, 0.5);
      double all = 0, slow = 0, n = 0;
      for (const double ms : run.updates.ms)
        if (ms > 0) all += ms, slow += ms > limit ? ms : 0, n += ms > limit ? 1 : 0;
      return n > 0 ? format("{:.0f}, which took {} of the time of all updates", n, percent(slow / all)) : std::string("–");
    });
    row("of it waiting for communication or other ranks", [](const Run& run) {
      const Updates& u = run.updates;
      double waiting = 0, all = 0;  // on a GPU only of traced updates
      for (std::size_t i = 0; i < u.size(); ++i)
        if (u.exposed_ms[i] >= 0 && u.ms[i] > 0) waiting += u.exposed_ms[i], all += u.ms[i];
      return all > 0 ? percent(waiting / all) : "–";
    });
    row("goodput", [](const Run& run) {
      const TimeSpent spent = spent_of(run);
      return spent.running_s > 0 ? format("{} of {}{}", percent(spent.goodput()), format_duration(spent.running_s),
                                          run.starts.back().has_end() ? "" : ", without the newest start")
                                 : std::string("–");
    });
    row("starts", [](const Run& run) { return format("{}", run.starts.size()); });
    row("skipped attempts", [](const Run& run) {
      std::map<std::string, int> reasons;
      for (const SkippedUpdate& skip : run.skipped) ++reasons[skip.reason];
      std::string text;
      for (const auto& [reason, n] : reasons) text += format("{}{} ({})", text.empty() ? "" : ", ", n, reason);
      return text.empty() ? "–" : text;
    });
    section("summary", "Summary", table(rows));
  }

  /// How the time was spent, as far as the metrics say: without an end line, that of the earlier starts.
  static TimeSpent spent_of(const Run& run) {
    const RunStart& newest = run.starts.back();
    const json& line = newest.has_end() ? newest.end : newest.line;
    const char* const key = newest.has_end() ? "time_spent" : "so_far";
    return time_spent_from_json(line.contains(key) ? line[key] : json());
  }

  void starts() {
    std::string out;
    for (const Run& run : runs_) {
      out += heading(run);
      std::vector<Cells> rows = {{"start", "ended", "updates", "repeated later", "ranks", "lasted", "began", "changes"}};
      constexpr std::size_t most = 100;
      const std::size_t first = run.starts.size() > most ? run.starts.size() - most : 0;
      if (first > 0) out += format("<p>The newest {} of {} starts.</p>\n", most, run.starts.size());
      for (std::size_t s = first; s < run.starts.size(); ++s) {
        const RunStart& start = run.starts[s];
        const double age = number_at(start.line, "process_s");
        rows.push_back({format("{}", s + 1), start.why,
                        start.last > start.step ? format("{} to {}", start.step + 1, start.last) : "none",
                        start.lost_updates > 0 ? plural(whole_number(start.lost_updates), "update") : "–", ranks_of(start),
                        format_duration(std::max(0.0, start.ended - start.began + (age > 0 ? age : 0))), date_text(start.began),
                        s == 0 ? "" : changes_between(run.starts[s - 1], start)});
      }
      out += table(rows);
      const TimeSpent spent = spent_of(run);
      const double parts =
          spent.useful_s + spent.lost_s + spent.skipped_s + spent.startup_s + spent.saves_s + spent.validation_s;
      if (spent.running_s > 0)
        out +=
            draw_bars({{format("{} of running time{}{}: goodput {}", format_duration(spent.running_s),
                               spent.between_s > 0.1 ? format(" and {} between starts", format_duration(spent.between_s)) : "",
                               run.starts.back().has_end() ? "" : ", without the newest start", percent(spent.goodput())),
                        {{"updates that count", spent.useful_s, computing_colour},
                         {"updates done again", spent.lost_s, lost_colour},
                         {"skipped attempts", spent.skipped_s, waiting_colour},
                         {"starting", spent.startup_s, start_colour},
                         {"waiting for saves", spent.saves_s, save_colour},
                         {"validation", spent.validation_s, validation_colour},
                         {"between updates", spent.running_s - parts, other_colour}}}},
                      format_duration);
      const json& end = run.starts.back().end;
      const double joules = number_at(end, "processors_j"), gpus = number_at(end, "gpus_j"),
                   per_token = number_at(end, "joules_per_token");
      if (std::isfinite(per_token))
        out += format("<p>Energy of the newest start: {:.3g} J per token{}{}.</p>\n", per_token,
                      std::isfinite(joules) ? format("; processors {:.4g} kJ", 1e-3 * joules) : "",
                      std::isfinite(gpus) ? format("; GPUs {:.4g} kJ", 1e-3 * gpus) : "");
    }
    section("starts", "Starts and goodput", out);
  }

  /// The options, and the version, that are not the same in two starts; at most five.
  static std::string changes_between(const RunStart& before, const RunStart& after) {
    std::vector<std::string> changes;
    const auto compare = [&](const json& old, const json& now, const std::string& dashes) {
      if (!old.is_object() || !now.is_object()) return;
      for (const auto& [key, value] : now.items())
        if (old.contains(key) && old[key] != value)
          changes.push_back(format("{}{}: {} → {}", dashes, key, value_text(old[key]), value_text(value)));
    };
    const auto parts = [](const RunStart& start) {
      json of_both = json::object();
      for (const char* key : {"version", "slurm_job", "batch_job"})
        if (start.line.contains(key)) of_both[key] = start.line[key];
      return of_both;
    };
    compare(parts(before), parts(after), "");
    compare(before.options(), after.options(), "--");
    std::stable_partition(changes.begin(), changes.end(), [](const std::string& change) {
      return !change.starts_with("--") || !is_minor(change.substr(2, change.find(':') - 2));
    });
    std::string text;
    for (std::size_t i = 0; i < changes.size() && i < 5; ++i) text += (i == 0 ? "" : ", ") + changes[i];
    return changes.size() > 5 ? format("{} and {} more", text, changes.size() - 5) : text;
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
      plot.marks.push_back({(run.updates.*x)[index], format("start {}", s + 1),
                            format("start {} after update {}, {}; before it: {}", s + 1, run.starts[s].step,
                                   ranks_of(run.starts[s]), run.starts[s - 1].why)});
    }
  }

  std::string measured_plot(const Measured& what, const std::string& title, const std::string& x_name, UpdateColumn x,
                            std::vector<double> Run::*valid_x) const {
    Plot plot = plot_of(what, runs_, x, valid_x, PlotPlace::page);
    plot.title = title, plot.x_name = x_name;
    add_marks(plot, x);
    const std::size_t best = best_validation(runs_[0]);
    if (!several() && best < runs_[0].valid_loss.size())
      plot.marks.push_back(
          {(runs_[0].*valid_x)[best], "best",
           format("{}update {:.0f}: the smallest validation loss, {}", keeps_best(runs_[0]) ? "the step best, of " : "",
                  runs_[0].valid_step[best], loss_text(runs_[0].valid_loss[best]))});
    return plot_element(plot);
  }

  std::string column_plot(const std::string& title, const std::string& y_name, UpdateColumn column, bool from_zero = false,
                          const std::function<void(Plot&)>& more = nullptr) const {
    Plot plot{.title = title, .x_name = "update", .y_name = y_name, .curves = {}};
    plot.from_zero = from_zero;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      Curve curve = curve_of(runs_, i, title, 0, PlotPlace::page);
      curve.x = runs_[i].updates.step, curve.y = runs_[i].updates.*column;
      plot.curves.push_back(std::move(curve));
    }
    add_marks(plot, &Updates::step);
    if (more) more(plot);
    return plot_element(plot);
  }

  void curves() {
    const auto loss = [&](const char* over, const char* x_name, UpdateColumn x, std::vector<double> Run::*valid_x) {
      return measured_plot(measured_loss, format("Loss over {}", over), x_name, x, valid_x);
    };
    const auto over_updates = [&](const Measured& what) {
      return measured_plot(what, what.title, "update", &Updates::step, &Run::valid_step);
    };
    section("loss", "Loss",
            plots_of(loss("updates", "update", &Updates::step, &Run::valid_step) +
                     loss("tokens", "tokens", &Updates::tokens, &Run::valid_tokens) +
                     loss("time", "running time in seconds, without starting", &Updates::time, &Run::valid_time) +
                     over_updates({"Token accuracy", "share of the targets", &Updates::accuracy, &Run::valid_accuracy}) +
                     over_updates({"Entropy of the predictions", "nats", &Updates::entropy, &Run::valid_entropy})));
    const auto with_phases = [&](Plot& plot) {
      if (several()) return;
      const Updates& u = runs_[0].updates;
      const double highest = quantile(u.learning_rate, 1);
      if (!std::isfinite(highest)) return;
      const auto is_highest = [&](double rate) { return rate >= highest * (1 - 1e-9); };
      const auto first = static_cast<std::size_t>(std::find_if(u.learning_rate.begin(), u.learning_rate.end(), is_highest) -
                                                  u.learning_rate.begin());
      std::size_t last = first;
      for (std::size_t k = first; k < u.size(); ++k)
        if (is_highest(u.learning_rate[k])) last = k;
      const auto mark = [&](std::size_t k, const std::string& name) {
        plot.marks.push_back({u.step[k], name, format("update {:.0f}", u.step[k])});
      };
      if (first > 0 && first + 1 < u.size()) mark(first, "warm-up ends");
      if (last > first && last + 1 < u.size()) mark(last, "decay begins");
    };
    const auto with_limit = [&](Plot& plot) {
      std::set<double> limits;
      for (const Run& run : runs_)
        if (const double clip = number_at(run.options(), "clip-norm"); clip > 0) limits.insert(clip);
      if (limits.size() == 1) plot.limit = *limits.begin(), plot.limit_name = format("--clip-norm {:.6g}", *limits.begin());
      plot.logarithmic = true;
      if (several() || runs_[0].skipped.empty()) return;
      // A skipped attempt has no norm that counts: its point is drawn at the bottom.
      Curve points = curve_of(runs_, 0, format("skipped attempts ({})", runs_[0].skipped.size()), 1, PlotPlace::page);
      points.look = Curve::Look::points;
      const double lowest = quantile(runs_[0].updates.gradient_norm, 0);
      for (const SkippedUpdate& skip : runs_[0].skipped) {
        points.x.push_back(skip.step), points.y.push_back(lowest);
        points.hints.push_back(format("update {:.0f}: {}", skip.step, skip.reason));
      }
      plot.curves.push_back(std::move(points));
    };
    section("schedule", "Learning rate and gradient norm",
            plots_of(column_plot("Learning rate", "", &Updates::learning_rate, true, with_phases) +
                     column_plot("Gradient norm before clipping", "", &Updates::gradient_norm, false, with_limit) +
                     loss_scale_plot()));
    section("speed", "Speed",
            plots_of(column_plot("Tokens per second", "of all ranks", &Updates::positions_per_second, true) +
                     column_plot("Model FLOPs utilization", "share of the peak", &Updates::mfu, true) + duration_plot()));
  }

  /// The loss scale of each attempt, in steps, with those that were skipped.
  std::string loss_scale_plot() const {
    Plot plot{.title = "Loss scale", .x_name = "update", .y_name = "", .curves = {}};
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const Updates& u = runs_[i].updates;
      std::vector<std::pair<double, double>> scales;
      for (std::size_t k = 0; k < u.size(); ++k) scales.emplace_back(u.step[k], u.loss_scale[k]);
      for (const SkippedUpdate& skip : runs_[i].skipped) scales.emplace_back(skip.step - 0.5, skip.loss_scale);
      std::stable_sort(scales.begin(), scales.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      Curve curve = curve_of(runs_, i, plot.title, 0, PlotPlace::page);
      for (const auto& [step, scale] : scales) {
        if (!std::isfinite(scale)) continue;
        if (!curve.y.empty() && curve.y.back() != scale) curve.x.push_back(step), curve.y.push_back(curve.y.back());
        curve.x.push_back(step), curve.y.push_back(scale);
      }
      plot.curves.push_back(std::move(curve));
    }
    plot.logarithmic = true;
    add_marks(plot, &Updates::step);
    return plot_element(plot);
  }

  /// The duration of each update; of one run also the part in which computing waits.
  std::string duration_plot() const {
    const Updates& u = runs_[0].updates;
    const double longest = quantile(u.ms, 1), median = quantile(u.ms, 0.5);
    return column_plot("Duration of an update", "ms", &Updates::ms, false, [&](Plot& plot) {
      plot.logarithmic = longest > 20 * median;
      plot.from_zero = !plot.logarithmic;
      if (several() || !std::isfinite(quantile(u.exposed_ms, 0.5))) return;
      plot.curves[0].name = "all";
      Curve curve = curve_of(runs_, 0, "waiting for communication or other ranks", waiting_colour, PlotPlace::page);
      curve.x = u.step, curve.y = u.exposed_ms;
      for (double& ms : curve.y)
        if (plot.logarithmic && !(ms > 0)) ms = not_known;
      plot.curves.push_back(std::move(curve));
    });
  }

  /// What a mean update of those with number `from` to `to` spent its time on.
  Bar mean_update(const Run& run, double from, double to, const std::string& title) const {
    const Updates& u = run.updates;
    const bool is_split = std::isfinite(quantile(u.exposed_ms, 0.5));  // on a GPU, only traced updates are
    const auto value = [&](UpdateColumn column) {
      return mean(u.*column, [&](std::size_t i) {
        return u.step[i] >= from && u.step[i] <= to && (!is_split || std::isfinite(u.exposed_ms[i]));
      });
    };
    const double total = value(&Updates::ms), data = value(&Updates::data_wait_ms);
    if (!std::isfinite(total)) return {};
    double rest = total;
    const bool some = is_split && std::any_of(u.exposed_ms.begin(), u.exposed_ms.end(), [](double x) { return std::isnan(x); });
    Bar bar{format("{}{}{}", title, ms_text(total + (data > 0 ? data : 0)), some ? " (only of traced updates)" : ""), {}};
    const auto add = [&](const std::string& name, double ms, std::size_t colour) {
      if (!(ms > 0)) return;
      bar.parts.push_back({name, ms, colour});
      rest -= ms;
    };
    add("matrix products", value(&Updates::products_ms), computing_colour);
    add("attention", value(&Updates::attention_ms), save_colour);
    const bool is_gpu = !std::isfinite(value(&Updates::products_ms));  // whose kernels are not told apart
    add(is_gpu ? "kernels of forward and backward" : "other kernels", value(&Updates::other_kernels_ms), lost_colour);
    add("norm and optimizer", value(&Updates::optimizer_ms), start_colour);
    add("waiting for communication or other ranks", value(&Updates::exposed_ms), waiting_colour);
    const bool knows_work = bar.parts.size() > 1;
    bar.parts.push_back({knows_work ? "other work of the host"
                         : is_split ? "computing"
                                    : "computing and communication",
                         rest, knows_work ? other_colour : computing_colour});
    if (data > 0) bar.parts.push_back({"waiting for data after it", data, data_colour});
    return bar;
  }

  static Bar prediction(const Run& run, const std::string& title) {
    const UpdateParts parts = predicted_update(run.starts.back().line);
    if (!(parts.total > 0)) return {};
    return {format("{}predicted from the plan and the machine's rates: {}", title, ms_text(parts.total)),
            {{"matrix products", parts.products, computing_colour},
             {"attention", parts.attention, save_colour},
             {"other kernels", parts.other_kernels, lost_colour},
             {"slowed by communication", parts.slowed, validation_colour},
             {"norm and optimizer", parts.optimizer, start_colour},
             {"waiting for communication or other ranks", parts.waiting, waiting_colour},
             {"other work of the host", parts.host, other_colour}}};
  }

  void time_of_updates() {
    std::vector<Bar> bars;
    for (const Run& run : runs_) {
      const auto whole = std::numeric_limits<double>::infinity();
      bars.push_back(mean_update(run, 0, whole, prefix(run) + "a mean update: "));
      bars.push_back(prediction(run, prefix(run)));
      if (several() || run.starts.size() == 1) continue;
      for (std::size_t s = 0; s < run.starts.size(); ++s) {  // at most the newest five
        if (s + 5 < run.starts.size()) continue;
        const RunStart& start = run.starts[s];
        const std::uint64_t last = s + 1 < run.starts.size() ? std::min(start.last, run.starts[s + 1].step) : start.last;
        bars.push_back(mean_update(run, static_cast<double>(start.step) + 1, static_cast<double>(last),
                                   format("start {}, {}: ", s + 1, ranks_of(start))));
      }
    }
    std::string advice;
    for (const Run& run : runs_)
      if (const std::string compared = compare_with_prediction(run); !compared.empty())
        advice += format("<p>{}</p>\n", escaped(prefix(run) + compared));
    for (const Run& run : runs_)
      if (const RunStart& newest = run.starts.back(); shares_cores(newest))
        advice += format(
            "<p>{}</p>\n",
            escaped(format("{}rank 0 has {}, but its share of the cores is {:.4g}, because ranks share cores. So kernels take "
                           "longer, and ranks wait for each other. Start fewer ranks or threads.",
                           prefix(run), plural(whole_number(number_at(newest.line, "threads")), "thread"),
                           number_at(newest.line, "cores"))));
    section("update", "Where the time of an update goes", draw_bars(bars, ms_text) + advice);
  }

  void timeline() {
    std::string out;
    for (const Run& run : runs_) {
      if (!run.trace) continue;
      const Trace& trace = *run.trace;
      const std::uint64_t update = trace.updates.front();
      const RanksOfUpdate ranks = slowest_and_median_rank(trace, update);
      const double median = quantile(run.updates.ms, 0.5);
      const Figure figure = draw_trace_timeline(trace, {.update = update, .ranks = ranks.list()});
      out += format(
          "<figure class=\"broad\">{}<figcaption>{}of {}, rank {} computed longest{}. Numbers are those of "
          "blocks.</figcaption></figure>\n",
          figure.svg.element(figure.height, "timeline of an update"),
          escaped(prefix(run) + (std::isfinite(median) ? "the median update took " + ms_text(median) + "; " : "")),
          plural(trace.ranks.size(), "rank"), ranks.slowest,
          ranks.median == ranks.slowest ? "" : format(", and rank {} is the median", ranks.median));
      std::vector<Bar> bars;
      for (const int rank : ranks.list()) {
        const UpdateSplit split = split_of(trace, update, rank);
        bars.push_back({format("update {} on rank {}", update, rank),
                        {{"forward", split.forward, computing_colour},
                         {"backward", split.backward, save_colour},
                         {"norm and optimizer", split.optimizer, start_colour},
                         {"other work", split.other, lost_colour},
                         {"waiting for all-gathers", split.gather, waiting_colour},
                         {"waiting for reductions", split.reduce, data_colour},
                         {"waiting otherwise", split.idle, other_colour}}});
      }
      out += draw_bars(bars, ms_text);
    }
    section("timeline", "An update, operation by operation", out);
  }

  void memory() {
    std::vector<Bar> bars;
    for (const Run& run : runs_) {
      const RunStart& newest = run.starts.back();
      const Updates& u = run.updates;
      double used = not_known;  // of the newest start, as the plan is
      for (std::size_t i = 0; i < u.size(); ++i)
        if (u.step[i] > static_cast<double>(newest.step)) used = std::isnan(used) ? u.memory[i] : std::max(used, u.memory[i]);
      const double planned = number_at(newest.line, "plan_peak_bytes");
      Bar bar{
          format("{}a rank's memory by the plan{}: {}; measured peak of the plan's buffers {}", prefix(run),
                 run.starts.size() > 1 ? " of the newest start" : "", known(planned, format_bytes), known(used, format_bytes)),
          {}};
      if (const auto roles = newest.line.find("plan_bytes"); roles != newest.line.end() && roles->is_object()) {
        double others = 0;
        for (std::size_t role = 0; role < role_count; ++role) {
          const std::string name(name_of(static_cast<BufferRole>(role)));
          const double bytes = number_at(*roles, name.c_str());
          if (role < other_colour)
            bar.parts.push_back({name, bytes, role});
          else if (bytes > 0)
            others += bytes;
        }
        bar.parts.push_back({"others", others, other_colour});
      } else if (std::isfinite(planned)) {
        bar.parts.push_back({"the plan's buffers", planned, 0});
      }
      bars.push_back(std::move(bar));
    }
    section("memory", "Memory", draw_bars(bars, [](double x) { return format_bytes(x); }));
  }

  void saves() {
    std::vector<Cells> rows = {
        {"run", "saves", "size", "median duration", "longest", "training waited: median", "longest wait", "in all"}};
    for (const Run& run : runs_) {
      if (run.saves.empty()) continue;
      std::vector<double> bytes, ms, stall;
      for (const Save& save : run.saves) {
        if (save.bytes > 0) bytes.push_back(save.bytes);  // earlier versions did not write it
        ms.push_back(save.ms), stall.push_back(save.stall_ms);
      }
      double waited = 0;
      for (const double x : stall) waited += std::isfinite(x) ? x : 0;
      rows.push_back({run.name, format("{}", run.saves.size()), known(quantile(bytes, 0.5), format_bytes),
                      known(quantile(ms, 0.5), ms_text), known(quantile(ms, 1), ms_text), known(quantile(stall, 0.5), ms_text),
                      known(quantile(stall, 1), ms_text), ms_text(waited)});
    }
    section("saves", "Saves", rows.size() > 1 ? table(rows) : "");
  }

  /// How often each node had the slowest rank; with one node, how often each rank was that.
  void stragglers() {
    struct Slow {
      double times = 0, excess = 0;
    };
    std::string out;
    for (const Run& run : runs_) {
      std::vector<SlowestRank> slow_ranks = run.slow_ranks;
      std::erase_if(slow_ranks,
                    [&](const SlowestRank& slow) { return slow.step <= static_cast<double>(run.starts.back().step); });
      const bool one_node = std::all_of(slow_ranks.begin(), slow_ranks.end(),
                                        [&](const SlowestRank& slow) { return slow.host == slow_ranks[0].host; });
      std::map<std::string, Slow> all;
      for (const SlowestRank& slow : slow_ranks) {
        Slow& one = all[one_node ? whole_text(slow.rank) : slow.host];
        ++one.times;
        if (slow.median_ms > 0 && slow.ms > 0) one.excess += slow.ms / slow.median_ms - 1;
      }
      if (all.empty()) continue;
      std::vector<Cells> rows = {{one_node ? "rank" : "node",
                                  one_node ? "computed longest in" : "had the rank that computed longest in",
                                  "then longer than the median rank by (mean)"}};
      for (const auto& [name, slow] : all)
        rows.push_back(
            {name, format("{:.0f} of {} updates", slow.times, slow_ranks.size()), percent(slow.excess / slow.times)});
      out += heading(run) + (run.starts.size() > 1 ? "<p>In the newest start:</p>" : "") + table(rows);
    }
    section("stragglers", "Slow nodes and ranks", out);
  }

  void flights() {
    std::string out;
    for (const Run& run : runs_)
      if (!run.flight.empty()) out += heading(run) + format("<pre class=\"table\">{}</pre>\n", escaped(run.flight));
    section("flight", "What the ranks did last", out);
  }

  /// The counts of each data set in the newest start, and its first sequences or, of other data, the first row.
  void data() {
    std::vector<Cells> rows = {{"data", "for", "documents", "conversations", "left out", "truncated", "dropped", "cut",
                                "longest", "answers", "tokens", "in the loss", "sequences", "padding"}};
    std::string texts;
    for (const Run& run : runs_) {
      const json& line = run.starts.back().line;
      const auto sets = line.find("data");
      if (sets == line.end() || !sets->is_array()) continue;
      const std::string sequences = first_sequences(run);
      texts += sequences;
      for (const json& set : *sets) {
        const DataCounts c = counts_of_json(set);
        const auto count = [](std::uint64_t n) { return n > 0 ? format("{}", n) : "–"; };
        rows.push_back({prefix(run) + text_at(set, "name"), text_at(set, "split"), count(c.rows - c.conversations),
                        count(c.conversations), count(c.skipped), count(c.truncated_rows), count(c.dropped_rows),
                        count(c.cut_rows), count(c.longest_row), count(c.answers), count(c.tokens),
                        share_of(c.targets, c.tokens), count(c.sequences), share_of(c.padding, c.positions)});
        if (!c.first_row.empty() && (sequences.empty() || text_at(set, "split") != "train"))
          texts += format("<h4>{} begins</h4><pre>{}</pre>\n", escaped(rows.back()[0]), escaped(c.first_row));
      }
    }
    for (std::size_t column = rows[0].size(); column-- > 0;)  // of counts that no data set has
      if (std::all_of(rows.begin() + 1, rows.end(), [&](const Cells& row) { return row[column] == "–"; }))
        for (Cells& row : rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(column));
    section("data", "Data", rows.size() > 1 ? table(rows) + texts : "");
  }

  std::string first_sequences(const Run& run) const {
    const json& line = run.starts.back().line;
    const auto sequences = line.find("first_sequences");
    if (sequences == line.end() || !sequences->is_array() || sequences->empty()) return {};
    std::string out = heading(run) +
                      "<p>The first sequences of the newest start. Tokens that count in the loss look <mark>like this</mark>; "
                      "\"document\" is before the first token of one.</p>\n";
    for (const json& sequence : *sequences)
      out += format("<h4>{}: {} tokens, {} of them in the loss</h4>{}", escaped(text_at(sequence, "data")),
                    whole_text(number_at(sequence, "tokens")), whole_text(number_at(sequence, "targets")),
                    html_of(shown_of_json(sequence.contains("text") ? sequence["text"] : json())));
    return out;
  }

  void samples() {
    std::string out;
    for (const Run& run : runs_) {
      if (run.samples.empty()) continue;
      const std::size_t shown = std::min<std::size_t>(run.samples.size(), 5);
      out += heading(run);
      if (shown < run.samples.size()) out += format("<p>The newest {} of {}.</p>\n", shown, run.samples.size());
      for (std::size_t k = run.samples.size() - shown; k < run.samples.size(); ++k)
        out += format("<h4>update {:.0f}</h4><pre><b>{}</b>{}</pre>\n", run.samples[k].step, escaped(run.samples[k].prompt),
                      escaped(run.samples[k].text));
    }
    section("samples", "Samples of text", out);
  }

  void options() {
    std::string out;
    for (const Run& run : runs_) {
      const json& line = run.starts.back().line;
      std::vector<Cells> rows = {{"option", "value"}};
      for (const json shown = run.options(); const auto& [key, value] : shown.items())
        rows.push_back({"--" + key, value_text(value)});
      std::string about = "fsdp " + text_at(line, "version");
      for (const auto& [key, words] :
           {std::pair("modules", "; modules "), std::pair("slurm_job", "; Slurm job "), std::pair("batch_job", "; ")})
        if (const std::string text = text_at(line, key); !text.empty()) about += words + text;
      out += format("<details><summary>{}{} options</summary><p>{}</p>{}</details>\n", escaped(prefix(run)), rows.size() - 1,
                    escaped(about), table(rows));
    }
    section("options", "Options and versions", out);
  }

  const std::vector<Run>& runs_;
  std::string body_;
};

}  // namespace

Figure draw_losses(const std::vector<Run>& runs) {
  const auto drawn =
      draw(plot_of(measured_loss, runs, &Updates::step, &Run::valid_step, PlotPlace::file), 760, 420, PlotPlace::file);
  if (!drawn) throw UserError(format("'{}' has no loss yet; draw it after the first update", runs[0].metrics.string()));
  return *drawn;
}

std::string make_page(const std::vector<Run>& runs) { return Page(runs).make(); }

}  // namespace fsdp
