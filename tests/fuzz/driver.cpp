// Runs a file reader on damaged files in a child process, for a time or a number of inputs. The seed determines all inputs.
// After a crash, a hang, high memory use or a wrong answer, the input is in a file, and the command to repeat it is printed.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include "base/format.hpp"
#include "fuzz/mutate.hpp"
#include "fuzz/targets.hpp"
#include "support/files.hpp"

// Huge allocations fail, as without sanitizers. Stack traces of allocations are not recorded, which would take a tenth of the
// time, and reports have no function names; the command that repeats an input enables both (see Fuzzer::report).
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1:max_allocation_size_mb=1024:quarantine_size_mb=16:detect_stack_use_after_return=0:"
         "malloc_context_size=0:symbolize=0:exitcode=99";
}
extern "C" const char* __ubsan_default_options() { return "halt_on_error=1:print_stacktrace=1"; }

namespace fsdp::fuzz {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// A reader computes for less than a second, but may wait for a processor.
constexpr double longest_computing_s = 10, longest_s = 150;
constexpr std::size_t most_memory = std::size_t{2} << 30;  // resident

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The worker's state, which its parent reads after the worker has died.
struct Shared {
  std::atomic<std::uint64_t> done = 0, accepted = 0, refused = 0;  // inputs
  std::atomic<std::uint64_t> size = 0;                             // of the current input
  char failure[1000] = "";                                         // the fault, if the worker could report it
  char bytes[longest_input];
};

/// Returns the peak resident memory of this process, or of its ended children.
std::size_t peak_bytes(__rusage_who who = RUSAGE_SELF) {
  rusage usage{};
  ::getrusage(who, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

/// Returns the processor time of a process so far, without its children.
double computed_s(pid_t process) {
  clockid_t clock{};
  timespec spent{};
  if (::clock_getcpuclockid(process, &clock) == 0) ::clock_gettime(clock, &spent);
  return static_cast<double>(spent.tv_sec) + static_cast<double>(spent.tv_nsec) / 1e9;
}

struct Budget {
  std::uint64_t inputs = ~std::uint64_t{0};
  double seconds = 1e9;
};

class Fuzzer {
 public:
  Fuzzer(const NamedTarget& named, std::uint64_t seed) : name_(named.name), seed_(seed), target_(named.make(folder_.path())) {
    void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    shared_ = new (memory) Shared;
  }
  Fuzzer(const Fuzzer&) = delete;
  ~Fuzzer() { ::munmap(shared_, sizeof(Shared)); }

  /// Returns false, with the reason on stdout, after a failure.
  bool run(const Budget& budget) {
    const auto start = Clock::now();
    if (!in_worker([&] { read_corpus(); })) return report("corpus");
    const auto began = Clock::now();
    const bool passed = in_worker([&] { read_mutants(budget, began); });
    const double seconds = seconds_since(began);
    const std::uint64_t done = shared_->done;
    fmt::print("{}: {} inputs in {:.1f} s ({:.0f}/s), {} accepted, {} refused, at most {}; seed {}, {} files of {:.1f} s\n",
               name_, done, seconds, static_cast<double>(done) / seconds, shared_->accepted.load(), shared_->refused.load(),
               format_bytes(static_cast<double>(peak_bytes(RUSAGE_CHILDREN))), seed_, target_.corpus.size(),
               std::chrono::duration<double>(began - start).count());
    if (!passed) return report(format("iteration {}", done));
    if (done >= 100 && shared_->refused == 0) {
      fmt::print("{}: nothing was refused, so this reader is not tested\n", name_);
      return false;
    }
    return true;
  }

  bool run_one(const std::string& bytes) {
    if (in_worker([&] {
          const bool accepted = read(bytes);
          fmt::print("{}: {} bytes are {}\n", name_, bytes.size(), accepted ? "accepted" : "refused");
          std::fflush(stdout);
        }))
      return true;
    fmt::print("{}: {}\n", name_, shared_->failure);
    return false;
  }

  void write_corpus(const fs::path& folder) const {
    fs::create_directories(folder);
    for (std::size_t i = 0; i < target_.corpus.size(); ++i)
      test::write_file(folder / format("{}-{}", name_, i), target_.corpus[i]);
  }

 private:
  void fail(const std::string& why) {
    std::snprintf(shared_->failure, sizeof shared_->failure, "%s", why.c_str());
    ::_exit(1);
  }

  bool read(const std::string& bytes) {
    shared_->size = std::min(bytes.size(), longest_input);  // an input from the command line may be longer
    std::memcpy(shared_->bytes, bytes.data(), shared_->size);
    try {
      const bool accepted = target_.accepts(bytes);
      if (peak_bytes() > most_memory) fail(format("it took {}", format_bytes(static_cast<double>(peak_bytes()))));
      return accepted;
    } catch (const std::exception& error) {
      fail(error.what());
    } catch (...) {
      fail("something was thrown that is no exception");
    }
    return false;
  }

  void read_corpus() {
    for (const std::string& bytes : target_.corpus)
      if (!read(bytes)) fail("a file of the corpus is refused");
  }

  void read_mutant(std::uint64_t i) {
    Random random(seed_ * 0x100000001b3 + i);
    const std::string bytes = mutant(target_.corpus, target_.is_text, random);
    shared_->done = i + 1;
    if (std::find(target_.corpus.begin(), target_.corpus.end(), bytes) != target_.corpus.end()) return;
    const bool accepted = read(bytes);
    ++(accepted ? shared_->accepted : shared_->refused);
  }

  void read_mutants(const Budget& budget, Clock::time_point start) {
    while (shared_->done < budget.inputs && seconds_since(start) < budget.seconds) read_mutant(shared_->done);
  }

  /// Runs `work` in another process. Returns false and sets shared_->failure if that process fails or takes too long.
  template <class Work>
  bool in_worker(Work&& work) {
    shared_->done = shared_->accepted = shared_->refused = 0;
    std::fflush(stdout);
    const pid_t worker = ::fork();
    if (worker < 0) throw std::runtime_error("no worker");
    if (worker == 0) {
      work();
      std::fflush(stdout);
      ::_exit(0);
    }
    auto last_change = Clock::now();
    double computed_then_s = 0;
    std::uint64_t last_done = 0;
    int status = 0;
    for (int pause_ms = 1; ::waitpid(worker, &status, WNOHANG) == 0; pause_ms = std::min(2 * pause_ms, 100)) {
      const double so_far_s = computed_s(worker);
      if (const std::uint64_t done = shared_->done; done != last_done)
        last_done = done, last_change = Clock::now(), computed_then_s = so_far_s;
      const double computing_s = so_far_s - computed_then_s;
      if (seconds_since(last_change) > longest_s || computing_s > longest_computing_s) {
        ::kill(worker, SIGKILL);
        ::waitpid(worker, &status, 0);
        std::snprintf(shared_->failure, sizeof shared_->failure, "it had not ended after %.0f s, %.0f s of them computing",
                      seconds_since(last_change), computing_s);
        return false;
      }
      ::poll(nullptr, 0, pause_ms);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
    if (shared_->failure[0] == '\0')
      std::snprintf(shared_->failure, sizeof shared_->failure, "%s",
                    WIFSIGNALED(status) ? format("signal {}, {}", WTERMSIG(status), ::strsignal(WTERMSIG(status))).c_str()
                                        : format("its process ended with status {}", WEXITSTATUS(status)).c_str());
    return false;
  }

  bool report(const std::string& where) {
    const std::string file = format("fuzz-{}-{}-{}", name_, seed_, shared_->done.load());
    test::write_file(file, std::string(shared_->bytes, shared_->size));
    fmt::print(
        "{}: FAILED ({}), seed {}, {}; the input is {}, {} bytes\n"
        "again: ASAN_OPTIONS=malloc_context_size=30:symbolize=1 {} -- {} --input {}\n",
        name_, shared_->failure, seed_, where, file, shared_->size.load(), fs::read_symlink("/proc/self/exe").string(), name_,
        file);
    return false;
  }

  std::string name_;
  std::uint64_t seed_;
  WorkingFolder folder_;
  Target target_;
  Shared* shared_ = nullptr;
};

int usage() {
  fmt::print(stderr,
             "Usage: fuzz -- TARGET SECONDSs|COUNT [SEED]   (10s: ten seconds; 5000: so many inputs)\n"
             "       fuzz -- TARGET --input FILE\n"
             "       fuzz -- TARGET --corpus FOLDER   (writes the files that the mutants are made of)\n"
             "Targets:");
  for (const NamedTarget& target : all_targets()) fmt::print(stderr, " {}", target.name);
  fmt::print(stderr, "\n");
  return 2;
}

int run(std::vector<std::string> arguments) {
  if (!arguments.empty() && arguments.front() == "--") arguments.erase(arguments.begin());
  const NamedTarget* named = arguments.empty() ? nullptr : find_target(arguments.front());
  if (!named || arguments.size() < 2 || arguments.size() > 3) return usage();
  const std::string amount = arguments[1];
  if (amount.starts_with("--")) {
    if (arguments.size() != 3) return usage();
    Fuzzer fuzzer(*named, 0);
    if (amount == "--input") return fuzzer.run_one(test::read_file(arguments[2])) ? 0 : 1;
    if (amount != "--corpus") return usage();
    fuzzer.write_corpus(arguments[2]);
    return 0;
  }
  const std::uint64_t seed = arguments.size() > 2 ? std::stoull(arguments[2]) : 1;
  Budget budget;
  if (amount.ends_with("s"))
    budget.seconds = std::stod(amount);
  else
    budget.inputs = std::stoull(amount);
  return Fuzzer(*named, seed).run(budget) ? 0 : 1;
}

}  // namespace

}  // namespace fsdp::fuzz

int main(int argc, char** argv) {
  try {
    return fsdp::fuzz::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fuzz: %s\n", error.what());
    return 2;
  }
}
