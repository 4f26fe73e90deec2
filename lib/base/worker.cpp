#include "base/worker.hpp"

#include <pthread.h>

#include <utility>

#include "base/error.hpp"

namespace fsdp {

Worker::Worker(const std::string& name) : thread_([this] { run(); }) {
  pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Worker::start(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    expect(!job_, "a worker does one job at a time");
    job_ = std::move(job);
  }
  changed_.notify_all();
}

void Worker::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !job_; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Worker::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return job_ || closing_; });
    if (!job_) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      job_();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = error;
    job_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace fsdp
