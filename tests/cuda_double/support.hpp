// What the tests of the double share: streams, device memory, and children that are to die.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <csignal>
#include <cstdlib>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/cuda/launch.hpp"

namespace fsdp::test {

inline void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorName(status));
}

/// A stream made with `seed`.
class TestStream {
 public:
  explicit TestStream(unsigned seed = 0, unsigned flags = cudaStreamNonBlocking) {
    ::setenv("FSDP_CUDA_DOUBLE_SEED", std::to_string(seed).c_str(), 1);
    check(cudaStreamCreateWithPriority(&stream_, flags, 0));
  }
  ~TestStream() { cudaStreamDestroy(stream_); }
  TestStream(const TestStream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

class TestEvent {
 public:
  explicit TestEvent(unsigned flags = cudaEventDefault) { check(cudaEventCreateWithFlags(&event_, flags)); }
  ~TestEvent() { cudaEventDestroy(event_); }
  TestEvent(const TestEvent&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size) : size_(size) { check(cudaMalloc(&data_, size * sizeof(T))); }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    check(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
    check(cudaDeviceSynchronize());
  }
  explicit DeviceArray(std::initializer_list<T> values) : DeviceArray(std::vector<T>(values)) {}
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  T* data() const { return data_; }
  /// Once all streams have done what they were given.
  std::vector<T> fetch() const {
    check(cudaDeviceSynchronize());
    std::vector<T> values(size_);
    check(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

/// How a child has ended, and what it wrote to stderr.
struct Ended {
  int status = 0;
  std::string text;
  bool by(int signal) const { return WIFSIGNALED(status) && WTERMSIG(status) == signal; }
};

/// Runs one test case of this program, which may be a disabled one, in a process of its own.
inline Ended run_child(const std::string& name) {
  int ends[2];
  BOOST_REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr rlimit no_core{};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    const std::string which = "--run_test=" + name;
    ::execl("/proc/self/exe", "child", which.c_str(), "--catch_system_errors=no", "--log_level=nothing", "--report_level=no",
            static_cast<char*>(nullptr));
    ::_exit(1);
  }
  ::close(ends[1]);
  Ended ended;
  char part[512];
  for (ssize_t n; (n = ::read(ends[0], part, sizeof part)) > 0;) ended.text.append(part, static_cast<std::size_t>(n));
  ::close(ends[0]);
  BOOST_REQUIRE(::waitpid(child, &ended.status, 0) == child);
  return ended;
}

/// The case touches memory that it may not. Sanitizers catch the signal, say so, and exit.
inline void dies_by_touching(const std::string& name) {
  const Ended ended = run_child(name);
  const bool said = ended.status != 0 && ended.text.find("Sanitizer:DEADLYSIGNAL") != std::string::npos;
  BOOST_TEST((ended.by(SIGSEGV) || said), name << ": status " << ended.status << ", " << ended.text);
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace fsdp::test
