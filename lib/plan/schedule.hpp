// Simulates when the tasks of a list begin and end, given their lengths. Timelines, predictions and figures use it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fsdp {

/// A piece of work, for example an operation of a plan. Ranks that are alike share one copy of their tasks: a class of ranks.
/// Each class has its own queues and links.
struct Task {
  int queue = 0;             // a queue does one task at a time, in the order of the list; for example a stream
  int link = -1;             // a link does one task at a time: the one that was ready first; -1: the task needs none
  std::uint8_t classes = 1;  // bit c: the task occupies the queue and the link of the ranks of class c
  double length = 0;         // in any unit, at the full rate
  // The share of their rate that tasks with `is_slowed` of the same classes lose while this task runs; below 1. Of several
  // tasks at the same time, the largest share counts.
  double slows = 0;
  bool is_slowed = false;
  std::span<const int> waits = {};  // indices of earlier tasks; the task begins when they have ended
};
struct TaskTime {
  double begin = 0, end = 0;
  int after = -1;  // the task whose end let it begin; -1: it began at once
};
/// The times of the tasks, from 0. Each begins as soon as its queues and links are free and the tasks that it waits for have
/// ended. Links serve tasks in the order in which they became ready; of equals, the first of the list. A task of two classes
/// needs the links of both; until both are free, later tasks may use the one that is. Pure function.
std::vector<TaskTime> schedule(std::span<const Task> tasks);

/// The indices of the tasks that determine the end of a schedule: each began when the one before it ended. Pure function.
std::vector<int> critical_path(std::span<const TaskTime> times);

}  // namespace fsdp
