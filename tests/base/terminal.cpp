// Which terminal shows the text of a program: its own, that of mpirun, or none.
#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <sstream>

#include "support/messages.hpp"
#include "support/on_terminal.hpp"

using namespace fsdp::test;

namespace {

/// What the program prints if it is started by these words, a command line of sh, on a terminal of 90 columns.
std::string report(const std::string& start) {
  std::string command = start;
  command.replace(command.find("PROGRAM"), 7, FSDP_TERMINAL_PROGRAM);
  const Screen screen = run_on_terminal({"sh", "-c", command}, 90);
  BOOST_TEST(screen.code == 0, screen.text);
  return screen.text;
}

const std::string known = "draws true, width 90\r\n\033[33mwarning:\033[0m of this\r\n",
                  unknown = "draws false, width 0\r\nwarning: of this\r\n";

bool is_there(const char* program) { return std::system(("command -v " + std::string(program) + " >/dev/null").c_str()) == 0; }

}  // namespace

BOOST_AUTO_TEST_CASE(without_a_launcher) {
  setenv("TERM", "xterm", 1), unsetenv("NO_COLOR");
  BOOST_TEST(report("PROGRAM") == known);
  BOOST_TEST(report("PROGRAM 2>&1 | cat") == unknown);
  BOOST_TEST(report("TERM=dumb PROGRAM") == "draws false, width 90\r\nwarning: of this\r\n");
  BOOST_TEST(report("NO_COLOR=1 PROGRAM") == "draws true, width 90\r\nwarning: of this\r\n");
  BOOST_TEST(report("NO_COLOR= PROGRAM") == known);  // empty: as if it were not set
}

BOOST_AUTO_TEST_CASE(under_a_launcher) {
  setenv("TERM", "xterm", 1), unsetenv("NO_COLOR");
  std::vector<std::pair<std::string, std::vector<std::string>>> launchers;  // and options that add to the text
  const std::string here = FSDP_MPIRUN;
  const bool is_open_mpi = here.find("--oversubscribe") != here.npos;
  if (is_open_mpi) launchers.push_back({here, {"--tag-output", "--timestamp-output", "--xml"}});
  if (!is_open_mpi || is_there("mpirun.mpich"))
    launchers.push_back({is_open_mpi ? "mpirun.mpich" : here, {"-prepend-rank", "-l"}});
  for (const auto& [launcher, options] : launchers) {
    BOOST_TEST(report(launcher + " -np 1 PROGRAM") == known, launcher);
    BOOST_TEST(report(launcher + " -np 1 sh -c PROGRAM") == known, launcher);
    BOOST_TEST(report(launcher + " -np 1 PROGRAM 2>&1 | cat") == unknown, launcher);
    BOOST_TEST(report(launcher + " -np 1 sh -c 'PROGRAM 2>&1 | cat'") == unknown, launcher);
    for (const std::string& option : options) CHECK_CONTAINS(report(launcher + " " + option + " -np 1 PROGRAM"), "draws false");
  }
}
