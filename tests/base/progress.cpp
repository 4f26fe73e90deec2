// Progress on a terminal, and few, plain lines elsewhere.
#include <boost/test/unit_test.hpp>

#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/progress.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(plain_lines_without_a_terminal) {
  const TemporaryFolder folder;
  const auto path = folder / "out";
  std::FILE* out = std::fopen(path.c_str(), "w");
  {
    ProgressBar bar("writing", ProgressBar::Unit::bytes, out);
    BOOST_TEST(!bar.terminal());
    const auto update = [&](int mib) { bar.update(mib * 1024.0 * 1024, 1000 * 1024.0 * 1024); };
    update(0);
    for (int i = 0; i < 500; ++i) update(i);
    std::this_thread::sleep_for(std::chrono::milliseconds(2050));
    for (int i = 500; i <= 1000; ++i) update(i);
    bar.line("a note");
    bar.finish();
    ProgressBar trivial("reading", ProgressBar::Unit::bytes, out);
    for (int i = 0; i <= 1000; ++i) trivial.update(i, 1000);
    trivial.finish();
    ProgressBar nothing("reading", ProgressBar::Unit::bytes, out);
    nothing.finish();
  }
  std::fclose(out);
  const std::string text = read_file(path);
  // A thousand updates in two seconds give one line, besides the note and the end; within milliseconds they give none.
  BOOST_TEST(std::count(text.begin(), text.end(), '\n') == 3);
  BOOST_TEST(!contains(text, "reading"));
  CHECK_CONTAINS(text, "writing: 50 %  500 MiB of 1000 MiB");
  CHECK_CONTAINS(text, "\na note\n");
  CHECK_CONTAINS(text, "writing: 1000 MiB in ");
  BOOST_TEST(!contains(text, "\r"));
  BOOST_TEST(!contains(text, "\033"));
}

BOOST_AUTO_TEST_CASE(a_terminal_that_cannot_draw_gets_plain_lines) {
  for (const auto& [name, draws] : {std::pair{"xterm", true}, {"dumb", false}}) {
    int master = -1, slave = -1;
    BOOST_TEST_REQUIRE(openpty(&master, &slave, nullptr, nullptr, nullptr) == 0);
    std::FILE* out = fdopen(slave, "w");
    setenv("TERM", name, 1), unsetenv("NO_COLOR");
    {
      ProgressBar bar("writing", ProgressBar::Unit::count, out);
      BOOST_TEST(bar.terminal() == draws);
      bar.update(5, 10);
      bar.line("a note");  // there is no bar in the first second
      std::this_thread::sleep_for(std::chrono::milliseconds(draws ? 1050 : 2050));
      bar.update(6, 10);
    }
    std::string text;
    for (pollfd readable = {master, POLLIN, 0}; poll(&readable, 1, 0) > 0;) {
      char piece[256];
      const ssize_t n = read(master, piece, sizeof piece);
      BOOST_TEST_REQUIRE(n > 0);
      text.append(piece, static_cast<std::size_t>(n));
    }
    const std::string drawn = "\r\033[1mwriting\033[0m [##############..........]  60 %  6 of 10  ";
    BOOST_TEST(text.starts_with("a note\r\n" + (draws ? drawn : "writing: 60 %  6 of 10  ")), text);
    std::fclose(out);
    close(master);
  }
}
