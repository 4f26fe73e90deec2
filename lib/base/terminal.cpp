#include "base/terminal.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/format.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

fs::path folder_of(int process) { return format("/proc/{}", process); }

std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The parent of a process of this host; 0 if it is unknown.
int parent_of(int process) {
  const std::string text = read_all(folder_of(process) / "stat");
  const std::size_t name_ends = text.rfind(')');  // the program's name may contain any character
  if (name_ends == text.npos) return 0;
  std::istringstream fields(text.substr(name_ends + 1));
  char state = 0;
  int parent = 0;
  return fields >> state >> parent ? parent : 0;
}

/// Returns true if the process has this pipe open.
bool has_open(int process, const fs::path& pipe) {
  std::error_code problem;
  for (fs::directory_iterator file(folder_of(process) / "fd", problem), end; !problem && file != end; file.increment(problem)) {
    std::error_code closed;
    if (fs::read_symlink(file->path(), closed) == pipe) return true;
  }
  return false;
}

/// Returns true if the process is a part of mpirun that passes on text as it is.
bool passes_on(int process) {
  std::error_code problem;
  const fs::path program = fs::read_symlink(folder_of(process) / "exe", problem);
  constexpr std::array known = {"orterun", "mpiexec.hydra", "hydra_pmi_proxy"};
  if (std::find(known.begin(), known.end(), program.filename()) == known.end()) return false;
  // With some options it adds the rank or the time to each piece of text, writes XML, or writes into files.
  const std::string mine = fs::read_symlink("/proc/self/exe", problem).filename().string();
  std::istringstream words(read_all(folder_of(process) / "cmdline"));
  for (std::string word; std::getline(words, word, '\0') && fs::path(word).filename() != mine;)
    for (const char* const part : {"output", "xml", "prepend", "pattern"})
      if (word == "-l" || word.find(part) != word.npos) return false;
  return true;
}

/// Opens the terminal to which a process writes through its descriptor `fd`. Returns -1 if there is none, or if it is unknown.
int open_terminal(int process, int fd) {
  std::error_code problem;
  const fs::path path = folder_of(process) / "fd" / std::to_string(fd), target = fs::read_symlink(path, problem);
  if (problem) return -1;
  if (target.string().starts_with("/dev/")) {
    const int found = ::open(path.c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (found >= 0 && ::isatty(found) != 0) return found;
    if (found >= 0) ::close(found);
    return -1;
  }
  if (!target.string().starts_with("pipe:")) return -1;
  for (int reader = parent_of(process); reader > 1; reader = parent_of(reader))
    if (passes_on(reader) && has_open(reader, target)) return open_terminal(reader, fd);
  return -1;
}

bool is_set(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

}  // namespace

std::string wrap(const std::string& text, std::size_t indent, std::size_t width) {
  std::string out;
  std::size_t column = indent;
  std::istringstream words(text);
  for (std::string word; words >> word; column += word.size()) {
    const bool begins = out.empty(), fits = column + 1 + word.size() <= width;
    if (!begins) out += fits ? " " : "\n" + std::string(indent, ' ');
    if (!begins) column = fits ? column + 1 : indent;
    out += word;
  }
  return out;
}

Terminal::Terminal(std::FILE* out) : fd_(fileno(out)) {
  if (::isatty(fd_) != 0) return;
  fd_ = open_terminal(::getpid(), fd_);
  owned_ = fd_ >= 0;
}

Terminal::~Terminal() {
  if (owned_) ::close(fd_);
}

bool Terminal::draws() const { return fd_ >= 0 && is_set("TERM") && std::string_view(std::getenv("TERM")) != "dumb"; }

std::size_t Terminal::width() const {
  winsize window{};
  return fd_ >= 0 && ::ioctl(fd_, TIOCGWINSZ, &window) == 0 ? window.ws_col : 0;
}

std::string Terminal::coloured(std::string_view text, Colour colour) const {
  if (!draws() || is_set("NO_COLOR")) return std::string(text);
  return format("\033[{}m{}\033[0m", static_cast<int>(colour), text);
}

}  // namespace fsdp
