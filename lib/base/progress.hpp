// Progress on stderr: a bar with rate and time left on a terminal, a plain line now and then otherwise.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "base/timer.hpp"

namespace fsdp {

class ProgressBar {
 public:
  enum class Unit { count, bytes };
  /// Nothing is printed before the first update. `out` decides between bar and lines.
  explicit ProgressBar(std::string what, Unit unit = Unit::count, std::FILE* out = stderr);
  ProgressBar(const ProgressBar&) = delete;
  ~ProgressBar() { clear(); }

  /// `done` of `total` is done. Cheap to call often: a bar is redrawn at most ten times a second, a line printed at each tenth
  /// of the work, after a second and then at most once in two seconds.
  void update(double done, double total);
  /// Replaces what follows the bar ("1.2 GiB of 3 GiB, ...") by the caller's own words.
  void update(double done, double total, std::string_view words);
  /// Prints a line that stays, above the bar.
  void line(std::string_view text);
  /// Removes the bar. For work of a second or more it prints a line with what was done in what time.
  void finish();
  /// Takes the bar off the screen.
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
  double first_ = -1;  // `done` at the first update: the rate counts from there
  double done_ = 0;
  double last_draw_s_;
  int last_tenth_ = 0;
  std::string bar_;  // what is on the screen
};

}  // namespace fsdp
