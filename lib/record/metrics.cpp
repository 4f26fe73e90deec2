#include "record/metrics.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "base/program.hpp"
#include "base/quantile.hpp"
#include "base/system.hpp"
#include "files/json.hpp"

namespace fsdp {

namespace {

/// Seconds since 1970, with a resolution of one millisecond.
double wall_s() {
  using namespace std::chrono;
  return 1e-3 * static_cast<double>(duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count());
}

template <class T>
nlohmann::json or_null(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

/// Formats a number in `width` characters, with at most `decimals` decimals, or fewer if it is large. A number that is too
/// large for that, or that would be shown as zero, gets an exponent, as in "2e-05".
std::string fit(double number, std::size_t width, int decimals) {
  const bool vanishes = number != 0 && std::abs(number) < 0.5 * std::pow(10, -decimals);
  std::string text = format("{:>{}.{}f}", number, width, decimals);
  while (text.size() > width && decimals > 0) text = format("{:>{}.{}f}", number, width, --decimals);
  const std::string power = format("{:>{}.0e}", number, width);
  return text.size() > width || (vanishes && power.size() == width) ? power : text;
}

/// An update's number, as wide as that of the last update. The last update is unknown if it is 0.
std::string step_text(std::uint64_t step, std::uint64_t max_step) {
  return format("{:>{}}", step, max_step > 0 ? std::to_string(max_step).size() : 5);
}

}  // namespace

std::string step_line(const TrainMetrics& m, std::uint64_t max_step, double eta_s, bool in_loss) {
  const double all = m.positions_per_second > 0 ? m.positions_per_second : m.tokens_per_second;
  std::string line = format("step {}{}  loss {}  gnorm {}  lr {:.2e}  {} ms  {:>6} tok/s", step_text(m.step, max_step),
                            max_step > 0 ? format("/{}", max_step) : "", fit(m.loss, 6, 4), fit(m.gradient_norm, 5, 3),
                            m.learning_rate, fit(std::round(m.ms), 6, 0), format_count(all));
  if (in_loss) line += format(" ({:>6} in the loss)", format_count(m.tokens_per_second));
  if (m.mfu) line += format("  mfu {} %", fit(100 * *m.mfu, 4, 1));
  for (const auto& [name, number] : m.numbers) line += format("  {} {:>10.4g}", name, number);
  if (m.step < max_step) line += format("  eta {}", format_duration(eta_s));
  return line;
}

Metrics::Metrics(const std::filesystem::path& file, std::size_t log_interval, bool active, std::FILE* out, LogFormat format,
                 std::string (*wording)(const std::string&))
    : active_(active),
      log_interval_(log_interval),
      format_(format),
      out_(out),
      wording_(wording),
      bar_("train", ProgressBar::Unit::count, out),
      age_s_(process_age_s()) {
  to_file(file);
}

void Metrics::to_file(const std::filesystem::path& file) {
  if (active_ && !file.empty()) file_.open(file);
}

void Metrics::to_tensorboard(const std::filesystem::path& folder) {
  if (active_) tensorboard_ = std::make_unique<TensorBoardFile>(folder);
}

void Metrics::write(nlohmann::json line) {
  line["time"] = wall_s();
  if (tensorboard_) {
    tensorboard_->add(line["time"], line["step"], tensorboard_scalars(line, ranks_));
    if (tensorboard_->failed()) {
      warn(format("cannot write to {} any more; the run continues without it", tensorboard_->path().string()));
      tensorboard_.reset();
    }
  }
  if (!file_.is_open()) return;
  if (!line.contains("process_s")) line["process_s"] = 1e-3 * std::round(1e3 * (age_s_ + since_made_.seconds()));
  if (!file_.append(json_text(line) + "\n"))  // training continues without the file
    warn(format("cannot write to {} any more; the run continues without it", file_.path().string()));
  if (!file_.is_in_place(line["type"] == "end"))
    warn(format(
        "{} was moved, removed or replaced while the run writes to it (its lines go where the old file is); move it back",
        file_.path().string()));
  if (const int error = sync_error_.exchange(0))
    warn(format("{} may lose lines if this node crashes (fdatasync: {}); check the disk", file_.path().string(),
                std::strerror(error)));
}

/// Prints a line of the metrics on stderr in the format that the user chose.
void Metrics::print(const nlohmann::json& line, const std::string& text) {
  if (format_ == LogFormat::none) return;
  if (format_ == LogFormat::json)
    bar_.raw_line(json_text(line));
  else
    bar_.line(text);
}

/// The time spent in all starts, including this one.
TimeSpent Metrics::spent() const {
  TimeSpent all = before_;
  all += here_;
  const double age_s = age_s_ + since_made_.seconds();
  all.running_s += age_s;
  if (here_.startup_s == 0) all.startup_s += age_s;  // no update yet in this start
  return all;
}

void Metrics::say(const std::string& text) {
  if (active_) bar_.line(text);
}

void Metrics::warn(const std::string& text) {
  const std::string warning = printable(wording_ ? wording_(text) : text);
  if (!active_ || std::find(warnings_.begin(), warnings_.end(), warning) != warnings_.end()) return;
  warnings_.push_back(warning);
  bar_.raw_line(warning_line(warning, out_));
}

void Metrics::start(const StartMetrics& m) {
  if (!active_) return;
  take_file();
  first_step_ = m.step;
  max_step_ = m.max_step;
  const double age_s = age_s_ + since_made_.seconds();
  if (file_.is_open() && m.options && m.options->contains("save-dir")) {
    const TakenUp taken = take_up_metrics(file_.path(), {(*m.options)["save-dir"], m.step, m.sequences, wall_s() - age_s});
    before_ = taken.before;
    if (taken.clock_went_back)
      warn(format("the times in {} go backwards (the clock was set back), so the time between the starts is unknown",
                  file_.path().string()));
    if (!taken.problem.empty())
      warn(format(
          "{} already has lines for updates after step {}, which this run repeats; these lines stay as they are ({}), so these "
          "updates are in the file twice",
          file_.path().string(), m.step, taken.problem));
    else if (taken.lost > 0)
      bar_.line(format("{} lines of {} are for updates after step {}, which this run repeats; their type is now 'lost'",
                       taken.lost, file_.path().string(), m.step));
  }
  ranks_ = m.world_size;
  if (tensorboard_) tensorboard_->begin(wall_s(), m.step + 1);
  nlohmann::json line = {{"type", "start"},
                         {"version", m.version},
                         {"world_size", m.world_size},
                         {"strategy", m.strategy},
                         {"options", m.options ? *m.options : nlohmann::json()},
                         {"save_folder", m.options && m.options->contains("save-dir")
                                             ? nlohmann::json(whole_path((*m.options)["save-dir"].get<std::string>()))
                                             : nlohmann::json()},
                         {"parameters", m.parameters},
                         {"plan_peak_bytes", m.plan_peak_bytes},
                         {"shard_ranks", m.shard_ranks},
                         {"nodes", m.traffic ? nlohmann::json(m.traffic->nodes) : nlohmann::json()},
                         {"update_bytes_sent", m.traffic ? nlohmann::json(m.traffic->sent) : nlohmann::json()},
                         {"update_bytes_out_of_node", m.traffic ? nlohmann::json(m.traffic->out_of_node) : nlohmann::json()},
                         {"process_s", age_s},
                         {"so_far", to_json(before_)},
                         {"step", m.step}};
  if (m.more) line.update(*m.more);
  write(std::move(line));
}

void Metrics::train(const TrainMetrics& m) {
  if (!active_) return;
  nlohmann::json line = {{"type", "train"},
                         {"step", m.step},
                         {"loss", m.loss},
                         {"ppl", std::exp(m.loss)},
                         {"max_loss", m.largest_loss},
                         {"lr", m.learning_rate},
                         {"gnorm", m.gradient_norm},
                         {"tokens", m.tokens},
                         {"wps", m.tokens_per_second},
                         {"positions_per_second", m.positions_per_second},
                         {"ms", m.ms},
                         {"mfu", m.mfu ? nlohmann::json(*m.mfu) : nlohmann::json()},
                         {"loss_scale", m.loss_scale ? nlohmann::json(*m.loss_scale) : nlohmann::json()},
                         {"comm_exposed_ms", m.times ? nlohmann::json(1e3 * m.times->exposed) : nlohmann::json()},
                         {"data_wait_ms", m.data_wait_ms},
                         {"mem_peak_bytes", m.mem_peak_bytes}};
  if (m.padding) line["padding"] = *m.padding;
  if (m.rank_balance) line["rank_balance"] = *m.rank_balance;
  if (m.accuracy) line["mean_token_accuracy"] = *m.accuracy;
  if (m.entropy) line["entropy"] = *m.entropy;
  if (m.times) {
    auto& work = line["work_ms"];
    for (const auto& [name, seconds] :
         {std::pair("products", m.times->gemm), std::pair("attention", m.times->attention),
          std::pair("other_kernels", m.times->other_kernels), std::pair("optimizer", m.times->optimizer)})
      if (seconds > 0) work[name] = 1e3 * seconds;
  }
  for (const auto& [group, norm] : m.group_norms) line["gnorms"][group] = norm;
  for (const auto& [name, number] : m.numbers) line["numbers"][name] = number;
  if (m.straggler)
    line["straggler"] = {{"rank", m.straggler->rank},
                         {"host", m.straggler->host},
                         {"ms", m.straggler->ms},
                         {"median_ms", m.straggler->median_ms}};
  count_update(here_.useful_s, m.ms);
  update_ms_.push_back(m.ms);
  spent_ms_ += m.ms;
  in_loss_ += m.ms * m.tokens_per_second, computed_ += m.ms * m.positions_per_second;
  const double mean_s = 1e-3 * spent_ms_ / static_cast<double>(std::max<std::uint64_t>(m.step - first_step_, 1));
  const double eta_s = mean_s * static_cast<double>(max_step_ > m.step ? max_step_ - m.step : 0);
  if (m.step % log_interval_ == 0 || m.step == first_step_ + 1 || m.step == max_step_)
    print(line, step_line(m, max_step_, eta_s, in_loss_ < 0.99 * computed_));  // padding at the end of a pass does not matter
  write(std::move(line));
  if (shows_bar() && max_step_ > 0)
    bar_.update(static_cast<double>(m.step), static_cast<double>(max_step_),
                format("step {}/{}  loss {:.4f}  {} left", m.step, max_step_, m.loss, format_duration(eta_s)));
}

void Metrics::count_update(double& seconds, double ms) {
  if (here_.startup_s == 0) here_.startup_s = std::max(1e-9, age_s_ + since_made_.seconds() - 1e-3 * ms);
  seconds += 1e-3 * ms;
}

void Metrics::skip(const SkipMetrics& m) {
  if (!active_) return;
  nlohmann::json line = {{"type", "skip"}, {"step", m.step}, {"ms", m.ms}, {"sequences", m.sequences}};
  if (const auto& o = m.overflow) {
    line.update({{"reason", "overflow"}, {"loss_scale", o->scale}, {"next_loss_scale", o->next_scale}});
    bar_.line(
        format("step {} overflowed at loss scale {} and is left out; the scale is {} now", m.step, o->scale, o->next_scale));
  }
  if (const auto& s = m.spike) {
    line.update({{"reason", "spike"},
                 {"loss", s->loss},
                 {"gnorm", s->norm},
                 {"most_loss", s->most_loss},
                 {"most_gnorm", s->most_norm}});
    bar_.line(format("step {} is a spike and is left out: loss {:.4f} (at most {:.4f}), gnorm {:.3f} (at most {:.3f})", m.step,
                     s->loss, s->most_loss, s->norm, s->most_norm));
  }
  write(std::move(line));
  count_update(here_.skipped_s, m.ms);
}

void Metrics::validating(std::uint64_t step, std::size_t done, std::size_t batches, double seconds) {
  if (!active_) return;
  const std::string text = format("validating after step {}, batch {} of {}", step, done, batches);
  if (shows_bar()) return bar_.update(static_cast<double>(done), static_cast<double>(batches), text);
  if (seconds < next_validating_s_) return;
  next_validating_s_ = 2 * seconds;
  bar_.line(text);
}

void Metrics::valid(const ValidMetrics& m) {
  if (!active_) return;
  here_.validation_s += 1e-3 * m.ms;
  const nlohmann::json line = {{"type", "valid"},
                               {"step", m.step},
                               {"loss", m.loss},
                               {"ppl", std::exp(m.loss)},
                               {"mean_token_accuracy", m.accuracy},
                               {"entropy", m.entropy},
                               {"tokens", m.tokens},
                               {"ms", m.ms},
                               {"best", m.is_best}};
  write(line);
  print(line, format("valid {}  loss {}  ppl {}  {:>6} tokens  {} ms  accuracy {:.3f}  entropy {:.3f}",
                     step_text(m.step, max_step_), fit(m.loss, 6, 4), fit(std::exp(m.loss), 5, 2),
                     format_count(static_cast<double>(m.tokens)), fit(std::round(m.ms), 6, 0), m.accuracy, m.entropy));
  next_validating_s_ = first_validating_s;
}

void Metrics::sample(std::uint64_t step, const std::string& prompt, const std::string& text) {
  if (!active_) return;
  write({{"type", "sample"}, {"step", step}, {"prompt", prompt}, {"text", text}});
  bar_.line(format("sample {}: {}{}", step, prompt, text));
}

void Metrics::save(const SaveMetrics& m) {
  if (!active_) return;
  here_.saves_s += 1e-3 * m.stall_ms;
  nlohmann::json line = {{"type", "save"},   {"step", m.step}, {"path", m.folder.string()},
                         {"bytes", m.bytes}, {"ms", m.ms},     {"stall_ms", m.stall_ms}};
  if (m.interval_s > 0) line["interval_s"] = m.interval_s;
  write(std::move(line));
  bar_.line(
      format("saved {} in {}{}{}", m.folder.string(), format_duration(1e-3 * m.ms),
             m.stall_ms < 0.9 * m.ms ? format("; training paused {}", format_duration(1e-3 * m.stall_ms)) : "",
             m.interval_s > 0 ? format("; --save-interval auto: the next one in {}", format_duration(m.interval_s)) : ""));
}

void Metrics::restore(std::uint64_t step, const std::string& source, double ms, std::size_t bytes_read,
                      std::size_t file_bytes) {
  if (!active_) return;
  write({{"type", "restore"},
         {"step", step},
         {"source", source},
         {"ms", ms},
         {"bytes_read", bytes_read},
         {"file_bytes", file_bytes}});
  bar_.line(
      wrapped(format("restored step {} from {} in {}; a rank reads at most {} of {}", step, source, format_duration(1e-3 * ms),
                     format_bytes(static_cast<double>(bytes_read)), format_bytes(static_cast<double>(file_bytes)))));
}

void Metrics::stop(std::uint64_t step, const std::string& reason) {
  if (!active_) return;
  write({{"type", "stop"}, {"step", step}, {"reason", reason}});
  bar_.line(format("stopping after step {} ({})", step, reason));
}

void Metrics::end(const EndMetrics& m) {
  if (!active_) return;
  const TimeSpent spent = this->spent();
  const double joules = m.energy.processors.value_or(0) + m.energy.gpus.value_or(0);
  const bool told = (m.energy.processors || m.energy.gpus) && m.tokens_here > 0;
  const double per_token = told ? joules / static_cast<double>(m.tokens_here) : 0;
  write({{"type", "end"},
         {"step", m.step},
         {"tokens", m.tokens},
         {"wps", m.tokens_per_second},
         {"mem_peak_bytes", m.mem_peak_bytes},
         {"ms_p5", quantile(update_ms_, 0.05)},  // null if there are none
         {"ms_median", quantile(update_ms_, 0.5)},
         {"ms_p95", quantile(update_ms_, 0.95)},
         {"goodput", spent.goodput()},
         {"time_spent", to_json(spent)},
         {"processors_j", or_null(m.energy.processors)},
         {"gpus_j", or_null(m.energy.gpus)},
         {"joules_per_token", told ? nlohmann::json(per_token) : nlohmann::json()},
         {"next", m.next}});
  bar_.clear();
  std::string line = format("end of step {}: {} tokens", m.step, format_count(static_cast<double>(m.tokens)));
  if (m.tokens_per_second > 0)
    line += format(", {} tok/s, peak {} per rank", format_count(m.tokens_per_second),
                   format_bytes(static_cast<double>(m.mem_peak_bytes)));
  bar_.line(line);
  if (m.tokens_here > 0) bar_.line(describe(spent));
  if (told)
    bar_.line(format("energy: {:.3g} J per token of this start ({})", per_token,
                     !m.energy.gpus         ? "processors"
                     : !m.energy.processors ? "GPUs"
                                            : "processors and GPUs"));
  if (!warnings_.empty()) bar_.line("warnings of this run:");
  for (const std::string& warning : warnings_) bar_.line(wrapped("  " + warning));
  if (!m.next.empty()) bar_.line(m.next);
}

}  // namespace fsdp
