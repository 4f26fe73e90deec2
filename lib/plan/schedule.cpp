#include "plan/schedule.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/error.hpp"

namespace fsdp {

namespace {

constexpr int most_classes = 2;
constexpr double same_time = 1e-12;  // relative: sums of lengths are rounded
constexpr double never = std::numeric_limits<double>::infinity();

class Simulation {
 public:
  explicit Simulation(std::span<const Task> tasks) : tasks_(tasks), times_(tasks.size()), states_(tasks.size()) {
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      const Task& task = tasks[i];
      State& state = states_[i];
      expect(task.slows >= 0 && task.slows < 1 && task.classes >= 1 && task.classes <= 3, "a task is one of two classes");
      expect(task.length >= 0 && task.length < never, "the length of a task is known");
      for (const int earlier : task.waits) expect(earlier >= 0 && at(earlier) < i, "a task waits for earlier ones");
      for (const int earlier : task.waits)
        if (!states_[at(earlier)].is_after(i))
          states_[at(earlier)].successors.push_back(static_cast<int>(i)), ++state.unfinished;
      for (const int c : classes_of(task)) {
        const auto queue = at(task.queue * most_classes + c);
        if (last_of_queue_.size() <= queue) last_of_queue_.resize(queue + 1, -1);
        if (const int before = last_of_queue_[queue]; before >= 0 && !states_[at(before)].is_after(i))
          states_[at(before)].successors.push_back(static_cast<int>(i)), ++state.unfinished;
        last_of_queue_[queue] = static_cast<int>(i);
      }
      if (task.link >= 0) links_ = std::max(links_, task.link + 1);
    }
    link_is_busy_.resize(static_cast<std::size_t>(links_) * most_classes);
    freed_by_.resize(link_is_busy_.size(), -1);
  }

  std::vector<TaskTime> run() {
    for (std::size_t i = 0; i < tasks_.size(); ++i)
      if (states_[i].unfinished == 0) become_ready(static_cast<int>(i), -1);
    for (;;) {
      if (end_those_that_end_now()) continue;
      begin_those_with_free_links();
      if (end_those_that_end_now()) continue;  // tasks without length
      change_rates();
      if (running_.empty()) break;
      now_ = never;
      for (const int i : running_) now_ = std::min(now_, times_[at(i)].end);
    }
    return std::move(times_);
  }

 private:
  struct State {
    std::vector<int> successors;           // tasks that wait for this one
    int unfinished = 0;                    // tasks that this one waits for
    double ready = 0;                      // the time at which it became ready
    double rate = 1, since = 0, done = 0;  // of a running task: its rate since this time, and its work until then
    bool is_after(std::size_t i) const { return !successors.empty() && successors.back() == static_cast<int>(i); }
  };
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  /// The indices of the bits in Task::classes.
  static std::span<const int> classes_of(const Task& task) {
    static constexpr std::array all = {0, 1};
    return std::span(all).subspan(task.classes == 2 ? 1 : 0, task.classes == 3 ? 2 : 1);
  }

  bool end_those_that_end_now() {
    std::vector<int> ended;
    std::erase_if(running_, [&](int i) { return times_[at(i)].end <= now_ * (1 + same_time) && (ended.push_back(i), true); });
    std::ranges::sort(ended);
    for (const int i : ended) end(i);
    return !ended.empty();
  }

  /// `after`: the awaited task that ended last.
  void become_ready(int i, int after) {
    states_[at(i)].ready = now_;
    times_[at(i)].after = after;
    if (tasks_[at(i)].link < 0)
      begin(i);
    else
      waiting_.push_back(i);
  }

  void begin(int i) {
    const Task& task = tasks_[at(i)];
    times_[at(i)].begin = now_, times_[at(i)].end = now_ + task.length;
    states_[at(i)].since = now_;
    running_.push_back(i);
    occupy(i, true);
    if (task.slows > 0 || task.is_slowed) rates_change_ = true;
  }

  void end(int i) {
    times_[at(i)].end = now_;
    occupy(i, false);
    if (tasks_[at(i)].slows > 0) rates_change_ = true;
    for (const int next : states_[at(i)].successors)
      if (--states_[at(next)].unfinished == 0) become_ready(next, i);
  }

  void occupy(int i, bool busy) {
    const Task& task = tasks_[at(i)];
    if (task.link < 0) return;
    for (const int c : classes_of(task)) {
      const std::size_t link = at(task.link * most_classes + c);
      if (busy && states_[at(i)].ready < now_ && freed_by_[link] >= 0 && times_[at(freed_by_[link])].end == now_)
        times_[at(i)].after = freed_by_[link];  // it waited for the link
      if (!busy) freed_by_[link] = i;
      link_is_busy_[link] = busy;
    }
  }
  bool is_free(const Task& task) const {
    return std::ranges::none_of(classes_of(task), [&](int c) { return link_is_busy_[at(task.link * most_classes + c)]; });
  }

  void begin_those_with_free_links() {
    std::ranges::sort(waiting_, {}, [&](int i) { return std::pair(states_[at(i)].ready, i); });
    std::erase_if(waiting_, [&](int i) { return is_free(tasks_[at(i)]) && (begin(i), true); });
  }

  /// Computes the ends of slowed tasks again, if a task that slows others has begun or ended.
  void change_rates() {
    if (!rates_change_) return;
    rates_change_ = false;
    std::array<double, most_classes> slowed{};
    for (const int i : running_)
      for (const int c : classes_of(tasks_[at(i)])) slowed[at(c)] = std::max(slowed[at(c)], tasks_[at(i)].slows);
    for (const int i : running_) {
      const Task& task = tasks_[at(i)];
      if (!task.is_slowed) continue;
      double rate = 1;
      for (const int c : classes_of(task)) rate = std::min(rate, 1 - slowed[at(c)]);
      State& state = states_[at(i)];
      if (rate == state.rate) continue;
      state.done += (now_ - state.since) * state.rate;
      state.since = now_, state.rate = rate;
      times_[at(i)].end = now_ + std::max(0.0, task.length - state.done) / rate;
    }
  }

  const std::span<const Task> tasks_;
  std::vector<TaskTime> times_;
  std::vector<State> states_;
  std::vector<int> last_of_queue_;
  int links_ = 0;
  std::vector<char> link_is_busy_;  // by link and class
  std::vector<int> freed_by_;       // likewise: the task that used the link last
  std::vector<int> waiting_;        // for links
  std::vector<int> running_;
  double now_ = 0;
  bool rates_change_ = false;
};

}  // namespace

std::vector<TaskTime> schedule(std::span<const Task> tasks) { return Simulation(tasks).run(); }

std::vector<int> critical_path(std::span<const TaskTime> times) {
  std::vector<int> path;
  const auto last = std::ranges::max_element(times, {}, &TaskTime::end);
  int i = last == times.end() ? -1 : static_cast<int>(last - times.begin());
  for (; i >= 0; i = times[static_cast<std::size_t>(i)].after) path.push_back(i);
  std::ranges::reverse(path);
  return path;
}

}  // namespace fsdp
