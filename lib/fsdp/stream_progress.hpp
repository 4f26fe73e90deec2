// How far the streams are with a list of operations, for threads that run it together: each thread runs the operations of its
// streams in order, and waits for those of others.
#pragma once

#include <array>
#include <atomic>
#include <exception>

#include "fsdp/plan.hpp"

namespace fsdp {

/// Thrown by wait() because another thread failed: a consequence, never the cause.
struct StreamFailed : std::exception {
  const char* what() const noexcept override { return "an operation on another stream failed"; }
};

class StreamProgress {
 public:
  /// A new list: nothing of it is done. No thread is in wait().
  void begin();
  /// Operation `index` of the list, and all before it on its stream, are done: what they wrote is visible to who waited for it.
  void done(StreamId stream, int index);
  /// Returns once operation `index`, which `stream` runs, is done.
  void wait(StreamId stream, int index);
  bool is_done(StreamId stream, int index) const { return at(stream).load(std::memory_order_acquire) >= index; }
  /// From now on wait() throws.
  void fail() noexcept;

 private:
  static constexpr int none = -1, failed = -2;
  std::atomic<int>& at(StreamId stream) { return last_[static_cast<std::size_t>(stream)]; }
  const std::atomic<int>& at(StreamId stream) const { return last_[static_cast<std::size_t>(stream)]; }
  std::array<std::atomic<int>, stream_count> last_ = {none, none, none};  // the last that is done
};

}  // namespace fsdp
