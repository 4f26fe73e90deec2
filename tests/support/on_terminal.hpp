// Runs a command on a pseudo terminal.
#pragma once

#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>

namespace fsdp::test {

struct Screen {
  int code = -1;
  std::string text;  // all that was written, with carriage returns and escape sequences
};

/// Starts `command` on a terminal that is `columns` wide, and reads what it writes until it ends.
inline Screen run_on_terminal(const std::vector<std::string>& command, unsigned short columns) {
  winsize size{};
  size.ws_row = 24, size.ws_col = columns;
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  BOOST_REQUIRE(child >= 0);
  if (child == 0) {
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    execvp(words[0], words.data());
    _exit(127);
  }
  Screen screen;
  char piece[4096];
  for (ssize_t n; (n = read(terminal, piece, sizeof piece)) > 0;) screen.text.append(piece, static_cast<std::size_t>(n));
  close(terminal);
  int status = 0;
  BOOST_REQUIRE(waitpid(child, &status, 0) == child);
  screen.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return screen;
}

}  // namespace fsdp::test
