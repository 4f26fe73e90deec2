#include "fsdp-bench/support.hpp"

#include <algorithm>

#include <sys/wait.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/philox.hpp"

namespace fsdp {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

BatchReader random_batches(BatchShape shape, std::size_t vocabulary, int rank) {
  return [=](std::size_t micro, std::int32_t* inputs, std::int32_t* targets) {
    for (std::size_t i = 0; i < shape.rows(); ++i) {
      const auto words = philox(
          {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(micro), static_cast<std::uint32_t>(rank), 0}, {1, 0});
      inputs[i] = static_cast<std::int32_t>(words[0] % vocabulary);
      targets[i] = static_cast<std::int32_t>(words[1] % vocabulary);
    }
  };
}

PythonProcess::PythonProcess(const std::filesystem::path& python, const std::string& script) {
  int to[2], from[2];
  check_errno(::pipe(to) == 0 && ::pipe(from) == 0, "make a pipe");
  child_ = ::fork();
  check_errno(child_ >= 0, "start another process");
  if (child_ == 0) {
    ::dup2(to[0], 0);
    ::dup2(from[1], 1);
    for (const int end : {to[0], to[1], from[0], from[1]}) ::close(end);
    ::execlp(python.c_str(), python.c_str(), "-c", script.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(to[0]);
  ::close(from[1]);
  to_ = ::fdopen(to[1], "w");
  from_ = ::fdopen(from[0], "r");
  version_ = line();
  if (version_.empty()) {
    std::fclose(to_);
    std::fclose(from_);
    ::waitpid(child_, nullptr, 0);
    throw UserError(format("--python {} has no torch (it ended with the message above, or is no Python); give one that has",
                           python.string()));
  }
}

PythonProcess::~PythonProcess() {
  std::fclose(to_);  // the child's loop ends
  std::fclose(from_);
  ::waitpid(child_, nullptr, 0);
}

std::string PythonProcess::ask(const std::string& question) {
  std::fputs((question + "\n").c_str(), to_);
  std::fflush(to_);
  std::string answer = line();
  if (answer.empty()) throw RunError("PyTorch stopped in the middle of the measurement (its message is above); look there");
  return answer;
}

std::string PythonProcess::line() {
  std::string text;
  for (int c = std::fgetc(from_); c != EOF && c != '\n'; c = std::fgetc(from_)) text += static_cast<char>(c);
  return text;
}

}  // namespace fsdp
