// A resumed run changes the lines of updates that it repeats, and computes the lost time from them.
#include <boost/test/unit_test.hpp>

#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "record/metrics_file.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;
using nlohmann::json;

namespace {

/// Lines as the program writes them: sorted keys, no spaces.
struct Lines {
  std::string text;
  double time = 0;
  void add(json line) {
    line["time"] = time;
    text += line.dump() + "\n";
  }
  void start(double at, const std::string& save_dir, const TimeSpent& so_far = {}) {
    time = at;
    add({{"type", "start"}, {"process_s", 2}, {"options", {{"save-dir", save_dir}}}, {"so_far", to_json(so_far)}, {"step", 0}});
  }
  /// Adds lines for updates of one second each.
  void train(std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t step = first; step <= last; ++step) {
      time += 1;
      add({{"type", "train"}, {"step", step}, {"ms", 1000}, {"gnorm", 1}});
    }
  }
};

std::string types_of(const std::string& text) {
  std::istringstream lines(text);
  std::string types;
  for (std::string line; std::getline(lines, line);) {
    const json parsed = json::parse(line, nullptr, false);
    types += parsed.is_discarded() ? "?" : parsed["type"] == "start" ? "|" : parsed["type"].get<std::string>().substr(0, 1);
  }
  return types;
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_reason_of_the_scheduler_is_no_time_of_the_run) {
  const TemporaryFolder folder;
  Lines lines;
  lines.start(100, "a");
  lines.time = 102;
  lines.train(1, 3);
  lines.time = 115;  // slurm/job.sh writes it later, without an age
  lines.add({{"type", "scheduler"}, {"reason", "another job takes its place"}});
  write_file(folder / "m", lines.text);
  const TakenUp taken = take_up_metrics(folder / "m", {"a", 3, 0, 120});
  BOOST_TEST(taken.before.running_s == 105 - 98);
  BOOST_TEST(taken.before.between_s == 120 - 105);
  BOOST_TEST(taken.lost == 0u);
  BOOST_TEST(types_of(read_file(folder / "m")) == "|ttts");
}

BOOST_AUTO_TEST_CASE(what_is_done_again_becomes_lost_in_place) {
  const TemporaryFolder folder;
  Lines lines;
  lines.start(100, "a");
  lines.time = 102;
  lines.train(1, 5);
  lines.add({{"type", "save"}, {"step", 3}, {"ms", 900}, {"stall_ms", 500}});
  lines.add({{"type", "valid"}, {"step", 5}, {"ms", 250}});
  write_file(folder / "m", lines.text + "{\"type\":\"trai");
  const TakenUp taken = take_up_metrics(folder / "m", {"a", 3, 0, 120});
  BOOST_TEST(taken.lost == 3u);
  const std::string text = read_file(folder / "m");
  BOOST_TEST(types_of(text) == "|tttllsl?");
  BOOST_TEST(text.size() == lines.text.size() + 13);
  const TimeSpent& before = taken.before;
  BOOST_TEST(before.starts == 1u);
  BOOST_TEST(before.running_s == 107 - 98);  // the process began two seconds before its start line
  BOOST_TEST(before.startup_s == 102 - 98);
  BOOST_TEST(before.useful_s == 3);
  BOOST_TEST(before.lost_s == 2);
  BOOST_TEST(before.saves_s == 0.5);
  BOOST_TEST(before.validation_s == 0.25);
  BOOST_TEST(before.between_s == 120 - 107);
  // A start that died before its first update, and the next start from the same update.
  const TakenUp again = take_up_metrics(folder / "m", {"a", 3, 0, 120});
  BOOST_TEST(again.lost == 0u);
  BOOST_TEST(again.before.useful_s == 3);
  BOOST_TEST(again.before.lost_s == 2);
}

