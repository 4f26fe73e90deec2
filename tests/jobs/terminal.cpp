// What a run prints: one live line on a terminal, also under mpirun; plain lines elsewhere; warnings once and at the end.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "jobs/job.hpp"
#include "support/on_terminal.hpp"

using namespace fsdp::test;

namespace {

/// The words of a job that gives one warning. It runs in `folder`.
std::vector<std::string> job(const fs::path& folder, int np, const std::string& updates,
                             const std::vector<std::string>& launcher_options = {}) {
  std::ofstream(folder / "text.txt") << std::string(20000, 'x') << "\n";
  std::vector<std::string> words = mpirun(
      np, "fsdp-train",
      split("text.txt --valid text.txt --arch gpt2 --decoder-layers 2 --decoder-embed-dim 96 --decoder-attention-heads 2 "
            "--tokens-per-sample 128 --batch-size 8 --lr 1e-3 --log-interval 90 --save-dir saves --max-update " +
            updates));
  words.insert(words.begin() + 1, launcher_options.begin(), launcher_options.end());
  words.insert(words.begin(), {"sh", "-c", "cd \"$0\" && exec \"$@\"", folder.string()});
  return words;
}

/// The lines as a terminal shows them in the end: a carriage return begins the line anew, and ESC [ K clears the rest of it.
std::vector<std::string> shown(const std::string& text) {
  std::vector<std::string> lines(1);
  std::size_t column = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string& line = lines.back();
    if (text[i] == '\n') {
      lines.emplace_back(), column = 0;
    } else if (text[i] == '\r') {
      column = 0;
    } else if (text[i] == '\033') {
      const std::size_t end = text.find_first_of("mK", i);
      if (text[end] == 'K') line.resize(column);
      i = end;
    } else {
      line.resize(std::max(line.size(), column + 1));
      line[column++] = text[i];
    }
  }
  return lines;
}

void expect_complete(const std::vector<std::string>& lines, const std::string& text, const std::string& updates) {
  const auto with = [&](const std::string& begin) {
    return std::count_if(lines.begin(), lines.end(), [&](const std::string& line) { return line.starts_with(begin); });
  };
  const std::string end = "/" + updates + "  loss ";
  for (const std::string& line :
       {"step   1" + end, "step  90" + end, "step " + updates + end, "valid " + updates + "  loss ", std::string("saved ")})
    BOOST_TEST(with(line) == 1, text);
  BOOST_TEST(with("warning: '") == 1, text);
  BOOST_TEST(with("warnings of this run:") == 1, text);
  BOOST_TEST(with("  '") == 1, text);
  for (const std::string& line : lines)
    if (!line.starts_with("warning: ") && !line.starts_with("  xxx")) BOOST_TEST(line.size() < 120, line);  // a word is whole
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_live_line_on_the_terminal_of_mpirun) {
  const auto folder = fresh_folder();
  setenv("TERM", "xterm", 1), unsetenv("NO_COLOR");
  // The live line appears after a second. No two cores compute the 0.9 TFLOP of these updates in less.
  const Screen screen = run_on_terminal(job(folder, 2, "300"), 100);
  BOOST_TEST(screen.code == 0);
  const std::vector<std::string> lines = shown(screen.text);
  expect_complete(lines, screen.text, "300");
  BOOST_TEST(screen.text.find("\r\033[1mtrain\033[0m [") != screen.text.npos, screen.text);
  for (const std::string& line : lines) BOOST_TEST(!line.starts_with("train ["), screen.text);  // overwritten in the end
  BOOST_TEST(screen.text.find("\033[33mwarning:\033[0m '") != screen.text.npos, screen.text);
}

BOOST_AUTO_TEST_CASE(plain_lines_elsewhere) {
  const auto folder = fresh_folder();
  setenv("TERM", "xterm", 1), unsetenv("NO_COLOR");
  const Outcome outcome = run(folder, job(folder, 1, "100"));
  BOOST_TEST(outcome.code == 0);
  BOOST_TEST(outcome.output.find_first_of("\r\033") == outcome.output.npos, outcome.output);
  expect_complete(shown(outcome.output), outcome.output, "100");
  if (std::string(FSDP_MPIRUN).find("--oversubscribe") == std::string::npos) return;  // not Open MPI
  const auto tagged_folder = folder / "tagged";
  fs::create_directory(tagged_folder);
  const Screen tagged = run_on_terminal(job(tagged_folder, 1, "100", {"--tag-output"}), 100);
  BOOST_TEST(tagged.code == 0);
  BOOST_TEST(tagged.text.find('\033') == tagged.text.npos, tagged.text);
  BOOST_TEST(tagged.text.find("[1,0]<stderr>:step 100/100  loss ") != tagged.text.npos, tagged.text);
}
