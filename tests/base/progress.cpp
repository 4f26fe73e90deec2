// Progress where stderr is not a terminal: few, plain lines.
#define BOOST_TEST_MODULE base.progress
#include <boost/test/unit_test.hpp>

#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

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
    for (int i = 0; i <= 1000; ++i) bar.update(i * 1024.0 * 1024, 1000 * 1024.0 * 1024);
    bar.line("a note");
    bar.finish(1000 * 1024.0 * 1024);
  }
  std::fclose(out);
  const std::string text = read_file(path);
  // A thousand updates within milliseconds are one line, beside the note and the end.
  BOOST_TEST(std::count(text.begin(), text.end(), '\n') == 3);
  CHECK_CONTAINS(text, "writing: 10 %  100 MiB of 1000 MiB");
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
    setenv("TERM", name, 1);
    {
      ProgressBar bar("writing", ProgressBar::Unit::count, out);
      BOOST_TEST(bar.terminal() == draws);
      bar.update(5, 10);
    }
    char text[256] = "";
    BOOST_TEST(read(master, text, sizeof text - 1) > 0);
    BOOST_TEST(contains(text, "\033") == draws, text);
    std::fclose(out);
    close(master);
  }
}
