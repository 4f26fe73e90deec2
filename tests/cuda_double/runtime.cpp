// The double's runtime: streams and their order, events, memory and its protection.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
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

struct Touch {
  char* at;
  __device__ void operator()() const { *at = 1; }
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

BOOST_AUTO_TEST_CASE(a_full_stream_blocks_its_giver) {
  const TestStream stream;
  Gate gate(stream);
  std::atomic<int> given = 0;
  std::thread giver([&] {
    for (; given < 1100; ++given) launch_one(stream, Nothing{});
  });
  while (given < 1000) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  BOOST_TEST(given < 1100);
  gate.open();
  giver.join();
  stream.wait();
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
  // An event that is destroyed is still waited for.
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  Gate gate(first);
  launch_one(first, Append{x.data(), 1});
  check(cudaEventRecord(event, first));
  check(cudaStreamWaitEvent(second, event));
  check(cudaEventDestroy(event));
  launch_one(second, Copy{y.data(), x.data()});
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  BOOST_TEST(cudaStreamQuery(second) == cudaErrorNotReady);
  gate.open();
  second.wait();
  BOOST_TEST(fetch(y.data()) == 22u);
  BOOST_TEST(cudaEventRecord(event, first) == cudaErrorInvalidResourceHandle);
  BOOST_TEST(cudaGetLastError() == cudaErrorInvalidResourceHandle);
}

BOOST_AUTO_TEST_CASE(time_passes_between_events) {
  const TestStream stream;
  const TestEvent begin, end, untimed(cudaEventDisableTiming);
  float ms = -1;
  BOOST_TEST(cudaEventElapsedTime(&ms, begin, end) == cudaErrorInvalidResourceHandle);  // never recorded
  Gate gate(stream);
  check(cudaEventRecord(begin, stream));
  check(cudaLaunchHostFunc(
      stream, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(3)); }, nullptr));
  check(cudaEventRecord(end, stream));
  check(cudaEventRecord(untimed, stream));
  BOOST_TEST(cudaEventElapsedTime(&ms, begin, end) == cudaErrorNotReady);
  gate.open();
  check(cudaEventSynchronize(end));
  check(cudaEventElapsedTime(&ms, begin, end));
  BOOST_TEST((ms >= 3 && ms < 3000));
  stream.wait();
  BOOST_TEST(cudaEventElapsedTime(&ms, begin, untimed) == cudaErrorInvalidResourceHandle);
  cudaGetLastError();
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

BOOST_AUTO_TEST_CASE(a_destroyed_stream_does_its_work) {
  const DeviceArray<std::uint64_t> x({0});
  const TestStream other;
  const TestEvent event;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -5));
  Gate gate(stream);
  launch_one(stream, Append{x.data(), 9});
  check(cudaEventRecord(event, stream));
  check(cudaStreamDestroy(stream));
  BOOST_TEST(cudaStreamSynchronize(stream) == cudaErrorInvalidResourceHandle);
  BOOST_TEST(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  BOOST_TEST(cudaEventQuery(event) == cudaErrorNotReady);
  cudaGetLastError();
  gate.open();
  check(cudaDeviceSynchronize());
  BOOST_TEST(fetch(x.data()) == 9u);
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
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total));
  BOOST_TEST(total == context + memory_of_device);
  BOOST_TEST(free == memory_of_device);
  constexpr std::size_t half = memory_of_device / 2;
  char *first = nullptr, *second = nullptr;
  check(cudaMalloc(&first, half));
  check(cudaMemGetInfo(&free, &total));
  BOOST_TEST(free == half);
  BOOST_TEST(cudaMalloc(&second, half + 1) == cudaErrorMemoryAllocation);
  BOOST_TEST(!second);
  BOOST_TEST(cudaMalloc(&second, ~std::size_t{0} - 100) == cudaErrorMemoryAllocation);
  BOOST_TEST(cudaPeekAtLastError() == cudaErrorMemoryAllocation);
  BOOST_TEST(cudaGetLastError() == cudaErrorMemoryAllocation);
  BOOST_TEST(cudaGetLastError() == cudaSuccess);
  check(cudaMalloc(&second, half));
  check(cudaFree(first));
  check(cudaFree(second));
  check(cudaFree(nullptr));
  BOOST_TEST(cudaFree(first) == cudaErrorInvalidValue);
  BOOST_TEST(cudaFree(&first) == cudaErrorInvalidValue);
  cudaGetLastError();
  check(cudaMemGetInfo(&free, &total));
  BOOST_TEST(free == memory_of_device);
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

