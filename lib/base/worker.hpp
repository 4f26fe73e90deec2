// A thread that does one thing at a time for its owner.
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
  /// `name` is what debuggers and top show, up to 15 characters.
  explicit Worker(const std::string& name);
  Worker(const Worker&) = delete;
  /// Waits for the job under way.
  ~Worker();

  /// Hands over a job; the last one must be finished.
  void start(std::function<void()> job);
  /// Returns once the job is done, and throws what it threw. Nothing if there is none.
  void finish();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> job_;  // empty: none under way
  std::exception_ptr error_;   // of the last job
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace fsdp
