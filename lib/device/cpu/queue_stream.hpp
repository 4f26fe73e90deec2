// A CPU stream with its own thread: submit() queues the work, and the thread does it while the caller continues.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <thread>

#include "device/device.hpp"

namespace fsdp {

struct QueueStreamHooks {
  std::function<void()> at_start = {};     // called once, on the thread
  std::function<void()> before_work = {};  // called on the thread before each piece of work
  // Called on the thread by copy(). It returns when the bytes are copied. Empty: memory of the host.
  std::function<void(void* to, const void* from, std::size_t bytes)> copy = {};
};

class QueueStream final : public Stream {
 public:
  /// `name` appears in debuggers and top, up to 15 characters.
  explicit QueueStream(const std::string& name, QueueStreamHooks hooks = {});
  QueueStream(const QueueStream&) = delete;
  /// Waits for work that has begun, and drops all other work.
  ~QueueStream() override;

  DeviceKind kind() const override { return DeviceKind::cpu; }
  /// Blocks while the queue is full, that is, while it has `capacity` pieces of work and waits.
  void submit(Work work) override { enqueue({work, {}}); }
  Event record() override { return {this, given_.load(std::memory_order_relaxed)}; }
  void wait(Event event) override;
  bool reached(std::uint64_t number) override;
  void synchronize() override;
  void cancel() noexcept override;
  bool is_asynchronous() const override { return true; }
  void copy(void* to, const void* from, std::size_t bytes) override {
    hooks_.copy ? hooks_.copy(to, from, bytes) : Stream::copy(to, from, bytes);
  }

  static constexpr std::uint64_t capacity = 1024;

 private:
  struct Entry {
    Work work;    // called if event.stream is null
    Event event;  // the event to wait for if event.stream is not null
  };
  friend void block_until(Event event);
  void block_until_done(std::uint64_t number);
  void enqueue(const Entry& entry);
  void run();
  void handle(const Entry& entry);

  // given_ and done_ count the entries that were submitted and finished. Entry n (from 0) is in ring_[n % capacity] while
  // given_ > n and done_ <= n. Only one thread submits work.
  std::array<Entry, capacity> ring_;
  std::atomic<std::uint64_t> given_ = 0, done_ = 0;
  std::atomic<bool> cancelled_ = false;  // if true, the thread skips the remaining entries
  std::atomic<bool> closing_ = false;
  std::exception_ptr error_;  // the first exception of the work; read after cancelled_ is set and all work has ended
  const QueueStreamHooks hooks_;
  std::thread thread_;  // the last member, because the thread uses the other members
};

/// Blocks the caller until an event of a CPU stream is reached. Events of inline streams are always reached. Throws
/// StreamFailed if the event can no longer be reached.
void block_until(Event event);

}  // namespace fsdp
