// Requests to stop and to save, by signal and by file.
#define BOOST_TEST_MODULE train.signals
#include <boost/test/unit_test.hpp>

#include <csignal>

#include <unistd.h>

#include "support/files.hpp"
#include "train/signals.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(signals_that_stop) {
  for (const auto& [signal, name] : {std::pair{SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGUSR1, "SIGUSR1"}}) {
    SignalWatch watch("/nowhere", true);  // forgets what an earlier one saw
    BOOST_TEST(watch.poll().stop == 0);
    BOOST_TEST(watch.stop_reason() == "another rank");
    std::raise(signal);
    BOOST_TEST(watch.poll().stop == 1);
    BOOST_TEST(watch.poll().stop == 1);  // until the loop ends
    BOOST_TEST(watch.poll().save == 0);
    BOOST_TEST(watch.stop_reason() == name);
  }
}

BOOST_AUTO_TEST_CASE(a_save_signal_counts_once_for_every_watch) {
  SignalWatch one("/nowhere", false), two("/nowhere", false);  // two logical ranks of one process
  std::raise(SIGUSR2);
  BOOST_TEST(one.poll().save == 1);
  BOOST_TEST(one.poll().save == 0);
  BOOST_TEST(two.poll().save == 1);
  BOOST_TEST(two.poll().stop == 0);
}

BOOST_AUTO_TEST_CASE(files_ask_too_and_go_when_honoured) {
  const TemporaryFolder folder;
  write_file(folder / "stop", "");
  write_file(folder / "save", "");
  {
    SignalWatch other(folder.path(), false);
    BOOST_TEST(other.poll().stop == 0);  // only one rank looks
  }
  SignalWatch watch(folder.path(), true);
  const Requests requests = watch.poll();
  BOOST_TEST(requests.stop == 1);
  BOOST_TEST(requests.save == 1);
  BOOST_TEST(watch.stop_reason() == "the file " + (folder / "stop").string());
  watch.honoured_save();
  BOOST_TEST(!std::filesystem::exists(folder / "save"));
  BOOST_TEST(watch.poll().save == 0);
  BOOST_TEST(std::filesystem::exists(folder / "stop"));
  watch.honoured_stop();
  BOOST_TEST(!std::filesystem::exists(folder / "stop"));
}

BOOST_AUTO_TEST_CASE(signals_are_held_not_handled) {
  SignalWatch watch("/nowhere", false);
  kill(getpid(), SIGUSR1);  // to the process: with a handler or without the hold it would be delivered at once
  sigset_t pending;
  sigpending(&pending);
  BOOST_TEST(sigismember(&pending, SIGUSR1) == 1);
  BOOST_TEST(watch.poll().stop == 1);
  sigpending(&pending);
  BOOST_TEST(sigismember(&pending, SIGUSR1) == 0);
}