BOOST_AUTO_TEST_CASE(wrong_copies_are_refused) {
  const DeviceArray<char> x(100);
  char host[200] = {};
  BOOST_TEST(cudaMemcpy(x.data(), host, 101, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  BOOST_TEST(cudaMemcpy(x.data() + 50, host, 51, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  BOOST_TEST(cudaMemcpy(x.data(), host, 100, cudaMemcpyDeviceToHost) == cudaErrorInvalidMemcpyDirection);
  BOOST_TEST(cudaMemcpy(host, host + 100, 100, cudaMemcpyHostToDevice) == cudaErrorInvalidMemcpyDirection);
  BOOST_TEST(cudaMemset(host, 0, 100) == cudaErrorInvalidValue);
  BOOST_TEST(cudaMemset(x.data(), 0, 101) == cudaErrorInvalidValue);
  BOOST_TEST(cudaMemcpyAsync(x.data(), host, 1, cudaMemcpyHostToDevice, reinterpret_cast<cudaStream_t>(host)) ==
             cudaErrorInvalidResourceHandle);
  cudaGetLastError();
  check(cudaMemcpy(host, host + 100, 100, cudaMemcpyHostToHost));
  check(cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyHostToDevice));
}

BOOST_AUTO_TEST_CASE(host_functions_may_call_nothing) {
  const TestStream stream;
  cudaError_t got[2] = {};
  check(cudaLaunchHostFunc(
      stream,
      [](void* to) {
        void* memory = nullptr;
        static_cast<cudaError_t*>(to)[0] = cudaMalloc(&memory, 1);
        static_cast<cudaError_t*>(to)[1] = cudaDeviceSynchronize();
      },
      got));
  stream.wait();
  BOOST_TEST(got[0] == cudaErrorNotPermitted);
  BOOST_TEST(got[1] == cudaErrorNotPermitted);
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
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 1));
  BOOST_TEST(std::strlen(properties.name) > 0);
  BOOST_TEST(properties.totalGlobalMem == context + memory_of_device);
  cudaGetLastError();
}

BOOST_AUTO_TEST_CASE(shared_memory_is_that_of_the_compute_capability) {
  for (const auto& [capability, kib] :
       {std::pair{"80", 163u}, {"86", 99u}, {"89", 99u}, {"90", 227u}, {"100", 227u}, {"120", 99u}}) {
    ::setenv("FSDP_CUDA_DOUBLE_CAPABILITIES", capability, 1);
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    BOOST_TEST(properties.sharedMemPerBlockOptin == kib * 1024);
    BOOST_TEST(launch_kernel(nullptr, 1, 1, kib * 1024, Nothing{}) == cudaSuccess);
    BOOST_TEST(launch_kernel(nullptr, 1, 1, kib * 1024 + 1, Nothing{}) == cudaErrorInvalidValue);
  }
  ::unsetenv("FSDP_CUDA_DOUBLE_CAPABILITIES");
}

BOOST_AUTO_TEST_CASE(streams_and_events_are_counted) {
  BOOST_TEST(cuda_double::live_streams().empty());
  BOOST_TEST(cuda_double::live_events() == 0u);
  {
    const TestStream first, second(0, cudaStreamDefault);
    const TestEvent event;
    const auto found = cuda_double::live_streams();
    BOOST_REQUIRE(found.size() == 2u);
    BOOST_TEST((!found[0].blocking && found[1].blocking));
    BOOST_TEST(cuda_double::live_events() == 1u);
  }
  BOOST_TEST(cuda_double::live_streams().empty());
  BOOST_TEST(cuda_double::live_events() == 0u);
}

BOOST_AUTO_TEST_CASE(errors_have_names) {
  BOOST_TEST(cudaGetErrorName(cudaErrorMemoryAllocation) == std::string("cudaErrorMemoryAllocation"));
  BOOST_TEST(cudaGetErrorString(cudaErrorMemoryAllocation) == std::string("out of memory"));
  BOOST_TEST(cudaGetErrorName(static_cast<cudaError_t>(12345)) == std::string("unrecognized error code"));
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

BOOST_AUTO_TEST_CASE(host_reads) {
  const DeviceArray<char> x(100);
  const volatile char* at = x.data();
  ::_exit(at[3]);
}

BOOST_AUTO_TEST_CASE(host_function_writes) {
  const TestStream stream;
  const DeviceArray<char> x(100);
  check(cudaLaunchHostFunc(
      stream, [](void* at) { *static_cast<volatile char*>(at) = 1; }, x.data()));
  stream.wait();
  ::_exit(1);
}

BOOST_AUTO_TEST_CASE(kernel_leaves_its_memory) {
  const DeviceArray<char> x(512);
  launch_one(nullptr, Touch{x.data() + 512});
  check(cudaDeviceSynchronize());
  ::_exit(1);
}

BOOST_AUTO_TEST_CASE(kernel_writes_behind_odd_size) {
  char* x = nullptr;
  check(cudaMalloc(&x, 100));
  launch_one(nullptr, Touch{x + 101});
  check(cudaFree(x));
  ::_exit(1);
}

BOOST_AUTO_TEST_CASE(kernel_uses_freed_memory) {
  char* x = nullptr;
  check(cudaMalloc(&x, 100));
  check(cudaFree(x));
  launch_one(nullptr, Touch{x});
  check(cudaDeviceSynchronize());
  ::_exit(1);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_CASE(a_bad_address_fails_every_later_call) {
  ::setenv("FSDP_CUDA_DOUBLE_STICKY", "2", 1);
  const Ended ended = run_child("child/second_launch_is_bad");
  ::unsetenv("FSDP_CUDA_DOUBLE_STICKY");
  BOOST_TEST(ended.status == 0, ended.text);
}

BOOST_AUTO_TEST_CASE(host_code_cannot_touch_device_memory) {
  if (!cuda_double::guards_memory()) {
    BOOST_TEST_MESSAGE("this processor has no memory protection keys: host code that touches a device's memory is not found");
    return;
  }
  dies_by_touching("child/host_reads");
  dies_by_touching("child/host_function_writes");
}

BOOST_AUTO_TEST_CASE(kernels_cannot_leave_their_memory) {
  dies_by_touching("child/kernel_leaves_its_memory");
  dies_by_touching("child/kernel_uses_freed_memory");
  const Ended ended = run_child("child/kernel_writes_behind_odd_size");
  BOOST_TEST(ended.by(SIGABRT));
  BOOST_TEST(contains(ended.text, "100 bytes were written to beyond their end, at byte 101"), ended.text);
}
