// The double's NCCL: that it moves and adds, that ranks which do different things are found, that one which does not come is
// waited for until somebody gives up.
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "support.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Before anything reads it.
struct Environment {
  Environment() { ::setenv("FSDP_CUDA_DOUBLE_DEVICES", "4", 1); }
} environment;

void check(ncclResult_t status) {
  if (status != ncclSuccess) throw std::runtime_error(ncclGetErrorString(status));
}

ncclConfig_t config(bool blocks) {
  ncclConfig_t made = NCCL_CONFIG_INITIALIZER;
  made.blocking = blocks ? 1 : 0;
  return made;
}

/// The status once nothing is in progress.
ncclResult_t settle(ncclComm_t comm) {
  ncclResult_t status = ncclInProgress;
  while (status == ncclInProgress) {
    check(ncclCommGetAsyncError(comm, &status));
    std::this_thread::yield();
  }
  return status;
}

/// `body(rank, comm)` on a thread for each rank, whose device is its own. Boost.Test is not for several threads.
void on_ranks(int size, const std::function<void(int, ncclComm_t&)>& body) {
  ncclUniqueId id;
  check(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  std::atomic<int> failures = 0;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        test::check(cudaSetDevice(rank));
        ncclComm_t comm = nullptr;
        ncclConfig_t blocking = config(true);
        check(ncclCommInitRankConfig(&comm, size, id, rank, &blocking));
        body(rank, comm);
        check(ncclCommDestroy(comm));
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        ++failures;
      }
    });
  for (std::thread& thread : threads) thread.join();
  BOOST_TEST(failures == 0);
}

void require(bool ok) {
  if (!ok) throw std::runtime_error("wrong");
}

}  // namespace

BOOST_AUTO_TEST_CASE(numbers_arrive_and_are_added_along_a_ring) {
  constexpr std::size_t n = 10007;  // of several pieces
  on_ranks(3, [](int rank, ncclComm_t comm) {
    const TestStream stream;
    const auto of = [](int r, std::size_t i) { return (r == 1 ? -1e8f : 1e8f) + static_cast<float>(i % 97) * 10 + 3.0f * r; };
    const auto ring = [&](std::size_t end, std::size_t i) {
      float sum = of(static_cast<int>((end + 1) % 3), i);
      for (std::size_t step = 2; step <= 3; ++step) sum += of(static_cast<int>((end + step) % 3), i);
      return sum;
    };
    std::vector<float> mine(3 * n);
    for (std::size_t i = 0; i < 3 * n; ++i) mine[i] = of(rank, i);
    const DeviceArray<float> from(mine), all(9 * n), part(n);
    check(ncclAllGather(from.data(), all.data(), 3 * n, ncclFloat32, comm, stream));
    check(ncclReduceScatter(from.data(), part.data(), n, ncclFloat32, ncclSum, comm, stream));
    const auto gathered = all.fetch(), summed = part.fetch();
    for (std::size_t i = 0; i < 9 * n; ++i) require(gathered[i] == of(static_cast<int>(i / (3 * n)), i % (3 * n)));
    for (std::size_t i = 0; i < n; ++i)
      require(summed[i] == ring(static_cast<std::size_t>(rank), static_cast<std::size_t>(rank) * n + i));
    check(ncclAllReduce(from.data(), from.data(), 3 * n, ncclFloat32, ncclSum, comm, stream));
    const auto everywhere = from.fetch();
    for (std::size_t i = 0; i < 3 * n; ++i) require(everywhere[i] == ring(i / n, i));
    check(ncclBroadcast(from.data(), from.data(), 5, ncclFloat32, 1, comm, stream));
    // Each rank sends its number of bytes to the next one.
    check(ncclGroupStart());
    check(ncclSend(from.data(), static_cast<std::size_t>(rank) + 1, ncclUint8, (rank + 1) % 3, comm, stream));
    check(ncclRecv(all.data(), static_cast<std::size_t>((rank + 2) % 3) + 1, ncclUint8, (rank + 2) % 3, comm, stream));
    check(ncclGroupEnd());
    stream.wait();
  });
}

BOOST_AUTO_TEST_CASE(groups_split) {
  on_ranks(4, [](int rank, ncclComm_t comm) {
    ncclComm_t part = nullptr;
    check(ncclCommSplit(comm, rank % 2, -rank, &part, nullptr));
    const TestStream stream;
    const DeviceArray<std::uint64_t> mine({std::uint64_t(rank)}), both(2);
    check(ncclAllGather(mine.data(), both.data(), 1, ncclUint64, part, stream));
    const auto found = both.fetch();
    require(found[0] == std::uint64_t(2 + rank % 2) && found[1] == std::uint64_t(rank % 2));
    check(ncclCommDestroy(part));
  });
}

