// Shows progress on stderr. A terminal gets a bar with rate and time left; any other stderr gets a plain line now and then.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "base/timer.hpp"

namespace fsdp {

class ProgressBar {
 public:
  enum class Unit { count, bytes };
  /// Nothing is printed before the first update. A bar is drawn if `out` is a terminal, otherwise lines are printed.
  explicit ProgressBar(std::string what, Unit unit = Unit::count, std::FILE* out = stderr);
  ProgressBar(const ProgressBar&) = delete;
  ~ProgressBar() { clear(); }

  /// Reports that the amount `done` of `total` is complete. May be called often: a bar is redrawn at most ten times a second. A
  /// line is printed at each tenth of the work, but not in the first second and at most every two seconds.
  void update(double done, double total);
  /// The same, with `words` after the bar instead of amount, rate and time left.
  void update(double done, double total, std::string_view words);
  /// Prints a line that stays, above the bar.
  void line(std::string_view text);
  /// Removes the bar. If the work took a second or more, prints a line with amount, time and rate.
  void finish();
  /// Erases the bar from the screen.
  void clear();
  bool terminal() const { return terminal_; }

 private:
  bool due(double done, double total);
  std::string words(double done, double total) const;
  void draw(double done, double total, std::string_view words);

  std::string what_;
  Unit unit_;
  std::FILE* out_;
  bool terminal_, drawn_ = false;
  Timer timer_;
  double first_ = -1;  // `done` at the first update, from which the rate is measured; -1: no update yet
  double done_ = 0;
  double last_draw_s_;
  int last_tenth_ = 0;
  std::string bar_;  // the text of the bar on the screen
};

}  // namespace fsdp
