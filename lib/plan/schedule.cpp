#include "plan/schedule.hpp"

#include <algorithm>

namespace fsdp {

std::vector<TaskTime> schedule(std::span<const Task> tasks) {
  int queues = 0;
  for (const Task& task : tasks) queues = std::max({queues, task.queue + 1, task.also + 1});
  std::vector<double> free_at(static_cast<std::size_t>(queues));
  std::vector<TaskTime> times;
  times.reserve(tasks.size());
  for (const Task& task : tasks) {
    double& queue = free_at[static_cast<std::size_t>(task.queue)];
    double& other = task.also < 0 ? queue : free_at[static_cast<std::size_t>(task.also)];
    double begin = std::max(queue, other);
    for (const int w : task.waits) begin = std::max(begin, times[static_cast<std::size_t>(w)].end);
    queue = other = begin + task.length;
    times.push_back({begin, queue});
  }
  return times;
}

}  // namespace fsdp
