#include "train/metrics.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ios>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"

namespace fsdp {

namespace {

/// A run that was killed in the middle of a line must not spoil the next one's first.
bool ends_in_mid_line(const std::filesystem::path& path) {
  if (kind_of(path) != PathKind::file) return false;
  const InputFile file(path);
  char last = '\n';
  if (file.size() > 0) file.read(file.size() - 1, &last, 1);
  return last != '\n';
}

}  // namespace

std::string step_line(const TrainMetrics& m, std::uint64_t max_step, double eta_s) {
  std::string line = format("step {}/{}  loss {:.4f}  gnorm {:.3f}  lr {:.2e}  {:.0f} ms  {} tok/s", m.step, max_step, m.loss,
                            m.gradient_norm, m.learning_rate, m.ms, format_count(m.tokens_per_second));
  if (m.mfu) line += format("  mfu {:.1f} %", 100 * *m.mfu);
  if (m.step < max_step) line += format("  eta {}", format_duration(eta_s));
  return line;
}

Metrics::Metrics(const std::filesystem::path& file, std::size_t log_interval, bool active, std::FILE* out)
    : active_(active), log_interval_(log_interval), path_(file), bar_("train", ProgressBar::Unit::count, out) {
  if (!active_ || file.empty()) return;
  require_no_foreign_link(file);
  const bool mid_line = ends_in_mid_line(file);
  std::error_code ignored;  // opening it says so
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path(), ignored);
  file_.open(file, std::ios::app);
  if (!file_)
    throw UserError(format("cannot write --log-file '{}' ({}); give a path in a folder that can be written", file.string(),
                           std::strerror(errno)));
  if (mid_line) file_ << '\n';
}

void Metrics::write(const nlohmann::json& line) {
  if (!file_.is_open()) return;
  file_ << json_text(line) << '\n' << std::flush;
  if (!file_) {  // training is worth more than its log
    bar_.line(format("warning: cannot write to {} any more; going on without it", path_.string()));
    file_.close();
  }
}

void Metrics::say(const std::string& text) {
  if (active_) bar_.line(text);
}

void Metrics::start(const StartMetrics& m) {
  if (!active_) return;
  first_step_ = m.step;
  max_step_ = m.max_step;
  write({{"type", "start"},
         {"version", m.version},
         {"world_size", m.world_size},
         {"strategy", m.strategy},
         {"options", m.options ? *m.options : nlohmann::json()},
         {"parameters", m.parameters},
         {"plan_peak_bytes", m.plan_peak_bytes},
         {"step", m.step}});
}

void Metrics::train(const TrainMetrics& m) {
  if (!active_) return;
  nlohmann::json line = {{"type", "train"},
                         {"step", m.step},
                         {"loss", m.loss},
                         {"ppl", std::exp(m.loss)},
                         {"lr", m.learning_rate},
                         {"gnorm", m.gradient_norm},
                         {"tokens", m.tokens},
                         {"wps", m.tokens_per_second},
                         {"ms", m.ms},
                         {"mfu", m.mfu ? nlohmann::json(*m.mfu) : nlohmann::json()},
                         {"loss_scale", m.loss_scale ? nlohmann::json(*m.loss_scale) : nlohmann::json()},
                         {"comm_exposed_ms", m.comm_exposed_ms ? nlohmann::json(*m.comm_exposed_ms) : nlohmann::json()},
                         {"mem_peak_bytes", m.mem_peak_bytes}};
  for (const auto& [group, norm] : m.group_norms) line["gnorms"][group] = norm;
  write(line);

  spent_ms_ += m.ms;
  const double mean_s = 1e-3 * spent_ms_ / static_cast<double>(std::max<std::uint64_t>(m.step - first_step_, 1));
  const double eta_s = mean_s * static_cast<double>(max_step_ > m.step ? max_step_ - m.step : 0);
  const std::string text = step_line(m, max_step_, eta_s);
  if (m.step % log_interval_ == 0 || m.step == first_step_ + 1 || m.step == max_step_) bar_.line(text);
  if (bar_.terminal())
    bar_.update(static_cast<double>(m.step), static_cast<double>(max_step_),
                format("step {}/{}  loss {:.4f}  {} left", m.step, max_step_, m.loss, format_duration(eta_s)));
}

void Metrics::skip(std::uint64_t step, double scale, double next_scale) {
  if (!active_) return;
  write({{"type", "skip"}, {"step", step}, {"loss_scale", scale}, {"next_loss_scale", next_scale}});
  bar_.line(format("step {} overflowed at loss scale {} and is left out; the scale is {} now", step, scale, next_scale));
}

void Metrics::validating(std::uint64_t step, std::size_t done, std::size_t batches) {
  if (active_ && bar_.terminal())
    bar_.update(static_cast<double>(done), static_cast<double>(batches),
                format("validating after step {}, batch {} of {}", step, done, batches));
}

void Metrics::valid(const ValidMetrics& m) {
  if (!active_) return;
  write({{"type", "valid"}, {"step", m.step}, {"loss", m.loss}, {"ppl", std::exp(m.loss)}, {"tokens", m.tokens}, {"ms", m.ms}});
  bar_.line(format("valid {}  loss {:.4f}  ppl {:.2f}  {} tokens  {:.0f} ms", m.step, m.loss, std::exp(m.loss),
                   format_count(static_cast<double>(m.tokens)), m.ms));
}

void Metrics::save(std::uint64_t step, const std::filesystem::path& folder, double ms, double stall_ms) {
  if (!active_) return;
  write({{"type", "save"}, {"step", step}, {"path", folder.string()}, {"ms", ms}, {"stall_ms", stall_ms}});
  bar_.line(
      format("saved {} in {}{}", folder.string(), format_duration(1e-3 * ms),
             stall_ms < 0.9 * ms ? format(", of which training stood still for {}", format_duration(1e-3 * stall_ms)) : ""));
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
  bar_.line(format("restored step {} from {} in {}; a rank reads {} of its {}", step, source, format_duration(1e-3 * ms),
                   format_bytes(static_cast<double>(bytes_read)), format_bytes(static_cast<double>(file_bytes))));
}

void Metrics::stop(std::uint64_t step, const std::string& reason) {
  if (!active_) return;
  write({{"type", "stop"}, {"step", step}, {"reason", reason}});
  bar_.line(format("stopping after step {} ({})", step, reason));
}

void Metrics::end(const EndMetrics& m) {
  if (!active_) return;
  write({{"type", "end"},
         {"step", m.step},
         {"tokens", m.tokens},
         {"wps", m.tokens_per_second},
         {"mem_peak_bytes", m.mem_peak_bytes},
         {"next", m.next}});
  bar_.clear();
  std::string line = format("end of step {}: {} tokens", m.step, format_count(static_cast<double>(m.tokens)));
  if (m.tokens_per_second > 0)
    line += format(", {} tok/s, peak {} per rank", format_count(m.tokens_per_second),
                   format_bytes(static_cast<double>(m.mem_peak_bytes)));
  bar_.line(line);
  if (!m.next.empty()) bar_.line(m.next);
}

}  // namespace fsdp
