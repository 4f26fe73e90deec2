// The double's runtime: streams and their order, events, memory and its protection, and that lanes need their barriers.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <thread>

#include "support.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr std::size_t memory_of_device = std::size_t{64} << 20, context = std::size_t{2} << 20;

/// Before anything reads it.
struct Environment {
  Environment() {
    ::setenv("FSDP_CUDA_DOUBLE_MEMORY", std::to_string(context + memory_of_device).c_str(), 1);
    ::setenv("FSDP_CUDA_DOUBLE_CONTEXT_MEMORY", std::to_string(context).c_str(), 1);
    ::setenv("FSDP_CUDA_DOUBLE_DEVICES", "2", 1);
  }
} environment;

/// *x = *x * 3 + value, on one lane.
struct Append {
  std::uint64_t* x;
  std::uint64_t value;
  __device__ void operator()() const { *x = *x * 3 + value; }
};

struct Copy {
  std::uint64_t* to;
  const std::uint64_t* from;
  __device__ void operator()() const { *to = *from; }
};

/// y[i] = x[255 - i], through shared memory.
template <bool with_barrier>
struct Reverse {
  int* y;
  const int* x;
  __device__ void operator()() const {
    __shared__ int part[256];
    part[threadIdx.x] = x[threadIdx.x];
    if constexpr (with_barrier) __syncthreads();
    y[threadIdx.x] = part[255 - threadIdx.x];
  }
};

struct Nothing {
  __device__ void operator()() const {}
};

/// Blocks a stream until open() is called.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) {
    check(cudaLaunchHostFunc(
        stream,
        [](void* gate) {
          while (!static_cast<Gate*>(gate)->open_.load()) std::this_thread::yield();
        },
        this));
  }
  void open() { open_.store(true); }

 private:
  std::atomic<bool> open_ = false;
};

template <class Kernel>
void launch_one(cudaStream_t stream, const Kernel& kernel) {
  check(launch_kernel(stream, 1, 1, 0, kernel));
}

std::uint64_t fetch(const std::uint64_t* x) {
  std::uint64_t value = 0;
  check(cudaMemcpy(&value, x, sizeof value, cudaMemcpyDeviceToHost));
  return value;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_stream_keeps_its_order) {
  std::uint64_t want = 0;
  for (std::uint64_t i = 0; i < 3000; ++i) want = want * 3 + i;  // more than a queue holds
  const TestStream stream;
  const DeviceArray<std::uint64_t> x({0});
  for (std::uint64_t i = 0; i < 3000; ++i) launch_one(stream, Append{x.data(), i});
  stream.wait();
  BOOST_TEST(fetch(x.data()) == want);
}

BOOST_AUTO_TEST_CASE(events_alone_order_two_streams) {
  int early = 0;
  for (unsigned seed = 0; seed < 40; ++seed)
    for (const bool wait : {false, true}) {
      const TestStream first(seed), second(seed);
      const DeviceArray<std::uint64_t> x({0}), y({0});
      const TestEvent event;
      for (std::uint64_t i = 0; i < 10; ++i) launch_one(first, Append{x.data(), 1});
      check(cudaEventRecord(event, first));
      if (wait) check(cudaStreamWaitEvent(second, event));
      launch_one(second, Copy{y.data(), x.data()});
      const std::uint64_t got = y.fetch()[0], want = (59049 - 1) / 2;
      if (wait) BOOST_TEST(got == want);
      if (!wait && got != want) ++early;
    }
  BOOST_TEST_MESSAGE("without an event, the second stream was early in " << early << " of 40");
  BOOST_TEST(early > 0);  // 24 on an idle machine
}

BOOST_AUTO_TEST_CASE(a_wait_is_for_the_record_at_its_time) {
  const TestStream first, second;
  const DeviceArray<std::uint64_t> x({0}), y({0});
  {
    const TestEvent event;
    check(cudaStreamWaitEvent(second, event));  // never recorded: no wait
    BOOST_TEST(cudaEventQuery(event) == cudaSuccess);
    check(cudaEventSynchronize(event));
    Gate gate(first), later(first);
    launch_one(first, Append{x.data(), 7});
    check(cudaEventRecord(event, first));
    Gate last(first);
    check(cudaStreamWaitEvent(second, event));
    check(cudaEventRecord(event, first));  // behind the last gate: not what `second` waits for
    launch_one(second, Copy{y.data(), x.data()});
    BOOST_TEST(cudaEventQuery(event) == cudaErrorNotReady);
    BOOST_TEST(cudaStreamQuery(second) == cudaErrorNotReady);
    BOOST_TEST(cudaGetLastError() == cudaErrorNotReady);
    gate.open();
    later.open();
    second.wait();
    BOOST_TEST(fetch(y.data()) == 7u);
    last.open();
    first.wait();
  }
}

