#include "base/progress.hpp"

#include <algorithm>
#include <cmath>

#include "base/clean_text.hpp"
#include "base/format.hpp"
#include "base/program.hpp"

namespace fsdp {

namespace {

double part_of(double done, double total) { return total > 0 ? std::clamp(done / total, 0.0, 1.0) : 0; }

}  // namespace

ProgressBar::ProgressBar(std::string what, Unit unit, std::FILE* out)
    : what_(std::move(what)), unit_(unit), out_(out), terminal_(out) {}

bool ProgressBar::due(double done, double total) {
  if (first_ < 0) first_ = done, timer_.restart();
  done_ = done;
  const double now_s = timer_.seconds();
  const int tenth = total > 0 ? static_cast<int>(std::floor(10 * done / total)) : 0;
  if (now_s < 1) return false;
  if (terminal() ? now_s - last_draw_s_ < 0.1 && done < total : tenth <= last_tenth_ || now_s - last_draw_s_ < 2) return false;
  last_draw_s_ = now_s;
  last_tenth_ = tenth;
  return true;
}

std::string ProgressBar::words(double done, double total) const {
  const double rate = (done - first_) / std::max(timer_.seconds(), 1e-9);
  const auto number = [&](double x) { return unit_ == Unit::bytes ? format_bytes(x) : format_count(x); };
  std::string out = format("{} of {}", number(done), number(total));
  if (rate > 0) out += format("  {}/s  {} left", number(rate), format_duration((total - done) / rate));
  return out;
}

void ProgressBar::draw(double done, double total, std::string_view words) {
  if (!terminal()) {
    print_to(out_, "{}: {:.0f} %  {}\n", what_, std::floor(100 * part_of(done, total)), words);
    std::fflush(out_);
    return;
  }
  compose(done, total, words);
  print_raw(out_, format("\r{}\033[K", bar_));  // \033[K clears the rest of an earlier, longer bar
  std::fflush(out_);
  drawn_ = true;
}

void ProgressBar::compose(double done, double total, std::string_view words) {
  const double part = part_of(done, total);
  constexpr int cells = 24;
  const int full = static_cast<int>(part * cells);
  bar_ = format("{} [{}{}] {:3.0f} %  {}", what_, std::string(full, '#'), std::string(cells - full, '.'),
                std::floor(100 * part), words);
  // A bar is cut to the terminal's width, because a wrapped bar cannot be overwritten.
  if (const std::size_t width = terminal_.width(); width > 1) bar_.resize(std::min(bar_.size(), width - 1));
  const std::size_t label = std::min(bar_.size(), what_.size());
  bar_.replace(0, label, terminal_.coloured(bar_.substr(0, label), Colour::bold));
}

void ProgressBar::update(double done, double total) {
  if (due(done, total)) draw(done, total, words(done, total));
}

void ProgressBar::update(double done, double total, std::string_view text) {
  if (due(done, total))
    draw(done, total, text);
  else if (drawn_)
    compose(done, total, text);  // for the next line(), which draws the bar again
}

void ProgressBar::line(std::string_view text) {
  std::string lines = clean_lines(text);
  for (std::size_t i = lines.find('\n'); i < lines.size() - 1; i = lines.find('\n', i + 1))
    if (lines[i + 1] != ' ') lines.insert(i + 1, "  ");
  raw_line(lines);
}

void ProgressBar::raw_line(std::string_view text) {
  if (drawn_)
    print_raw(out_, format("\r\033[K{}\n{}", text, bar_));
  else
    print_raw(out_, format("{}\n", text));
  std::fflush(out_);
}

void ProgressBar::clear() {
  if (!drawn_) return;
  print_raw(out_, "\r\033[K");
  std::fflush(out_);
  drawn_ = false;
}

void ProgressBar::finish() {
  clear();
  const double seconds = first_ < 0 ? 0 : timer_.seconds();
  if (seconds < 1) return;
  const auto number = [&](double x) { return unit_ == Unit::bytes ? format_bytes(x) : format_count(x); };
  print_to(out_, "{}: {} in {}, {}/s\n", what_, number(done_), format_duration(seconds), number((done_ - first_) / seconds));
  std::fflush(out_);
}

}  // namespace fsdp
