// When the operations of a list begin and end, if their lengths are known. Timelines, predictions and figures use it.
#pragma once

#include <span>
#include <vector>

namespace fsdp {

/// An operation as a schedule sees it.
struct Task {
  int queue = 0;                    // a queue does one task at a time, in the order of the list; for example a stream
  int also = -1;                    // a second queue that the task needs at the same time, for example the links; -1: none
  double length = 0;                // in any unit
  std::span<const int> waits = {};  // indices of earlier tasks; the task begins when they have ended
};
struct TaskTime {
  double begin = 0, end = 0;
};
/// The times of the tasks, from 0. Each begins as soon as its queues are free and the tasks that it waits for have ended. Pure
/// function.
std::vector<TaskTime> schedule(std::span<const Task> tasks);

}  // namespace fsdp
