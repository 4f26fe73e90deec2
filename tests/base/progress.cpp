// Progress where stderr is not a terminal: few, plain lines.
#define BOOST_TEST_MODULE base.progress
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstdio>

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
