// Measures the processor time of waiting OpenMP threads: almost none, after the program has restarted itself.
#include <omp.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>

#include "base/system.hpp"

int main(int argc, char** argv) {
  fsdp::let_waiting_threads_sleep(argv);
  if (argc != 3 || argv[1] != std::string("a") || argv[2] != std::string("b c")) return 3;  // the arguments are passed on
  if (!std::getenv("GOMP_SPINCOUNT")) return std::printf("GOMP_SPINCOUNT is not set\n"), 0;
  std::printf("GOMP_SPINCOUNT is set\n");
  const auto milliseconds = [] {
    timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
  };
  // 20 waits of 25 ms each, in which a thread that spins as libgomp lets it by default takes 1 to 15 ms of a core.
  double waiting = 0;
  for (int i = 0; i < 20; ++i) {
#pragma omp parallel num_threads(2)
    {}
    const double before = milliseconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
    waiting += milliseconds() - before;
  }
  std::printf("%.2f ms of computing in 500 ms of waiting\n", waiting);
  if (waiting < 10) std::printf("they sleep\n");
  return 0;
}