BOOST_AUTO_TEST_CASE(what_was_made_after_the_last_update_is_known) {
  const TemporaryFolder folder;
  Lines lines;
  lines.start(100, "a");
  lines.add({{"type", "valid"}, {"step", 0}, {"loss", 5.5}});
  lines.train(1, 4);
  lines.add({{"type", "valid"}, {"step", 4}, {"loss", 4.5}});
  lines.start(110, "a");
  lines.add({{"type", "sample"}, {"step", 4}});
  lines.train(5, 6);
  lines.add({{"type", "sample"}, {"step", 6}});
  write_file(folder / "m", lines.text);
  const TakenUp at_6 = take_up_metrics(folder / "m", {"a", 6, 0, 120}, true);
  BOOST_TEST(!at_6.loss);
  BOOST_TEST(at_6.sampled);
  const TakenUp at_4 = take_up_metrics(folder / "m", {"a", 4, 0, 120}, true);
  BOOST_TEST(at_4.loss.value_or(0) == 4.5);
  BOOST_TEST(at_4.sampled);
  BOOST_TEST(!take_up_metrics(folder / "m", {"b", 4, 0, 120}, true).loss);
  BOOST_TEST(read_file(folder / "m") == lines.text);  // it was only looked at
  const TakenUp at_0 = take_up_metrics(folder / "m", {"a", 0, 0, 120});
  BOOST_TEST(!at_0.loss);
  BOOST_TEST(types_of(read_file(folder / "m")) == "|llllll|llll");  // with the validation before the first update
}

BOOST_AUTO_TEST_CASE(going_back_beyond_the_last_start_moves_time_from_useful_to_lost) {
  const TemporaryFolder folder;
  Lines lines;
  lines.start(100, "a");
  lines.train(1, 5);
  lines.start(110, "a", {.running_s = 7, .useful_s = 5, .startup_s = 2, .starts = 1});
  lines.train(6, 8);
  write_file(folder / "m", lines.text);
  const TakenUp taken = take_up_metrics(folder / "m", {"a", 2, 0, 120});
  BOOST_TEST(types_of(read_file(folder / "m")) == "|ttlll|lll");
  BOOST_TEST(taken.lost == 6u);
  BOOST_TEST(taken.before.useful_s == 2);
  BOOST_TEST(taken.before.lost_s == 6);
  BOOST_TEST(taken.before.running_s == 7 + 5);
  BOOST_TEST(taken.before.starts == 2u);
}

BOOST_AUTO_TEST_CASE(lines_of_other_runs_and_of_older_programs_stay) {
  const TemporaryFolder folder;
  Lines lines;
  lines.start(100, "a");
  lines.train(1, 5);
  lines.start(110, "b");
  lines.train(1, 3);
  write_file(folder / "m", lines.text);
  BOOST_TEST(take_up_metrics(folder / "m", {"c", 0, 0, 120}).lost == 0u);
  BOOST_TEST(types_of(read_file(folder / "m")) == "|ttttt|ttt");
  BOOST_TEST(take_up_metrics(folder / "m", {"b", 0, 0, 120}).lost == 3u);
  BOOST_TEST(types_of(read_file(folder / "m")) == "|ttttt|lll");
  BOOST_TEST(take_up_metrics(folder / "m", {"a", 3, 0, 120}).lost == 2u);  // skipping the lines of another run
  BOOST_TEST(types_of(read_file(folder / "m")) == "|tttll|lll");
  write_file(folder / "old", "{\"step\":1,\"type\":\"train\"}\n{\"step\":2,\"type\":\"train\"}\n");
  BOOST_TEST(take_up_metrics(folder / "old", {"a", 1, 0, 120}).lost == 0u);
  write_file(folder / "odd",
             lines.text + "{\"type\":\"start\",\"options\":{\"save-dir\":5}}\n{\"step\":9,\"type\":\"train\"}\n");
  BOOST_TEST(take_up_metrics(folder / "odd", {"b", 1, 0, 120}).lost == 2u);
  BOOST_TEST(types_of(read_file(folder / "odd")) == "|ttttt|tll|t");
  write_file(folder / "empty", "");
  BOOST_TEST(take_up_metrics(folder / "empty", {"a", 1, 0, 120}).lost == 0u);
}

