#include "comm/agree.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "base/narrow.hpp"
#include "base/program.hpp"
#include "base/worker.hpp"
#include "device/device.hpp"

namespace fsdp {

Failure describe_current_exception() {
  try {
    throw;
  } catch (const CollectiveError& error) {
    return {error.what(), error.exit_code, error.damage};
  } catch (const DamagedError& error) {
    return {error.what(), exit_code::failed, true};
  } catch (const RunError& error) {
    return {error.what(), exit_code::failed};
  } catch (const UserError& error) {
    return {error.what(), exit_code::wrong_use};
  } catch (const std::bad_alloc&) {
    return {
        "out of memory (the system gave no more); use more ranks, a smaller `micro-batch` or `recomputation of activations`",
        exit_code::failed};
  } catch (const std::system_error& error) {
    return {message_of(error), exit_code::failed};
  } catch (const std::exception& error) {
    return {error.what(), exit_code::failed};
  } catch (...) {
    return {"an unknown error", exit_code::failed};
  }
}

void agree(Group& comm, const std::function<void()>& step) {
  const auto me = static_cast<std::size_t>(comm.rank());
  constexpr std::int64_t damage = 256;                                        // added to the exit code of a DamagedError
  std::vector<std::int64_t> codes(static_cast<std::size_t>(comm.size()), 0);  // 0: no failure
  std::string message;
  try {
    step();
  } catch (...) {
    const Failure failure = describe_current_exception();
    message = failure.message;
    codes[me] = failure.exit_code + (failure.damage ? damage : 0);
  }
  comm.sum(codes);
  const auto first = std::find_if(codes.begin(), codes.end(), [](std::int64_t code) { return code != 0; });
  if (first == codes.end()) return;

  const int speaker = narrow<int>(first - codes.begin());
  message = comm.broadcast(message, speaker);
  const bool everywhere = std::find(codes.begin(), codes.end(), 0) == codes.end();
  throw CollectiveError(message, speaker, everywhere, static_cast<int>(*first % damage), *first >= damage);
}

void require_same(Group& comm, const std::string& mine, const std::function<void(const std::string& first)>& refuse) {
  const std::string first = comm.broadcast(mine, 0);
  agree(comm, [&] {
    if (mine != first) refuse(first);
  });
}

void work_meanwhile(Group& comm, bool works, const std::function<void(const std::function<bool()>& stop)>& work,
                    const std::function<bool()>& asks_to_stop) {
  std::atomic<bool> done = !works, stop = false;
  std::optional<Worker> worker;  // on an exception, its destructor waits for the thread
  agree(comm, [&] {
    if (!works) return;
    worker.emplace("fsdp-work");
    worker->start([&] {
      try {
        work([&] { return stop.load(); });
      } catch (...) {
        done = true;
        throw;
      }
      done = true;
    });
  });
  try {
    for (auto pause = std::chrono::milliseconds(1); !comm.all(done);
         pause = std::min(2 * pause, std::chrono::milliseconds(100))) {
      if (comm.sum(std::int64_t{asks_to_stop && asks_to_stop()}) > 0) stop = true;
      std::this_thread::sleep_for(pause);
    }
  } catch (...) {
    stop = true;
    throw;
  }
  agree(comm, [&] {
    if (worker) worker->finish();
  });
}

}  // namespace fsdp
