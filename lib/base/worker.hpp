// A background thread that runs jobs, one at a time, for the thread that owns the Worker.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace fsdp {

class Worker {
 public:
  /// Debuggers and top show the first 15 characters of `name`.
  explicit Worker(const std::string& name);
  Worker(const Worker&) = delete;
  /// Waits for the running job.
  ~Worker();

  /// Starts a job; the previous one must have ended.
  void start(std::function<void()> job);
  /// Waits until the job has ended, and rethrows its exception. Returns at once if there is no job.
  void finish();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> job_;  // the running job; empty if no job is running
  std::exception_ptr error_;   // the last job's exception
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace fsdp
