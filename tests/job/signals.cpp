// Requests to stop and to save, by signal and by file.
#include <boost/test/unit_test.hpp>

#include <csignal>
#include <cstdio>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include "job/signals.hpp"
#include "support/files.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Sends a signal to the process, as from outside; waits until `watch` has seen it.
void send(int signal, SignalWatch& watch) {
  kill(getpid(), signal);
  for (int i = 0; i < 1000; ++i) {
    const Requests now = watch.poll();
    if (signal == SIGUSR2 ? now.save : now.stop) return;
    usleep(1000);
  }
  BOOST_FAIL("the signal was not taken");
}

}  // namespace

// This case is first, because its child processes must have only one thread before they start one for signals.
BOOST_AUTO_TEST_CASE(without_a_watch_an_interrupt_and_a_second_sigterm_end_the_process) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const pid_t child = fork();
    if (child == 0) {
      hold_signals();
      kill(getpid(), signal);
      usleep(200'000);
      if (signal == SIGINT) _exit(0);  // too late
      kill(getpid(), signal);
      sleep(10);
      _exit(0);
    }
    int status = 0;
    BOOST_TEST_REQUIRE(waitpid(child, &status, 0) == child);
    BOOST_TEST(WIFSIGNALED(status));
    BOOST_TEST(WTERMSIG(status) == signal);
  }
}

BOOST_AUTO_TEST_CASE(a_launchers_request_waits_for_the_first_watch) {
  for (const int signal : {SIGUSR1, SIGTERM}) {
    const pid_t child = fork();
    if (child == 0) {
      hold_signals();
      kill(getpid(), signal);
      kill(getpid(), SIGUSR2);
      usleep(200'000);
      const Requests requests = SignalWatch("/nowhere", true).poll();
      _exit(requests.stop == 1 && requests.save == 1 ? 7 : 0);
    }
    int status = 0;
    BOOST_TEST_REQUIRE(waitpid(child, &status, 0) == child);
    BOOST_TEST(WIFEXITED(status));
    BOOST_TEST(WEXITSTATUS(status) == 7);
  }
}

BOOST_AUTO_TEST_CASE(signals_that_stop) {
  for (const auto& [signal, name] : {std::pair{SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGUSR1, "SIGUSR1"}}) {
    SignalWatch watch("/nowhere", true);  // forgets requests to an earlier watch
    BOOST_TEST(watch.poll().stop == 0);
    BOOST_TEST(watch.stop_reason() == "another rank");
    send(signal, watch);
    BOOST_TEST(watch.poll().stop == 1);
    BOOST_TEST(watch.poll().stop == 1);  // until the loop ends
    BOOST_TEST(watch.poll().save == 0);
    BOOST_TEST(watch.stop_reason() == name);
  }
}

BOOST_AUTO_TEST_CASE(the_first_stop_is_announced_at_once_by_the_watch_that_leads) {
  const TemporaryFolder folder;
  std::FILE* const out = std::fopen((folder / "said").c_str(), "w");
  auto said = [&, at = std::size_t{0}]() mutable {
    std::string text;
    for (int i = 0; i < 1000 && text.empty(); ++i) usleep(1000), text = read_file(folder / "said").substr(at);
    at += text.size();
    return text;
  };
  {
    SignalWatch other("/nowhere", false), watch("/nowhere", true, out);
    send(SIGUSR1, watch);
    BOOST_TEST(said() == "SIGUSR1: saving after the first update of this start, then stopping\n");
  }
  SignalWatch watch("/nowhere", true, out);
  watch.expect({.update = 12, .update_s = 0.5, .save_s = 3});
  SignalWatch("/nowhere", false, out).expect({.update = 13});
  send(SIGTERM, watch);
  BOOST_TEST(said() ==
             "SIGTERM: saving after update 12, then stopping; the last update took 500 ms; the last save took 3.0 s\n");
  send(SIGTERM, watch);
  BOOST_TEST(said() == "");  // once
  std::fclose(out);
}

BOOST_AUTO_TEST_CASE(a_save_signal_counts_once_for_every_watch) {
  SignalWatch one("/nowhere", false), two("/nowhere", false);  // two logical ranks of one process
  send(SIGUSR2, one);
  BOOST_TEST(one.poll().save == 1);
  BOOST_TEST(two.poll().save == 1);
  BOOST_TEST(two.poll().stop == 0);
}

BOOST_AUTO_TEST_CASE(files_ask_too_and_go_when_honoured) {
  const TemporaryFolder folder;
  write_file(folder / "stop", "");
  write_file(folder / "save", "");
  {
    SignalWatch other(folder.path(), false);
    BOOST_TEST(other.poll().stop == 0);  // only one rank polls files
  }
  SignalWatch watch(folder.path(), true);
  const Requests requests = watch.poll();
  BOOST_TEST(requests.stop == 1);
  BOOST_TEST(requests.save == 1);
  BOOST_TEST(watch.stop_reason() == "the file " + (folder / "stop").string());
  watch.honoured_save();
  BOOST_TEST(!std::filesystem::exists(folder / "save"));
  BOOST_TEST(watch.poll().save == 1);  // the same request
  BOOST_TEST(std::filesystem::exists(folder / "stop"));
  watch.honoured_stop();
  BOOST_TEST(!std::filesystem::exists(folder / "stop"));
}