BOOST_AUTO_TEST_CASE(a_run_is_known_by_its_folder_whatever_that_is_called) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "saves");
  std::filesystem::create_directory_symlink(folder / "saves", folder / "link");
  const std::string saves = (folder / "saves").string();
  Lines lines;
  lines.add({{"type", "start"}, {"options", {{"save-dir", "saves"}}}, {"save_folder", whole_path(saves)}});
  lines.train(1, 5);
  for (const std::string& name : {saves, saves + "/", saves + "/../saves/.", (folder / "link").string()}) {
    write_file(folder / "m", lines.text);
    BOOST_TEST(take_up_metrics(folder / "m", {name, 3, 0, 120}).lost == 2u);
  }
  write_file(folder / "m", lines.text);
  BOOST_TEST(take_up_metrics(folder / "m", {"saves", 3, 0, 120}).lost == 0u);  // another folder of the same name
}

BOOST_AUTO_TEST_CASE(a_file_that_holds_something_else_stays_as_it_is) {
  const TemporaryFolder folder;
  write_file(folder / "data", "tokens");
  CHECK_CONTAINS(message_of([&] { MetricsFile file(folder / "data"); }), "is not a metrics file");
  BOOST_TEST(read_file(folder / "data") == "tokens");
  BOOST_TEST_REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_CONTAINS(message_of([&] { MetricsFile file(folder / "pipe"); }), "cannot write --log-file");  // no process reads the
                                                                                                      // pipe
  const mode_t mask = ::umask(002);
  MetricsFile shared(folder / "shared");
  ::umask(mask);
  struct stat info {};
  BOOST_TEST(::stat((folder / "shared").c_str(), &info) == 0);
  BOOST_TEST((info.st_mode & 0777) == 0664u);
  write_file(folder / "cut", "{\"type\":\"tra");
  MetricsFile cut(folder / "cut");
  cut.take();
  BOOST_TEST(cut.append("{}\n"));
  BOOST_TEST(read_file(folder / "cut") == "{\"type\":\"tra\n{}\n");
}

BOOST_AUTO_TEST_CASE(two_runs_do_not_share_a_file) {
  const TemporaryFolder folder;
  write_file(folder / "m", R"({"type":"start","save_folder":"/saves/a"})"
                           "\n"
                           R"({"type":"train"})"
                           "\n");
  int ready[2];
  BOOST_TEST_REQUIRE(::pipe(ready) == 0);
  const pid_t first = ::fork();
  if (first == 0) {
    MetricsFile file(folder / "m"), again(folder / "m"), nowhere("/dev/null");
    file.take(0), again.take(0), nowhere.take(0);  // a program may make a second log of its run
    [[maybe_unused]] const ssize_t told = ::write(ready[1], "x", 1);
    for (;;) ::pause();
  }
  char told = 0;
  BOOST_TEST_REQUIRE(::read(ready[0], &told, 1) == 1);
  MetricsFile("/dev/null").take(0);
  MetricsFile second(folder / "m");
  CHECK_CONTAINS(message_of<RunError>([&] { second.take(0); }),
                 "m is being written by another run (its newest lines are of the run that saves to /saves/a)");
  ::kill(first, SIGKILL);
  ::waitpid(first, nullptr, 0);
  second.take(0);  // the lock ends with the process
}

BOOST_AUTO_TEST_CASE(a_file_that_was_replaced_is_noticed) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("m", folder / "link");  // the user's own link is followed
  MetricsFile file(folder / "link");
  BOOST_TEST(file.is_in_place(true));
  std::filesystem::rename(folder / "m", folder / "moved");
  BOOST_TEST(file.is_in_place(false));  // looks once a second
  BOOST_TEST(!file.is_in_place(true));
  BOOST_TEST_REQUIRE(::mkfifo((folder / "m").c_str(), 0600) == 0);
  BOOST_TEST(!file.is_in_place(true));
  std::filesystem::rename(folder / "moved", folder / "m");
  BOOST_TEST(file.is_in_place(true));
}

