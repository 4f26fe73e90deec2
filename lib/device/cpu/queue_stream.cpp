#include "device/cpu/queue_stream.hpp"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "base/error.hpp"
#include "base/timer.hpp"

namespace fsdp {

QueueStream::QueueStream(const std::string& name, QueueStreamHooks hooks)
    : hooks_(std::move(hooks)), thread_([this] { run(); }) {
  pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

QueueStream::~QueueStream() {
  cancel();
  closing_.store(true);
  given_.fetch_add(1);  // wakes the thread, which then checks closing_
  given_.notify_all();
  thread_.join();
}

void QueueStream::enqueue(const Entry& entry) {
  const std::uint64_t number = given_.load(std::memory_order_relaxed);
  for (std::uint64_t done; number - (done = done_.load(std::memory_order_acquire)) >= capacity;)
    done_.wait(done, std::memory_order_acquire);
  ring_[number % capacity] = entry;
  given_.store(number + 1, std::memory_order_release);
  given_.notify_one();
}

void QueueStream::wait(Event event) {
  if (event.stream != this) enqueue({{}, event});
}

void QueueStream::block_until_done(std::uint64_t number) {
  for (std::uint64_t done; (done = done_.load(std::memory_order_acquire)) < number;)
    done_.wait(done, std::memory_order_acquire);
}

bool QueueStream::reached(std::uint64_t number) {
  const bool is_done = done_.load(std::memory_order_acquire) >= number;
  if (is_done && cancelled_.load(std::memory_order_acquire)) throw StreamFailed();
  return is_done;
}

void block_until(Event event) {
  if (auto* const stream = dynamic_cast<QueueStream*>(event.stream)) stream->block_until_done(event.number);
  expect(event.stream->reached(event.number), "a stream of the CPU has reached the event");
}

void QueueStream::synchronize() {
  block_until_done(given_.load(std::memory_order_relaxed));
  if (!cancelled_.exchange(false)) return;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  throw StreamFailed();
}

void QueueStream::cancel() noexcept { cancelled_.store(true, std::memory_order_release); }

void QueueStream::handle(const Entry& entry) {
  if (entry.event.stream) {
    const Timer timer;
    if (is_host(entry.event.stream->kind())) block_until(entry.event);
    while (!entry.event.stream->reached(entry.event.number)) {  // a GPU's stream, which cannot wake this thread
      if (cancelled_.load(std::memory_order_acquire)) throw StreamFailed();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    waited_s += timer.seconds();
    return;
  }
  if (hooks_.before_work) hooks_.before_work();
  entry.work.run(entry.work.context, entry.work.index);
}

void QueueStream::run() {
  if (hooks_.at_start) hooks_.at_start();
  for (std::uint64_t number = 0;; ++number) {
    while (given_.load(std::memory_order_acquire) <= number) given_.wait(number, std::memory_order_acquire);
    if (closing_.load()) return;
    if (!cancelled_.load(std::memory_order_acquire)) {
      try {
        handle(ring_[number % capacity]);
      } catch (...) {
        error_ = std::current_exception();
        cancel();
      }
    }
    done_.store(number + 1, std::memory_order_release);
    done_.notify_all();
  }
}

}  // namespace fsdp
