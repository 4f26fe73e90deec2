#include "fsdp/stream_progress.hpp"

namespace fsdp {

void StreamProgress::begin() {
  for (auto& last : last_) last.store(none, std::memory_order_relaxed);
}

void StreamProgress::done(StreamId stream, int index) {
  int before = at(stream).load(std::memory_order_relaxed);  // only this thread writes it, except for fail()
  while (before != failed && !at(stream).compare_exchange_weak(before, index, std::memory_order_release)) {
  }
  at(stream).notify_all();
}

void StreamProgress::wait(StreamId stream, int index) {
  for (int now; (now = at(stream).load(std::memory_order_acquire)) < index;) {
    if (now == failed) throw StreamFailed();
    at(stream).wait(now, std::memory_order_acquire);
  }
}

void StreamProgress::fail() noexcept {
  for (auto& last : last_) {
    last.store(failed, std::memory_order_release);
    last.notify_all();
  }
}

}  // namespace fsdp
