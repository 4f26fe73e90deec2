// Streams, each a thread with a queue, and events.
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <shared_mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cuda_runtime.h"
#include "double.hpp"

using namespace fsdp::cuda_double;

/// Operations are numbered from 1. Nothing orders host threads, or two streams, but the two counters and who waits for them: a
/// lock that givers share with the stream's thread would hide missing waits from ThreadSanitizer.
struct CUstream_st {
  CUstream_st(int device_, bool blocking_, int priority_, unsigned seed)
      : device(device_), blocking(blocking_), priority(priority_), dice(seed) {}
  CUstream_st(const CUstream_st&) = delete;
  ~CUstream_st() {
    while (Entry* entry = oldest) {
      oldest = entry->next;
      delete entry;
    }
  }

  /// An empty operation ends the thread.
  std::uint64_t push(Operation operation) {
    const std::lock_guard lock(giving);
    const std::uint64_t number = given.load(std::memory_order_relaxed) + 1;
    for (std::uint64_t now; number - (now = done.load(std::memory_order_relaxed)) > capacity;)
      done.wait(now, std::memory_order_relaxed);
    newest = newest->next = new Entry{std::move(operation), nullptr};
    given.store(number, std::memory_order_release);
    given.notify_one();
    return number;
  }

  bool is_done(std::uint64_t number) const { return done.load(std::memory_order_acquire) >= number; }
  void wait_for(std::uint64_t number) const {
    for (std::uint64_t now; (now = done.load(std::memory_order_acquire)) < number;) done.wait(now, std::memory_order_acquire);
  }

  void run() {
    allow_device_memory(true);
    for (std::uint64_t number = 1;; ++number) {
      while (given.load(std::memory_order_acquire) < number) given.wait(number - 1, std::memory_order_acquire);
      Entry* const entry = oldest->next;
      delete oldest;
      oldest = entry;
      const Operation operation = std::move(entry->operation);
      if (operation && !has_failed) {
        if (dice() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(dice() % 100));
        operation(dice);
      }
      done.store(number, std::memory_order_release);
      done.notify_all();
      if (!operation) return;
    }
  }

  static constexpr std::uint64_t capacity = 1024;
  const int device;
  const bool blocking;  // waits for the null stream, which waits for it
  const int priority;

 private:
  struct Entry {
    Operation operation;
    Entry* next;
  };
  std::mutex giving;
  Entry* oldest = new Entry{{}, nullptr};  // the last one that was taken; belongs to the thread
  Entry* newest = oldest;                  // belongs to who holds `giving`
  std::minstd_rand dice;

 public:
  std::atomic<std::uint64_t> given = 0, done = 0;
};

namespace fsdp::cuda_double {

namespace {

std::atomic<std::uint64_t> waits = 0;  // of the host
// Of the calling thread: how often it has found another stream busy than the last time it looked, and which it found so.
constinit thread_local std::uint64_t looks = 0;
constinit thread_local const CUstream_st* looked_at = nullptr;

/// A point in a stream. Whoever waits for it keeps it.
struct Record {
  std::shared_ptr<CUstream_st> stream;
  std::uint64_t number = 0;
  std::chrono::steady_clock::time_point time;  // written by the stream
};

}  // namespace
}  // namespace fsdp::cuda_double

struct CUevent_st {
  const int device;
  const bool timing;
  std::mutex mutex = {};
  std::shared_ptr<const Record> last = {};
  std::shared_ptr<const Record> get() {
    const std::lock_guard lock(mutex);
    return last;
  }
};

