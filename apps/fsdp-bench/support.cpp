#include "fsdp-bench/support.hpp"

#include <csignal>

#include <sys/wait.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/timer.hpp"

namespace fsdp {

std::string format_rate(double flops, DeviceKind kind) {
  return kind == DeviceKind::cuda ? format("{:.1f} TFLOP/s", flops / 1e12) : format("{:.0f} GFLOP/s", flops / 1e9);
}

std::string format_share(double flops, std::optional<double> peak) {
  return peak ? format("{:.0f} %", 100 * flops / *peak) : std::string("-");
}

double tokens_of_update(const ShardingOptions& sharding, BatchShape batch, const Group& world) {
  return static_cast<double>(batch.rows() * sharding.plan.micro_batches * static_cast<std::size_t>(world.size()));
}

double time_update(Executor& executor, const BatchReader& batches, std::uint64_t update, double tokens, Communicator& world) {
  executor.reset_times();
  world.barrier();
  const Timer timer;
  executor.run_update(batches, {.update = update, .learning_rate = 1e-4, .clip_norm = 1.0, .tokens = tokens});
  world.barrier();
  return timer.seconds();
}

PythonProcess::PythonProcess(const std::filesystem::path& python, const std::string& script, const std::string& package)
    : package_(package) {
  std::signal(SIGPIPE, SIG_IGN);  // ask() says that it has ended
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
    throw UserError(format("--python {} has no {} (it ended with the message above, or is no Python); give one that has",
                           python.string(), package));
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
  if (answer.empty())
    throw RunError(format("{} stopped in the middle of the measurement (its message is above); look there", package_));
  return answer;
}

std::string PythonProcess::line() {
  std::string text;
  for (int c = std::fgetc(from_); c != EOF && c != '\n'; c = std::fgetc(from_)) text += static_cast<char>(c);
  return text;
}

}  // namespace fsdp