BOOST_AUTO_TEST_CASE(the_null_stream_waits_for_blocking_streams_alone) {
  const TestStream blocking(0, cudaStreamDefault), free(0);
  const DeviceArray<std::uint64_t> x({0}), y({0});
  Gate gate(blocking);
  launch_one(blocking, Append{x.data(), 5});
  launch_one(nullptr, Append{x.data(), 1});        // behind the gate
  launch_one(blocking, Copy{y.data(), x.data()});  // behind the null stream
  launch_one(free, Nothing{});
  free.wait();
  BOOST_TEST(cudaStreamQuery(nullptr) == cudaErrorNotReady);
  BOOST_TEST(cudaStreamQuery(blocking) == cudaErrorNotReady);
  cudaGetLastError();
  gate.open();
  blocking.wait();
  BOOST_TEST(fetch(y.data()) == 16u);
}

BOOST_AUTO_TEST_CASE(new_memory_is_not_zero) {
  const DeviceArray<float> x(1000);
  for (const float value : x.fetch()) BOOST_REQUIRE(std::isnan(value));
  BOOST_TEST(reinterpret_cast<std::uintptr_t>(x.data()) % 256 == 0u);
  check(cudaMemset(x.data(), 0, 1000 * sizeof(float)));
  for (const float value : x.fetch()) BOOST_REQUIRE(value == 0.0f);
  unsigned char* pinned = nullptr;
  check(cudaMallocHost(&pinned, 10));
  BOOST_TEST(pinned[9] == 0xff);
  check(cudaFreeHost(pinned));
}

BOOST_AUTO_TEST_CASE(memory_has_an_end) {
  const auto free_memory = [] {
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    return free;
  };
  BOOST_TEST(free_memory() == memory_of_device);
  {
    const DeviceArray<char> half(memory_of_device / 2);
    BOOST_TEST(free_memory() == memory_of_device / 2);
    char* more = nullptr;
    BOOST_TEST(cudaMalloc(&more, memory_of_device / 2 + 1) == cudaErrorMemoryAllocation);
    BOOST_TEST(cudaGetLastError() == cudaErrorMemoryAllocation);
    BOOST_TEST(cudaGetLastError() == cudaSuccess);
  }
  BOOST_TEST(free_memory() == memory_of_device);
}

BOOST_AUTO_TEST_CASE(free_waits_for_the_device) {
  const TestStream stream;
  std::uint64_t* x = nullptr;
  check(cudaMalloc(&x, sizeof *x));
  check(cudaMemsetAsync(x, 0, sizeof *x, stream));
  for (int i = 0; i < 500; ++i) launch_one(stream, Append{x, 1});
  check(cudaFree(x));
  BOOST_TEST(cudaStreamQuery(stream) == cudaSuccess);
}

BOOST_AUTO_TEST_CASE(pinned_memory_is_read_when_a_copy_runs) {
  const TestStream stream;
  const DeviceArray<std::uint64_t> x(2);
  std::uint64_t *pinned = nullptr, pageable = 1;
  check(cudaMallocHost(&pinned, sizeof *pinned));
  *pinned = 1;
  Gate gate(stream);
  check(cudaMemcpyAsync(x.data(), pinned, 8, cudaMemcpyHostToDevice, stream));
  check(cudaMemcpyAsync(x.data() + 1, &pageable, 8, cudaMemcpyHostToDevice, stream));
  *pinned = pageable = 2;  // too early for the first, and not for the second
  gate.open();
  BOOST_TEST(x.fetch() == (std::vector<std::uint64_t>{2, 1}), boost::test_tools::per_element());
  // To pinned memory a copy returns at once, to pageable memory when it is done.
  Gate second(stream);
  check(cudaMemcpyAsync(pinned, x.data() + 1, 8, cudaMemcpyDeviceToHost, stream));
  BOOST_TEST(*pinned == 2u);
  second.open();
  check(cudaMemcpyAsync(&pageable, x.data() + 1, 8, cudaMemcpyDefault, stream));
  BOOST_TEST(pageable == 1u);
  BOOST_TEST(*pinned == 1u);
  check(cudaFreeHost(pinned));
}