namespace fsdp::cuda_double {

namespace {

struct Streams {
  std::shared_mutex mutex;
  std::unordered_map<cudaStream_t, std::shared_ptr<CUstream_st>> by_handle;
  std::unordered_map<int, std::shared_ptr<CUstream_st>> null_streams;  // by device
  std::vector<std::weak_ptr<CUstream_st>> all;                         // those that are destroyed and still run, too
  std::unordered_map<cudaEvent_t, std::shared_ptr<CUevent_st>> events;
  unsigned made = 0;
};

Streams& streams() {
  static Streams& all = *new Streams;  // threads may still run when the process ends
  return all;
}

/// `streams().mutex` is held.
std::shared_ptr<CUstream_st> start_stream(int device, bool blocking, int priority) {
  const std::uint64_t seed = environment_number("FSDP_CUDA_DOUBLE_SEED", 0) * 64 + ++streams().made;
  const auto stream = std::make_shared<CUstream_st>(device, blocking, priority, static_cast<unsigned>(seed * 2654435761u));
  std::erase_if(streams().all, [](const auto& other) { return other.expired(); });
  streams().all.push_back(stream);
  std::thread thread([stream] { stream->run(); });
  ::pthread_setname_np(thread.native_handle(), "cuda-double");
  thread.detach();
  return stream;
}

std::shared_ptr<CUstream_st> null_stream(int device) {
  {
    const std::shared_lock lock(streams().mutex);
    const auto found = streams().null_streams.find(device);
    if (found != streams().null_streams.end()) return found->second;
  }
  const std::unique_lock lock(streams().mutex);
  std::shared_ptr<CUstream_st>& stream = streams().null_streams[device];
  if (!stream) stream = start_stream(device, true, 0);
  return stream;
}

std::vector<std::shared_ptr<CUstream_st>> streams_of(int device) {
  std::vector<std::shared_ptr<CUstream_st>> found;
  const std::shared_lock lock(streams().mutex);
  for (const std::weak_ptr<CUstream_st>& other : streams().all)
    if (std::shared_ptr<CUstream_st> stream = other.lock(); stream && stream->device == device)
      found.push_back(std::move(stream));
  return found;
}

/// What is given to `stream` from now on begins after operation `number` of `other`.
void push_wait(CUstream_st& stream, const std::shared_ptr<CUstream_st>& other, std::uint64_t number) {
  stream.push([other, number](std::minstd_rand&) { other->wait_for(number); });
}

std::shared_ptr<CUevent_st> find_event(cudaEvent_t handle) {
  const std::shared_lock lock(streams().mutex);
  const auto found = streams().events.find(handle);
  return found == streams().events.end() ? nullptr : found->second;
}

}  // namespace

std::shared_ptr<CUstream_st> find_stream(cudaStream_t handle) {
  if (!handle) return null_stream(current_device());
  const std::shared_lock lock(streams().mutex);
  const auto found = streams().by_handle.find(handle);
  return found == streams().by_handle.end() ? nullptr : found->second;
}

int device_of(const CUstream_st& stream) { return stream.device; }

std::uint64_t give(const std::shared_ptr<CUstream_st>& stream, Operation operation) {
  if (stream->blocking) {
    const std::shared_ptr<CUstream_st> null = null_stream(stream->device);
    if (stream != null) {
      push_wait(*stream, null, null->given.load());
    } else {
      for (const std::shared_ptr<CUstream_st>& other : streams_of(stream->device))
        if (other != null && other->blocking) push_wait(*null, other, other->given.load());
    }
  }
  return stream->push(std::move(operation));
}

void wait(const CUstream_st& stream, std::uint64_t number) { stream.wait_for(number); }

std::uint64_t host_waits() { return waits.load(); }
std::uint64_t streams_found_busy() { return looks; }

std::vector<StreamKind> live_streams() {
  const std::shared_lock lock(streams().mutex);
  std::vector<StreamKind> kinds;
  for (const std::weak_ptr<CUstream_st>& weak : streams().all)
    if (const auto stream = weak.lock(); stream && streams().by_handle.contains(stream.get()))
      kinds.push_back({stream->blocking, stream->priority});
  return kinds;
}
std::uint64_t live_events() {
  const std::shared_lock lock(streams().mutex);
  return streams().events.size();
}

void synchronize_device(int device) {
  ++waits;
  for (const std::shared_ptr<CUstream_st>& stream : streams_of(device)) stream->wait_for(stream->given.load());
}

void launch(cudaStream_t handle, unsigned blocks, unsigned threads, std::size_t shared, const std::type_info& kernel,
            std::function<void()> lane) {
  call([&] {
    if (blocks == 0 || blocks > 0x7fffffffu || threads == 0 || threads > 1024) return cudaErrorInvalidConfiguration;
    if (shared > shared_bytes_at_most(current_device())) return cudaErrorInvalidValue;
    const std::shared_ptr<CUstream_st> stream = find_stream(handle);
    if (!stream || stream->device != current_device()) return cudaErrorInvalidResourceHandle;
    static const std::uint64_t failing = environment_number("FSDP_CUDA_DOUBLE_STICKY", 0);
    static std::atomic<std::uint64_t> launches = 0;
    if (++launches == failing) {
      give(stream, [](std::minstd_rand&) { has_failed = true; });
      return cudaSuccess;
    }
    give(stream,
         [launch = Launch{blocks, threads, shared, &kernel, std::move(lane)}](std::minstd_rand& dice) { run(launch, dice); });
    return cudaSuccess;
  });
}

}  // namespace fsdp::cuda_double

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
  return call([=] {
    if (!handle || (flags != cudaStreamDefault && flags != cudaStreamNonBlocking)) return cudaErrorInvalidValue;
    const std::unique_lock lock(streams().mutex);
    const std::shared_ptr<CUstream_st> stream = start_stream(current_device(), flags == cudaStreamDefault, priority);
    streams().by_handle.emplace(stream.get(), stream);
    *handle = stream.get();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return call([=] {
    std::shared_ptr<CUstream_st> stream;
    {
      const std::unique_lock lock(streams().mutex);
      const auto found = streams().by_handle.find(handle);
      if (found == streams().by_handle.end()) return cudaErrorInvalidResourceHandle;
      stream = std::move(found->second);
      streams().by_handle.erase(found);
    }
    stream->push({});
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return call([=] {
    const std::shared_ptr<CUstream_st> stream = find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    // The null stream's work is all that of the streams that it waits for, too.
    if (!handle) give(stream, [](std::minstd_rand&) {});
    ++waits;
    stream->wait_for(stream->given.load());
    return cudaSuccess;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return call([=] {
    const std::shared_ptr<CUstream_st> stream = find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    const bool is_done = stream->is_done(stream->given.load());
    if (!is_done && looked_at != stream.get()) ++looks;
    looked_at = is_done ? nullptr : stream.get();
    return is_done ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned flags) {
  return call([=] {
    const std::shared_ptr<CUstream_st> stream = find_stream(handle);
    const std::shared_ptr<CUevent_st> event = find_event(event_handle);
    if (!stream || !event) return cudaErrorInvalidResourceHandle;
    if (flags != 0) return cudaErrorInvalidValue;
    if (const std::shared_ptr<const Record> record = event->get())
      give(stream, [record](std::minstd_rand&) { record->stream->wait_for(record->number); });
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* context) {
  return call([=] {
    const std::shared_ptr<CUstream_st> stream = find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!function) return cudaErrorInvalidValue;
    give(stream, [=](std::minstd_rand&) {
      in_host_function = true;
      allow_device_memory(false);
      function(context);
      allow_device_memory(true);
      in_host_function = false;
    });
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  return call([=] {
    if (!handle || (flags & ~(cudaEventBlockingSync | cudaEventDisableTiming)) != 0) return cudaErrorInvalidValue;
    std::shared_ptr<CUevent_st> event(new CUevent_st{current_device(), (flags & cudaEventDisableTiming) == 0});
    *handle = event.get();
    const std::unique_lock lock(streams().mutex);
    streams().events.emplace(event.get(), std::move(event));
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return call([=] {
    const std::unique_lock lock(streams().mutex);
    return streams().events.erase(handle) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  return call([=] {
    const std::shared_ptr<CUevent_st> event = find_event(handle);
    const std::shared_ptr<CUstream_st> stream = find_stream(stream_handle);
    if (!event || !stream || event->device != stream->device) return cudaErrorInvalidResourceHandle;
    const auto record = std::make_shared<Record>();
    record->stream = stream;
    record->number = give(stream, [record](std::minstd_rand&) { record->time = std::chrono::steady_clock::now(); });
    const std::lock_guard lock(event->mutex);
    event->last = record;
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return call([=] {
    const std::shared_ptr<CUevent_st> event = find_event(handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    ++waits;
    if (const std::shared_ptr<const Record> record = event->get()) record->stream->wait_for(record->number);
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return call([=] {
    const std::shared_ptr<CUevent_st> event = find_event(handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    const std::shared_ptr<const Record> record = event->get();
    return !record || record->stream->is_done(record->number) ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start_handle, cudaEvent_t end_handle) {
  return call([=] {
    const std::shared_ptr<CUevent_st> start = find_event(start_handle), end = find_event(end_handle);
    if (!start || !end || !start->timing || !end->timing || start->device != end->device) return cudaErrorInvalidResourceHandle;
    const std::shared_ptr<const Record> first = start->get(), last = end->get();
    if (!first || !last) return cudaErrorInvalidResourceHandle;
    if (!first->stream->is_done(first->number) || !last->stream->is_done(last->number)) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(last->time - first->time).count();
    return cudaSuccess;
  });
}
