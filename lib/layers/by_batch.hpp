// Values that are computed once for each size of batch. Internal.
#pragma once

#include <atomic>
#include <mutex>
#include <utility>

#include "layers/layer.hpp"

namespace fsdp {

/// A value for each size of batch, made when it is first needed and kept as long as this object. That is when a model's plan is
/// made, or in the first pass of a shorter T (Model::takes_short_rows). Several threads may call get(); a value that exists
/// costs no lock.
template <class T>
class ByBatch {
 public:
  ByBatch() = default;
  ByBatch(const ByBatch&) = delete;
  ~ByBatch() {
    for (const Entry* entry = first_; entry;) delete std::exchange(entry, entry->next);
  }

  template <class Make>
  const T& get(const BatchSizes& batch, const Make& make) {
    if (const Entry* const entry = find(batch)) return entry->value;
    const std::lock_guard lock(mutex_);
    if (const Entry* const entry = find(batch)) return entry->value;
    first_ = new Entry{batch, make(), first_};
    return first_.load()->value;
  }

 private:
  struct Entry {
    BatchSizes batch;
    T value;
    const Entry* next;
  };
  const Entry* find(const BatchSizes& batch) const {
    const Entry* entry = first_;
    while (entry && entry->batch != batch) entry = entry->next;
    return entry;
  }

  std::atomic<const Entry*> first_ = nullptr;
  std::mutex mutex_;
};

}  // namespace fsdp