BOOST_AUTO_TEST_CASE(two_devices) {
  int count = 0, device = -1;
  check(cudaGetDeviceCount(&count));
  BOOST_REQUIRE(count == 2);
  BOOST_TEST(cudaSetDevice(2) == cudaErrorInvalidDevice);
  const TestStream stream_of_0;
  check(cudaSetDevice(1));
  check(cudaGetDevice(&device));
  BOOST_TEST(device == 1);
  std::thread([] {  // every thread begins on device 0
    int mine = -1;
    check(cudaGetDevice(&mine));
    BOOST_TEST(mine == 0);
  })
      .join();
  BOOST_TEST(launch_kernel(stream_of_0, 1, 1, 0, Nothing{}) == cudaErrorInvalidResourceHandle);
  {
    const DeviceArray<char> x(memory_of_device / 2);
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    BOOST_TEST(free == memory_of_device / 2);
    check(cudaSetDevice(0));
    check(cudaMemGetInfo(&free, &total));
    BOOST_TEST(free == memory_of_device);
  }
  cudaGetLastError();
}

BOOST_AUTO_TEST_CASE(a_missing_barrier_is_found) {
  std::vector<int> x(256);
  std::iota(x.begin(), x.end(), 1);
  const std::vector<int> want(x.rbegin(), x.rend());
  const DeviceArray<int> from(x), with(256), without(256);
  for (unsigned seed = 0; seed < 10; ++seed) {
    const TestStream stream(seed);
    check(launch_kernel(stream, 1, 256, 0, Reverse<true>{with.data(), from.data()}));
    check(launch_kernel(stream, 1, 256, 0, Reverse<false>{without.data(), from.data()}));
    BOOST_TEST((with.fetch() == want));
    BOOST_TEST((without.fetch() != want));
  }
}

// --- What ends a process. The cases of the first suite run in children. ---

BOOST_AUTO_TEST_SUITE(child, *boost::unit_test::disabled())

BOOST_AUTO_TEST_CASE(second_launch_is_bad) {
  const TestStream stream;
  const DeviceArray<std::uint64_t> x({1});
  launch_one(stream, Append{x.data(), 1});
  check(cudaStreamSynchronize(stream));
  launch_one(stream, Nothing{});
  BOOST_TEST(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
  for (int i = 0; i < 2; ++i) BOOST_TEST(cudaGetLastError() == cudaErrorIllegalAddress);
  void* memory = nullptr;
  BOOST_TEST(cudaMalloc(&memory, 1) == cudaErrorIllegalAddress);
  BOOST_TEST(launch_kernel(stream, 1, 1, 0, Nothing{}) == cudaErrorIllegalAddress);
  BOOST_TEST(cudaStreamQuery(stream) == cudaErrorIllegalAddress);
}

BOOST_AUTO_TEST_CASE(host_writes_to_device_memory) {
  const DeviceArray<char> x(100);
  volatile char* const first = x.data();
  *first = 1;
}

BOOST_AUTO_TEST_CASE(kernel_writes_after_its_memory) {
  const DeviceArray<std::uint64_t> x(64), y({1});
  launch_one(nullptr, Copy{x.data() + 64, y.data()});
  check(cudaDeviceSynchronize());
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_CASE(a_bad_address_fails_every_later_call) {
  ::setenv("FSDP_CUDA_DOUBLE_STICKY", "2", 1);
  const Ended ended = run_child("child/second_launch_is_bad");
  ::unsetenv("FSDP_CUDA_DOUBLE_STICKY");
  BOOST_TEST(ended.status == 0, ended.text);
}

BOOST_AUTO_TEST_CASE(wrong_accesses_to_device_memory_end_the_process) {
  dies_by_touching("child/kernel_writes_after_its_memory");
  if (cuda_double::guards_memory()) dies_by_touching("child/host_writes_to_device_memory");  // needs memory protection keys
}
