#include "fsdp-bench/support.hpp"

#include <algorithm>

#include <sys/wait.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/philox.hpp"
#include "base/timer.hpp"

namespace fsdp {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<double> time_calls(Stream& stream, double seconds, const std::function<void()>& work) {
  work();
  stream.synchronize();
  const std::size_t at_once = stream.is_asynchronous() ? 10 : 1;
  std::vector<double> times;
  const Timer all;
  do {
    stream.begin_marks(true);
    std::vector<std::int64_t> marks = {stream.mark()};
    for (std::size_t i = 0; i < at_once; ++i) {
      work();
      marks.push_back(stream.mark());
    }
    stream.synchronize();
    for (std::size_t i = 0; i < at_once; ++i)
      times.push_back(1e-9 * static_cast<double>(stream.time_of(marks[i + 1]) - stream.time_of(marks[i])));
    stream.begin_marks(false);
  } while (times.size() < 3 || all.seconds() < seconds);
  return times;
}

std::string format_rate(double flops, DeviceKind kind) {
  return kind == DeviceKind::cuda ? format("{:.1f} TFLOP/s", flops / 1e12) : format("{:.0f} GFLOP/s", flops / 1e9);
}

std::string format_share(double flops, std::optional<double> peak) {
  return peak ? format("{:.0f} %", 100 * flops / *peak) : std::string("-");
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
