// Shows the progress of long work on stderr. A terminal gets a bar with rate and time left; any other stderr gets a plain line
// now and then. Work of less than a second shows nothing.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "base/terminal.hpp"
#include "base/timer.hpp"

namespace fsdp {

class ProgressBar {
 public:
  enum class Unit { count, bytes };
  /// Nothing is printed in the first second after the first update. A bar is drawn if `out` is shown on a terminal, otherwise
  /// lines are printed.
  explicit ProgressBar(std::string what, Unit unit = Unit::count, std::FILE* out = stderr);
  ProgressBar(const ProgressBar&) = delete;
  ~ProgressBar() { clear(); }

  /// Reports that the amount `done` of `total` is complete. May be called often: a bar is redrawn at most ten times a second. A
  /// line is printed at each tenth of the work, but at most every two seconds.
  void update(double done, double total);
  /// The same, with `words` after the bar instead of amount, rate and time left.
  void update(double done, double total, std::string_view words);
  /// Prints a line that stays, above the bar, as clean_lines() makes it. If it has line ends, what follows is indented, so that
  /// no name looks like a line of its own.
  void line(std::string_view text);
  /// The same with data or colours, which are printed as they are.
  void raw_line(std::string_view text);
  /// Removes the bar. If the work took a second or more, prints a line with amount, time and rate.
  void finish();
  /// Erases the bar from the screen.
  void clear();
  bool terminal() const { return terminal_.draws(); }

 private:
  bool due(double done, double total);
  std::string words(double done, double total) const;
  void draw(double done, double total, std::string_view words);
  void compose(double done, double total, std::string_view words);  // sets bar_

  std::string what_;
  Unit unit_;
  std::FILE* out_;
  Terminal terminal_;
  bool drawn_ = false;
  Timer timer_;
  double first_ = -1;  // `done` at the first update, from which the rate is measured; -1: no update yet
  double done_ = 0;
  double last_draw_s_ = 0;
  int last_tenth_ = 0;
  std::string bar_;  // the text of the bar on the screen
};

/// Calls `work` with a function that shows the progress of this work in bytes, `progress(done, total)`, and then ends the bar.
template <class Work>
void with_progress(std::string what, Work&& work) {
  ProgressBar bar(std::move(what), ProgressBar::Unit::bytes);
  work([&](std::size_t done, std::size_t total) { bar.update(static_cast<double>(done), static_cast<double>(total)); });
  bar.finish();
}

}  // namespace fsdp