BOOST_AUTO_TEST_CASE(updates_that_were_left_out_go_by_the_position_in_the_data) {
  const TemporaryFolder folder;
  Lines lines;
  lines.start(100, "a");
  lines.train(1, 2);
  lines.add({{"type", "skip"}, {"step", 3}, {"sequences", 30}, {"ms", 1000}, {"gnorm", 1}});
  lines.train(3, 3);
  write_file(folder / "m", lines.text);
  BOOST_TEST(take_up_metrics(folder / "m", {"a", 2, 30, 120}).before.skipped_s == 1);  // saved after the update was skipped
  BOOST_TEST(types_of(read_file(folder / "m")) == "|ttsl");
  BOOST_TEST(take_up_metrics(folder / "m", {"a", 2, 20, 120}).before.lost_s == 2);
  BOOST_TEST(types_of(read_file(folder / "m")) == "|ttll");
}

BOOST_AUTO_TEST_CASE(long_files_are_read_from_their_end) {
  const TemporaryFolder folder;
  Lines lines;
  lines.start(100, "a");
  lines.train(1, 3000);
  write_file(folder / "m", std::string(200'000, 'x') + "\n" + lines.text);
  const TakenUp taken = take_up_metrics(folder / "m", {"a", 1000, 0, 5000});
  BOOST_TEST(taken.lost == 2000u);
  BOOST_TEST(taken.before.useful_s == 1000);
  BOOST_TEST(types_of(read_file(folder / "m")) == "?|" + std::string(1000, 't') + std::string(2000, 'l'));
}

BOOST_AUTO_TEST_CASE(a_clock_that_was_set_changes_no_time_that_was_spent) {
  const TemporaryFolder folder;
  const auto two_starts = [&](bool with_ages, double first_step, double second_step) {
    Lines lines;
    lines.start(10000, "a");  // the process is two seconds old
    for (int step = 1; step <= 6; ++step) {
      lines.time += step == 3 ? 1 + first_step : 1;
      json line = {{"type", "train"}, {"step", step}, {"ms", 1000}, {"gnorm", 1}};
      if (with_ages) line["process_s"] = 2 + step;
      lines.add(line);
    }
    write_file(folder / "m", lines.text);
    return take_up_metrics(folder / "m", {"a", 6, 0, lines.time + 5 + second_step});
  };
  for (const bool with_ages : {true, false}) {
    const TakenUp right = two_starts(with_ages, 0, 0);
    BOOST_TEST(!right.clock_went_back);
    BOOST_TEST(right.before.running_s == 8);
    BOOST_TEST(right.before.startup_s == 2);
    BOOST_TEST(right.before.between_s == 5);
    const TakenUp before = two_starts(with_ages, -3600, 0);  // during the first start
    BOOST_TEST(before.clock_went_back);
    BOOST_TEST(before.before.running_s == (with_ages ? 8 : 6));  // at least its updates
    BOOST_TEST(before.before.useful_s == 6);
    BOOST_TEST(before.before.goodput() <= 1);
    const TakenUp between = two_starts(with_ages, 0, -3600);
    BOOST_TEST(between.clock_went_back);
    BOOST_TEST(between.before.between_s == 0);
    BOOST_TEST(between.before.running_s == 8);
  }
  const TakenUp ahead = two_starts(true, 3600, 0);
  BOOST_TEST(ahead.before.running_s == 8);
  BOOST_TEST((TimeSpent{.running_s = 1, .useful_s = 2}.goodput() == 1));  // as older versions may have written
}

BOOST_AUTO_TEST_CASE(goodput_is_useful_over_running_time) {
  TimeSpent spent{.running_s = 200, .useful_s = 150, .saves_s = 10, .startup_s = 40, .starts = 1};
  BOOST_TEST(spent.goodput() == 0.75);
  BOOST_TEST(describe(spent) == "goodput 75.0 %: updates 2:30 min of 3:20 min; startup 40.0 s, saves 10.0 s");
  spent += spent;
  BOOST_TEST(describe(spent).starts_with("goodput 75.0 %: updates 5:00 min of 6:40 min in 2 starts; "));
  BOOST_TEST(describe(time_spent_from_json(to_json(spent))) == describe(spent));
  BOOST_TEST(TimeSpent{}.goodput() == 0);
}