namespace {

/// Connects two ranks on one device. Returns NCCL's message, empty if it allows them.
std::string connect_on_one_device() {
  ncclUniqueId id;
  check(ncclGetUniqueId(&id));
  ncclComm_t comms[2];
  for (int rank = 0; rank < 2; ++rank) {
    ncclConfig_t not_blocking = config(false);
    BOOST_TEST(ncclCommInitRankConfig(&comms[rank], 2, id, rank, &not_blocking) == ncclInProgress);
  }
  std::string message;
  for (ncclComm_t comm : comms) {
    const ncclResult_t status = settle(comm);
    message = ncclGetLastError(comm);
    BOOST_TEST(status == (message.empty() ? ncclSuccess : ncclInvalidUsage));
    check(ncclCommAbort(comm));
  }
  return message;
}

}  // namespace

BOOST_AUTO_TEST_CASE(two_ranks_on_one_device_are_refused_unless_a_newer_version_is_told_to_allow_them) {
  for (const char* const allow : {"0", "1"}) {
    ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", allow, 1);
    BOOST_TEST(contains(connect_on_one_device(), "Duplicate GPU detected"));
    ::setenv("FSDP_CUDA_DOUBLE_NCCL_VERSION", "23007", 1);
    const std::string message = connect_on_one_device();
    ::unsetenv("FSDP_CUDA_DOUBLE_NCCL_VERSION");
    BOOST_TEST((*allow == '1' ? message.empty() : contains(message, "Multiple Ranks are using the same GPU")));
  }
  ::unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

BOOST_AUTO_TEST_CASE(a_rank_that_does_not_come_is_waited_for_until_the_others_give_up) {
  std::atomic<bool> given_up = false;
  on_ranks(2, [&](int rank, ncclComm_t& comm) {
    if (rank == 1) {
      while (!given_up) std::this_thread::yield();
      return;
    }
    const TestStream stream;
    const DeviceArray<float> x(10);
    check(ncclAllReduce(x.data(), x.data(), 10, ncclFloat32, ncclSum, comm, stream));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    require(cudaStreamQuery(stream) == cudaErrorNotReady);
    check(ncclCommAbort(std::exchange(comm, nullptr)));
    stream.wait();
    given_up = true;
  });
}

// As NCCL's, it waits for the communicator's last operation, here behind one of a communicator that is not aborted yet.
BOOST_AUTO_TEST_CASE(an_abort_waits_for_the_last_operation_unless_all_are_in_a_group) {
  std::atomic<bool> given_up = false;
  on_ranks(2, [&](int rank, ncclComm_t& comm) {
    ncclComm_t other = nullptr;
    check(ncclCommSplit(comm, 0, rank, &other, nullptr));
    if (rank == 1) {
      while (!given_up) std::this_thread::yield();
      check(ncclCommAbort(other));
      return;
    }
    const TestStream first, second;
    const DeviceArray<float> x(10), y(10);
    check(ncclAllReduce(x.data(), x.data(), 10, ncclFloat32, ncclSum, comm, first));
    cudaEvent_t event = nullptr;
    test::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    test::check(cudaEventRecord(event, first));
    test::check(cudaStreamWaitEvent(second, event, 0));
    check(ncclAllReduce(y.data(), y.data(), 10, ncclFloat32, ncclSum, other, second));
    std::atomic<bool> aborted = false;
    std::thread alone([&] {
      check(ncclCommAbort(other));
      aborted = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    require(!aborted);
    check(ncclCommAbort(std::exchange(comm, nullptr)));
    alone.join();
    second.wait();
    test::check(cudaEventDestroy(event));
    given_up = true;
  });
}

BOOST_AUTO_TEST_CASE(finalizing_waits_for_the_last_operation_and_for_all_ranks) {
  std::atomic<int> begun = 0;
  on_ranks(2, [&](int rank, ncclComm_t& comm) {
    const TestStream stream;
    const DeviceArray<float> x({1.0f});
    check(ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, ncclSum, comm, stream));
    if (rank == 1) {
      stream.wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    ++begun;
    check(ncclCommFinalize(comm));
    require(begun == 2 && cudaStreamQuery(stream) == cudaSuccess);
  });
}

// --- What ends a process. The cases of this suite run in children. ---

BOOST_AUTO_TEST_SUITE(child, *boost::unit_test::disabled())

BOOST_AUTO_TEST_CASE(different_counts) {
  on_ranks(2, [](int rank, ncclComm_t comm) {
    const DeviceArray<float> x(10);
    check(ncclAllReduce(x.data(), x.data(), rank == 0 ? 10 : 9, ncclFloat32, ncclSum, comm, nullptr));
    test::check(cudaDeviceSynchronize());
  });
}

BOOST_AUTO_TEST_CASE(different_operations) {
  on_ranks(2, [](int rank, ncclComm_t comm) {
    const DeviceArray<float> x(20);
    if (rank == 0)
      check(ncclAllReduce(x.data(), x.data(), 10, ncclFloat32, ncclSum, comm, nullptr));
    else
      check(ncclAllGather(x.data(), x.data(), 10, ncclFloat32, comm, nullptr));
    test::check(cudaDeviceSynchronize());
  });
}

BOOST_AUTO_TEST_CASE(different_lengths_of_a_message) {
  on_ranks(2, [](int rank, ncclComm_t comm) {
    const DeviceArray<float> x(20);
    if (rank == 0)
      check(ncclSend(x.data(), 10, ncclFloat32, 1, comm, nullptr));
    else
      check(ncclRecv(x.data(), 9, ncclFloat32, 0, comm, nullptr));
    test::check(cudaDeviceSynchronize());
  });
}

BOOST_AUTO_TEST_CASE(another_operator) {
  on_ranks(1, [](int, ncclComm_t comm) {
    const DeviceArray<float> x(10);
    check(ncclReduceScatter(x.data(), x.data(), 10, ncclFloat32, ncclMax, comm, nullptr));
  });
}

BOOST_AUTO_TEST_CASE(different_orders_of_two_communicators) {
  on_ranks(2, [](int rank, ncclComm_t comm) {
    ncclComm_t other = nullptr;
    check(ncclCommSplit(comm, 0, rank, &other, nullptr));
    const TestStream first, second;
    const DeviceArray<float> x(10), y(10);
    const auto sum = [&](const DeviceArray<float>& of, ncclComm_t with, cudaStream_t stream) {
      check(ncclAllReduce(of.data(), of.data(), 10, ncclFloat32, ncclSum, with, stream));
    };
    if (rank == 0) sum(x, comm, first);
    sum(y, other, second);
    if (rank == 1) sum(x, comm, first);
    test::check(cudaDeviceSynchronize());
  });
}

BOOST_AUTO_TEST_CASE(memory_of_the_host) {
  on_ranks(1, [](int, ncclComm_t comm) {
    std::vector<float> x(10);
    check(ncclAllReduce(x.data(), x.data(), 10, ncclFloat32, ncclSum, comm, nullptr));
  });
}

BOOST_AUTO_TEST_CASE(freed_while_registered) {
  on_ranks(1, [](int, ncclComm_t comm) {
    void *x = nullptr, *handle = nullptr;
    check(ncclMemAlloc(&x, 100));
    check(ncclCommRegister(comm, x, 100, &handle));
    check(ncclMemFree(x));
  });
}

BOOST_AUTO_TEST_CASE(called_while_in_progress) {
  ncclUniqueId id;
  check(ncclGetUniqueId(&id));
  ncclComm_t comm = nullptr;
  ncclConfig_t not_blocking = config(false);
  if (ncclCommInitRankConfig(&comm, 1, id, 0, &not_blocking) != ncclInProgress || settle(comm) != ncclSuccess) ::_exit(1);
  const DeviceArray<float> x(10);
  for (int i = 0; i < 100; ++i) ncclAllReduce(x.data(), x.data(), 10, ncclFloat32, ncclSum, comm, nullptr);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_CASE(wrong_use_ends_the_process) {
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"different_counts", {"ranks do different things", "ncclAllReduce of 10", "ncclAllReduce of 9", "rank 0", "rank 1"}},
      {"different_operations", {"ranks do different things", "ncclAllReduce of 10", "ncclAllGather of 10"}},
      {"different_lengths_of_a_message", {"rank 0 sends 40 bytes to rank 1, which expects 36"}},
      {"another_operator", {"another operator than the sum"}},
      {"different_orders_of_two_communicators", {"ranks use two communicators in different orders"}},
      {"memory_of_the_host", {"ncclAllReduce is given memory that is not the device's"}},
      {"freed_while_registered", {"still registered"}},
      {"called_while_in_progress", {"is called while the call before is in progress"}}};
  for (const auto& [name, parts] : cases) {
    const Ended ended = run_child(std::string("child/") + name);
    BOOST_TEST(ended.by(SIGABRT), name << ": " << ended.text);
    for (const char* const part : parts) BOOST_TEST(contains(ended.text, part), name << ": " << ended.text);
  }
}
