// A stream of the CPU that has a thread: work is queued, and done while its giver goes on.
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
  std::function<void()> at_start = {};     // called once, by the thread
  std::function<void()> before_work = {};  // the same, before each piece of work
};

class QueueStream final : public Stream {
 public:
  /// `name` is what debuggers and top show, up to 15 characters.
  explicit QueueStream(const std::string& name, QueueStreamHooks hooks = {});
  QueueStream(const QueueStream&) = delete;
  /// Waits for the work that has begun; what has not is not done.
  ~QueueStream() override;

  DeviceKind kind() const override { return DeviceKind::cpu; }
  /// Blocks while `capacity` pieces of work and waits are in the queue.
  void submit(Work work) override { enqueue({work, {}}); }
  Event record() override { return {this, given_.load(std::memory_order_relaxed)}; }
  void wait(Event event) override;
  void synchronize() override;
  void cancel() noexcept override;
  bool is_asynchronous() const override { return true; }

  static constexpr std::uint64_t capacity = 1024;

 private:
  struct Entry {
    Work work;    // or else
    Event event;  // what is waited for
  };
  friend void block_until(Event event);
  void block_until_done(std::uint64_t number);
  void enqueue(const Entry& entry);
  void run();
  void handle(const Entry& entry);

  // Entry n, counted from 0, lies in ring_[n % capacity] from when given_ is above n until done_ is. One thread gives.
  std::array<Entry, capacity> ring_;
  std::atomic<std::uint64_t> given_ = 0, done_ = 0;
  std::atomic<bool> cancelled_ = false;  // entries are passed over
  std::atomic<bool> closing_ = false;
  std::exception_ptr error_;  // the first that work threw; read by others once cancelled_ is set and all is done
  const QueueStreamHooks hooks_;
  std::thread thread_;  // last: it uses the others
};

/// Blocks the caller until an event of a CPU's stream is done; those of inline streams are. Throws StreamFailed if it will
/// never be.
void block_until(Event event);

}  // namespace fsdp
