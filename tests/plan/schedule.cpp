// When tasks begin and end: queues, links, classes of ranks, and computing that collectives slow down.
#include <array>
#include <random>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "base/error.hpp"
#include "plan/schedule.hpp"

using namespace fsdp;

namespace {

constexpr double exact = 1e-12;

void check_times(const std::vector<TaskTime>& times, const std::vector<std::pair<double, double>>& expected) {
  BOOST_REQUIRE(times.size() == expected.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    BOOST_TEST(std::abs(times[i].begin - expected[i].first) < exact, i << ": " << times[i].begin);
    BOOST_TEST(std::abs(times[i].end - expected[i].second) < exact, i << ": " << times[i].end);
  }
}

/// Lists of tasks whose `waits` stay alive.
struct Tasks {
  std::vector<std::vector<int>> waiting;
  std::vector<Task> list;
  void add(Task task, std::vector<int> waits = {}) {
    waiting.push_back(std::move(waits));
    list.push_back(task);
    for (std::size_t i = 0; i < list.size(); ++i) list[i].waits = waiting[i];
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_queue_works_in_the_order_of_the_list) {
  Tasks tasks;
  tasks.add({.queue = 0, .length = 2});
  tasks.add({.queue = 1, .length = 3}, {0});
  tasks.add({.queue = 0, .length = 1}, {1});
  tasks.add({.queue = 0, .length = 1});  // not before the one before it
  check_times(schedule(tasks.list), {{0, 2}, {2, 5}, {5, 6}, {6, 7}});
  BOOST_TEST(schedule({}).empty());
}

// The link is free at 1: the task that comes first in the list is ready at 5, another one at 1.
BOOST_AUTO_TEST_CASE(a_link_serves_the_task_that_is_ready_first) {
  Tasks tasks;
  tasks.add({.queue = 0, .length = 5});
  tasks.add({.queue = 1, .link = 0, .length = 2}, {0});
  tasks.add({.queue = 2, .length = 1});
  tasks.add({.queue = 2, .link = 0, .length = 3}, {2});
  check_times(schedule(tasks.list), {{0, 5}, {5, 7}, {0, 1}, {1, 4}});
  // Both are ready while the link is busy: the one that was ready first, and of equals the first of the list.
  Tasks busy;
  busy.add({.queue = 0, .link = 0, .length = 10});
  busy.add({.queue = 3, .length = 2});
  busy.add({.queue = 1, .link = 0, .length = 1}, {1});
  busy.add({.queue = 2, .link = 0, .length = 1});
  busy.add({.queue = 4, .link = 0, .length = 1});
  check_times(schedule(busy.list), {{0, 10}, {0, 2}, {12, 13}, {10, 11}, {11, 12}});
  // A task without length ends before a link that is free at the same time chooses.
  Tasks instant;
  instant.add({.queue = 0});
  instant.add({.queue = 1, .link = 0, .length = 1}, {0});
  instant.add({.queue = 2, .link = 0, .length = 1});
  check_times(schedule(instant.list), {{0, 0}, {0, 1}, {1, 2}});
  // Sums that differ only by rounding are the same time.
  Tasks sums;
  sums.add({.queue = 0, .length = 0.1});
  sums.add({.queue = 0, .length = 0.2});
  sums.add({.queue = 1, .length = 0.3});
  sums.add({.queue = 2, .link = 0, .length = 1}, {1});
  sums.add({.queue = 3, .link = 0, .length = 1}, {2});
  check_times(schedule(sums.list), {{0, 0.1}, {0.1, 0.3}, {0, 0.3}, {0.3, 1.3}, {1.3, 2.3}});
}

BOOST_AUTO_TEST_CASE(collectives_slow_computing) {
  Tasks tasks;
  tasks.add({.queue = 0, .length = 1, .is_slowed = true});
  tasks.add({.queue = 0, .length = 4, .is_slowed = true});
  tasks.add({.queue = 1, .link = 0, .length = 2, .slows = 0.5}, {0});
  // 2 s at half the rate, then 3 s of work are left.
  check_times(schedule(tasks.list), {{0, 1}, {1, 6}, {1, 3}});
  // Of two at the same time, the largest counts; tasks that are not computing are not slowed.
  tasks.add({.queue = 2, .link = 1, .length = 3, .slows = 0.75}, {0});
  tasks.add({.queue = 3, .length = 10});
  check_times(schedule(tasks.list), {{0, 1}, {1, 1 + 3 + 3.25}, {1, 3}, {1, 4}, {0, 10}});
  tasks.list[2].slows = 1;
  BOOST_CHECK_THROW(schedule(tasks.list), InternalError);
}

// Two classes compute for 1 and 3. Their common task begins when both are ready, and slows both.
BOOST_AUTO_TEST_CASE(classes_of_ranks_meet_in_collectives) {
  Tasks tasks;
  tasks.add({.queue = 0, .classes = 1, .length = 1});
  tasks.add({.queue = 0, .classes = 2, .length = 3});
  tasks.add({.queue = 1, .link = 0, .classes = 3, .length = 2, .slows = 0.5}, {0, 1});
  tasks.add({.queue = 0, .classes = 1, .length = 3, .is_slowed = true});
  tasks.add({.queue = 0, .classes = 2, .length = 3, .is_slowed = true});
  check_times(schedule(tasks.list), {{0, 1}, {0, 3}, {3, 5}, {1, 5}, {3, 7}});
  // Collectives of one class only, at the same time on the links of each.
  tasks.add({.queue = 2, .link = 0, .classes = 1, .length = 4});
  tasks.add({.queue = 2, .link = 0, .classes = 2, .length = 4});
  check_times(schedule(tasks.list), {{0, 1}, {0, 3}, {4, 6}, {1, 4}, {3, 7}, {0, 4}, {0, 4}});
}

// Random lists: no two tasks of a queue or link overlap, every wait is kept, slowed tasks take as long as their work does,
// and each task begins when something that it needs ends. Without links and slowing, the times are the closed form.
BOOST_AUTO_TEST_CASE(random_lists) {
  std::mt19937 random(57);
  const auto below = [&](int n) { return std::uniform_int_distribution(0, n - 1)(random); };
  for (int round = 0; round < 200; ++round) {
    const bool simple = round % 4 == 0;
    Tasks tasks;
    for (int i = 0; i < 60; ++i) {
      std::vector<int> waits;
      for (int w = below(3); w > 0 && i > 0; --w) waits.push_back(below(i));
      const bool sends = !simple && below(3) == 0;
      tasks.add({.queue = below(4),
                 .link = sends ? below(2) : -1,
                 .classes = static_cast<std::uint8_t>(simple ? 1 : 1 + below(3)),
                 .length = static_cast<double>(below(5)),
                 .slows = sends ? 0.25 * below(4) : 0.0,
                 .is_slowed = !sends && !simple},
                waits);
    }
    const std::vector<TaskTime> times = schedule(tasks.list);
    std::array<double, 4> free_at{};
    bool overlaps = false, waits_are_kept = true, begins_at_once = true, closed = true;
    for (std::size_t i = 0; i < times.size(); ++i) {
      const Task& task = tasks.list[i];
      bool has_reason = times[i].begin == 0;
      double begin = free_at[static_cast<std::size_t>(task.queue)];
      for (const int w : task.waits) {
        waits_are_kept &= times[static_cast<std::size_t>(w)].end <= times[i].begin;
        begin = std::max(begin, times[static_cast<std::size_t>(w)].end);
      }
      free_at[static_cast<std::size_t>(task.queue)] = begin + task.length;
      closed &= times[i].begin == begin && times[i].end == begin + task.length;
      for (std::size_t j = 0; j < times.size(); ++j) {
        has_reason |= i != j && times[j].end == times[i].begin;
        if (j >= i || !(task.classes & tasks.list[j].classes)) continue;
        const bool same_queue = task.queue == tasks.list[j].queue,
                   same_link = task.link >= 0 && task.link == tasks.list[j].link;
        overlaps |= (same_queue && times[j].end > times[i].begin) ||
                    (same_link && times[j].end > times[i].begin && times[i].end > times[j].begin);
      }
      begins_at_once &= has_reason;
      const double length = times[i].end - times[i].begin;
      BOOST_TEST((task.is_slowed ? length > task.length - exact && length < 4 * task.length + exact
                                 : std::abs(length - task.length) < exact));
    }
    BOOST_TEST(!overlaps);
    BOOST_TEST(waits_are_kept);
    BOOST_TEST(begins_at_once);
    BOOST_TEST((closed || !simple));
    // The critical path has no gap, from the beginning to the end.
    const std::vector<int> path = critical_path(times);
    double end = 0, last = 0;
    for (const TaskTime& time : times) last = std::max(last, time.end);
    for (const int i : path) {
      BOOST_TEST(times[static_cast<std::size_t>(i)].begin == end);
      end = times[static_cast<std::size_t>(i)].end;
    }
    BOOST_TEST(end == last);
  }
}

BOOST_AUTO_TEST_CASE(the_critical_path_leads_through_links_and_waits) {
  Tasks tasks;
  tasks.add({.queue = 0, .length = 1});
  tasks.add({.queue = 1, .link = 0, .length = 4});
  tasks.add({.queue = 2, .link = 0, .length = 2}, {0});  // waits for the link
  tasks.add({.queue = 0, .length = 1}, {2});
  tasks.add({.queue = 3, .length = 6});
  const std::vector<TaskTime> times = schedule(tasks.list);
  const std::vector<int> path = critical_path(times), expected = {1, 2, 3};
  BOOST_TEST(path == expected, boost::test_tools::per_element());
}
