// Collectives of GPUs by NCCL, with the doubles of CUDA and NCCL (cuda_double/), compared with the threads communicator on the
// same numbers. Ranks are threads with a device each, or on one device (FSDP_NCCL_SHARED_GPU).
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "base/timer.hpp"
#include "comm/agree.hpp"
#include "comm/collective_checks.hpp"
#include "comm/nccl/nccl.hpp"
#include "comm/threads/threads.hpp"
#include "device/memory_view.hpp"
#include "kernels/kernels.hpp"
#include "kernels/loss_sum.hpp"
#include "plan/traffic.hpp"
#include "support/gpu.hpp"
#include "support/on_device.hpp"
#include "support/threaded_device.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Little memory, which a test fills. Before anything reads it.
struct Environment {
  Environment() { ::setenv("FSDP_CUDA_DOUBLE_MEMORY", "300000000", 1); }
} environment;

/// The communicators, device and stream of a test's rank.
struct Rank {
  Communicator& host;
  Device& device;
  Stream& stream;
  const std::shared_ptr<Stream> at_once = make_host_stream();
  Collectives& nccl;
  const Cluster cluster;
  std::size_t me() const { return static_cast<std::size_t>(host.rank()); }
  std::size_t ranks() const { return static_cast<std::size_t>(host.size()); }
};

const DeviceLibrary& library() {
  std::string why;
  const DeviceLibrary* const found = nccl_device_backend.find(&why);
  if (!found) throw std::runtime_error(why);
  return *found;
}

int most_ranks() { return ranks_of_nccl(8); }

/// The ranks of a test, on nodes of `per_node` ranks each (0: on one node), and the staging memory for their sums.
struct Ranks {
  int size, per_node = 0;
  std::size_t staging_bytes = std::size_t{1} << 20;
};

void on_gpus(const Ranks& ranks, const DeviceCommOptions& options, const std::function<void(Rank&)>& body) {
  const auto of_rank = [&](Communicator& host) {
    const auto device = make_device(Threads::of_own_gpu, static_cast<std::uint64_t>(host.rank()));
    const auto stream = device->make_stream(StreamUse::communication);
    const auto groups = library().connect(host, *device, options);
    const auto nccl = groups->make(host, ranks.staging_bytes);
    const int per_node = ranks.per_node == 0 ? ranks.size : ranks.per_node;
    Rank rank{.host = host, .device = *device, .stream = *stream, .nccl = *nccl, .cluster = {ranks.size / per_node, per_node}};
    body(rank);
    host.barrier();
  };
  run_ranks(ranks.size, of_rank, ranks.per_node);
}

/// Runs a collective on all ranks and waits for it. Ranks come together first: on a shared GPU, a release of memory waits for
/// the collectives of all ranks, so a rank that still releases the memory of an earlier collective would never start this one.
void on_all(Rank& rank, const std::function<void()>& run) {
  rank.host.barrier();
  on_stream(rank.stream, run);
}

template <class T>
void require_same(const std::vector<T>& found, const std::vector<T>& expected, const std::string& what) {
  require(found.size() == expected.size(), what + ": size");
  for (std::size_t i = 0; i < found.size(); ++i) require_same_bits(found[i], expected[i], what, i);
}

/// Runs a collective of NCCL, and checks that it counts the bytes that fsdp-plan shows.
void count_bytes(Rank& rank, const CollectiveUse& use, const std::string& what, const std::function<void()>& run) {
  const auto sum = [](const auto& bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0}); };
  const std::uint64_t before = sum(rank.nccl.traffic().bytes_sent);
  on_all(rank, run);
  const RankTraffic planned = traffic_of_rank({use}, {rank.host.size(), 1}, rank.cluster, rank.host.rank());
  require(sum(rank.nccl.traffic().bytes_sent) - before == planned.total(), what + ": bytes sent");
}

/// Runs `on` on host numbers and on device numbers, and checks that the results are the same.
template <class T>
void require_same_result(Rank& rank, std::vector<T> values, const CollectiveUse& use, const std::string& what,
                         const std::function<void(Collectives&, Stream&, T*)>& on) {
  OnDevice<T> there(rank.device, rank.stream, values);
  on(rank.host, *rank.at_once, values.data());
  count_bytes(rank, use, what, [&] { on(rank.nccl, rank.stream, there.data()); });
  require_same(there.fetch(), values, what);
}

CollectiveUse all_reduce_of(std::size_t count, std::size_t element_bytes, std::size_t reduce_bytes) {
  return {Collective::all_reduce, GroupAxis::world, count, element_bytes, reduce_bytes, 1};
}

/// Whole and shard are in one array. The collective writes the shard, and leaves `whole` unspecified.
void check_canonical_reduce_scatter(Rank& rank, std::size_t count, Into into, DType reduce_dtype, bool in_place) {
  const std::string what = format("reduce_scatter of {} x {}{}{}", count, name_of(reduce_dtype),
                                  into == Into::add ? ", added" : "", in_place ? ", in place" : "");
  auto whole = elements<float>(rank.host.rank(), rank.ranks() * count);
  std::vector<float> shard(count, 0.3f);
  OnDevice<float> whole_there(rank.device, rank.stream, whole), shard_there(rank.device, rank.stream, shard);
  float* const to = in_place ? whole.data() + rank.me() * count : shard.data();
  float* const to_there = in_place ? whole_there.data() + rank.me() * count : shard_there.data();
  rank.host.reduce_scatter(*rank.at_once, whole.data(), to, count, into, reduce_dtype);
  count_bytes(rank, {Collective::reduce_scatter, GroupAxis::world, count, sizeof(float), size_of(reduce_dtype), 1}, what,
              [&] { rank.nccl.reduce_scatter(rank.stream, whole_there.data(), to_there, count, into, reduce_dtype); });
  std::vector<float> found = in_place ? whole_there.fetch() : shard_there.fetch();
  if (in_place)
    found = {found.begin() + static_cast<std::ptrdiff_t>(rank.me() * count),
             found.begin() + static_cast<std::ptrdiff_t>((rank.me() + 1) * count)};
  require_same(found, std::vector<float>(to, to + count), what);
}

void check_exact(Rank& rank, std::size_t count) {
  for (const DType type : {DType::f32, DType::bf16})
    require_same_result<std::uint16_t>(
        rank,
        [&] {
          const std::size_t n = count * size_of(type) / 2;
          std::vector<std::uint16_t> whole(rank.ranks() * n);
          for (std::size_t i = 0; i < n; ++i)
            whole[rank.me() * n + i] = static_cast<std::uint16_t>(element<std::int64_t>(rank.host.rank(), i));
          return whole;
        }(),
        {Collective::all_gather, GroupAxis::world, count, size_of(type), size_of(type), 1},
        format("all_gather of {} x {}", count, name_of(type)),
        [&](Collectives& on, Stream& stream, std::uint16_t* whole) {
          on.all_gather(stream, whole + rank.me() * count * size_of(type) / 2, whole, count, type);
        });
  require_same_result<std::int64_t>(
      rank, elements<std::int64_t>(rank.host.rank(), count), all_reduce_of(count, 8, 8),
      format("all_reduce of {} integers", count),
      [&](Collectives& on, Stream& stream, std::int64_t* data) { on.all_reduce(stream, data, count); });
  require_same_result<double>(rank, elements<double>(rank.host.rank(), count), all_reduce_of(count, 8, 8),
                              format("all_reduce of {} doubles", count),
                              [&](Collectives& on, Stream& stream, double* data) { on.all_reduce(stream, data, count); });
}

}  // namespace

namespace {

/// The bits and the bytes of all collectives with canonical sums.
void check_canonical_collectives(const Ranks& ranks, const std::vector<std::size_t>& counts) {
  on_gpus(ranks, {.sum_order = SumOrder::canonical}, [&](Rank& rank) {
    for (const std::size_t count : counts) {
      check_exact(rank, count);
      for (const DType reduce_dtype : {DType::f32, DType::bf16, DType::f16}) {
        check_canonical_reduce_scatter(rank, count, Into::overwrite, reduce_dtype, false);
        check_canonical_reduce_scatter(rank, count, Into::overwrite, reduce_dtype, true);
        check_canonical_reduce_scatter(rank, count, Into::add, reduce_dtype, false);
        require_same_result<float>(
            rank, elements<float>(rank.host.rank(), count), all_reduce_of(count, sizeof(float), size_of(reduce_dtype)),
            format("all_reduce of {} x {}", count, name_of(reduce_dtype)),
            [&](Collectives& on, Stream& stream, float* data) { on.all_reduce(stream, data, count, reduce_dtype); });
      }
    }
  });
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_network_between_nodes_is_named) {
  if (wants_real_gpu()) return;  // then it is another one
  const auto network_of = [](int per_node) {
    std::string network;
    run_ranks(
        4,
        [&](Communicator& host) {
          const auto device = make_device(Threads::of_own_gpu, static_cast<std::uint64_t>(host.rank()));
          const auto groups = library().connect(host, *device, {});
          const std::vector<std::string> all = host.gather(groups->network);
          for (const std::string& of_rank : all) require(of_rank == all[0], "all ranks know the network");
          if (host.rank() == 0) network = all[0];
        },
        per_node);
    return network;
  };
  BOOST_TEST(network_of(4) == "");
  ::setenv("NCCL_DEBUG", "WARN", 1);
  BOOST_TEST(network_of(2) == "");  // NCCL's lines go where the user wants them
  ::unsetenv("NCCL_DEBUG");
  BOOST_TEST(network_of(2) == "TCP (eth0)");
  for (const char* name : {"NCCL_DEBUG", "NCCL_DEBUG_FILE"}) BOOST_TEST(!std::getenv(name), name);
}

BOOST_AUTO_TEST_CASE(canonical_sums_are_those_of_the_cpu) {
  for (const int size : {1, 2, 3, 4, 8})
    if (size <= most_ranks()) check_canonical_collectives({size}, {0, 1, 2, 5, 17, 1000, 20011});
}

// Nodes of 2 and 4 ranks are summed first, nodes of 3 ranks are not. With little staging, and many nodes, sums are computed in
// pieces of several nodes.
BOOST_AUTO_TEST_CASE(canonical_sums_of_nodes_are_those_of_the_cpu) {
  for (const Ranks& ranks : {Ranks{4, 2}, {6, 2}, {8, 2}, {8, 4}, {6, 3}, {4, 1}})
    if (ranks.size <= most_ranks()) check_canonical_collectives(ranks, {0, 1, 2, 5, 17, 1000});
  if (most_ranks() >= 8) check_canonical_collectives({8, 2, 8 * 1024}, {1, 300, 5003});
}

BOOST_AUTO_TEST_CASE(what_is_longer_than_the_staging_goes_in_pieces) {
  on_gpus({2}, {.sum_order = SumOrder::canonical}, [](Rank& rank) {
    const std::size_t count = 300'001;
    require(rank.nccl.staging_bytes() > 0 && rank.nccl.staging_bytes() < 3 * count * 2, "more than one piece");
    check_canonical_reduce_scatter(rank, count, Into::add, DType::bf16, false);
  });
}

BOOST_AUTO_TEST_CASE(library_sums_are_near_and_repeatable) {
  std::atomic<std::size_t> other_bits = 0;
  for (int size = 1; size <= std::min(4, most_ranks()); ++size)
    on_gpus({size}, {.sum_order = SumOrder::library}, [&](Rank& rank) {
      for (const std::size_t count : {0, 1, 5, 1000}) {
        check_exact(rank, count);
        for (const DType reduce_dtype : {DType::f32, DType::bf16, DType::f16})
          for (const bool scatter : {false, true})
            for (const Into into : {Into::overwrite, Into::add}) {
              if (!scatter && into == Into::add) continue;
              const std::size_t total = scatter ? rank.ranks() * count : count, first = scatter ? rank.me() * count : 0;
              std::vector<float> found;
              for (int round = 0; round < 2; ++round) {
                OnDevice<float> whole(rank.device, rank.stream, elements<float>(rank.host.rank(), total));
                OnDevice<float> shard(rank.device, rank.stream, std::vector<float>(count, 0.3f));
                on_all(rank, [&] {
                  if (scatter)
                    rank.nccl.reduce_scatter(rank.stream, whole.data(), shard.data(), count, into, reduce_dtype);
                  else
                    rank.nccl.all_reduce(rank.stream, whole.data(), count, reduce_dtype);
                });
                const std::vector<float> now = scatter ? shard.fetch() : whole.fetch();
                if (round == 1) require_same(now, found, "the same sum again");
                found = now;
              }
              for (std::size_t i = 0; i < count; ++i) {
                const float sum = expected_sum<float>(rank.host.size(), first + i, reduce_dtype);
                const float expected = into == Into::add ? 0.3f + sum : sum;
                double most = 0.3;  // a bound of the rounded values
                for (int r = 0; r < rank.host.size(); ++r) most += std::abs(element<float>(r, first + i));
                require(std::abs(double(found[i]) - expected) <= 1e-6 * most, "a sum in the library's order");
                other_bits += found[i] != expected;
              }
            }
      }
    });
  if (!wants_real_gpu() && most_ranks() > 2) BOOST_TEST(other_bits > 100u);  // the double sums in another order
}

BOOST_AUTO_TEST_CASE(slots_are_registered_and_outlive_their_groups) {
  std::vector<Buffer> kept[2];
  on_gpus({2}, {}, [&](Rank& rank) {
    // Many allocations without a release, which would wait for the device: if memory is cleared too late, some stream writes it
    // before that, depending on the random delays.
    for (int round = 0; round < 20; ++round) {
      const Buffer& buffer = kept[rank.me()].emplace_back(rank.nccl.allocate(rank.device, 1000 * sizeof(float)));
      const MemoryView view(std::span(buffer.data(), buffer.bytes()), rank.stream);
      view.visit<float>(0, 1000, [](const float* x, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) require(x[i] == 0, "zeros");
      });
    }
    const Buffer released = rank.nccl.allocate(rank.device, 64);
  });
}

BOOST_AUTO_TEST_CASE(what_a_stream_does_before_a_collective_does_not_count_as_a_wait_for_ranks) {
  constexpr double timeout_s = 0.5;
  on_gpus({1}, {.timeout_s = timeout_s}, [](Rank& rank) {
    constexpr std::size_t n = std::size_t{1} << 20;
    OnDevice<float> x(rank.device, rank.stream, std::vector<float>(n, 1.0f));
    OnDevice<kernels::LossSum> total(rank.device, rank.stream, {kernels::LossSum{}});
    const auto work = [&] { kernels::add_losses(rank.stream, *total.data(), x.data(), n); };
    // As much work as takes longer than the longest wait, on this machine at this time.
    int done = 0;
    double seconds = 0;
    for (int times = 64; seconds < 1.5 * timeout_s; done += times, times *= 2) {
      const Timer timer;
      on_stream(rank.stream, [&] {
        for (int i = 0; i < times; ++i) work();
        rank.nccl.all_gather(rank.stream, x.data(), x.data(), n, DType::f32);
      });
      seconds = timer.seconds();
    }
    require(total.fetch()[0].value() == static_cast<double>(n) * done, "all work was done");
  });
}

BOOST_AUTO_TEST_CASE(a_mesh_chooses) {
  if (most_ranks() < 4 || shares_gpu()) return;
  const auto describe = [](Threads threads, const std::string& kind) {
    std::string text;
    run_ranks(4, [&](Communicator& world) {
      const auto device = make_device(threads, static_cast<std::uint64_t>(world.rank()));
      Mesh mesh = make_mesh(world, 2, 2);
      mesh.use_device(*device, {.kind = kind, .sum_staging_bytes = 1 << 20});
      require((mesh.device_groups != nullptr) == mesh.data_description.starts_with("NCCL "), "says what it has chosen");
      if (mesh.device_groups) {
        const auto stream = device->make_stream();
        OnDevice<float> one(*device, *stream, {1.0f + static_cast<float>(world.rank())});
        on_stream(*stream, [&] { mesh.data_along(GroupAxis::replicate).all_reduce(*stream, one.data(), 1, DType::f32); });
        require(one.fetch()[0] == static_cast<float>(world.rank() % 2 == 0 ? 4 : 6), "groups are those of the axes");
        on_stream(*stream, [&] { mesh.data_along(GroupAxis::shard).all_reduce(*stream, one.data(), 1, DType::f32); });
        require(one.fetch()[0] == 10, "groups are those of the axes");
      }
      if (world.rank() == 0) text = mesh.data_description;
      world.barrier();
    });
    return text;
  };
  BOOST_TEST(describe(Threads::of_own_gpu, "auto").starts_with("NCCL 2."));
  BOOST_TEST(describe(Threads::of_own_gpu, "nccl").ends_with("sums in canonical order"));
  BOOST_TEST(describe(Threads::of_own_gpu, "mpi") == "through host memory (as requested)");
  BOOST_TEST(describe(Threads::of_gpu, "auto") == "through host memory (ranks 0 and 1 share a GPU)");
  BOOST_TEST(describe(Threads::one, "auto") == "");
  const auto says = [](const std::string& part) {
    return [part](const UserError& error) { return std::string(error.what()).find(part) != std::string::npos; };
  };
  BOOST_CHECK_EXCEPTION(describe(Threads::of_gpu, "nccl"), UserError, says("ranks 0 and 1 share a GPU"));
  BOOST_CHECK_EXCEPTION(describe(Threads::one, "nccl"), UserError, says("it transfers only GPU memory"));
}

namespace {

/// Rank 0 gathers, queues `launches` kernels and a reduction that wait for the gather, and waits for them: CUDA blocks a host
/// that has queued about 1,024 launches, so the rank must see before that the gather hangs; and no communicator can be aborted
/// alone. Rank 1 comes after two seconds, or only throws then. Returns how many ranks have given up.
/// `stores`: the host also waits for a storage stream, which waits for the gather.
int ranks_that_give_up(int launches, bool comes, bool stores = false) {
  std::atomic<int> given_up = 0;
  const auto rank = [&](Communicator& host) {
    const auto device = make_device(Threads::of_own_gpu, static_cast<std::uint64_t>(host.rank()));
    const auto second = host.split(0, host.rank());
    const auto gathers = device->make_stream(StreamUse::communication),
               reductions = device->make_stream(StreamUse::communication), compute = device->make_stream(StreamUse::compute),
               storage = device->make_stream(StreamUse::storage);
    const auto groups = library().connect(host, *device, {.sum_order = SumOrder::library, .timeout_s = 0.3});
    const auto of_reductions = groups->make(host, 1 << 20), of_gathers = groups->make(*second, 0);
    const Buffer gathered = of_gathers->allocate(*device, 8), reduced = of_reductions->allocate(*device, 512);
    auto* const x = reinterpret_cast<float*>(gathered.data());
    auto* const y = reinterpret_cast<float*>(reduced.data());
    host.barrier();  // on a shared GPU, allocations wait for collectives
    if (host.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(2));
    if (host.rank() == 1 && !comes) throw UserError("rank 1 stops");
    try {
      of_gathers->all_gather(*gathers, x + host.rank(), x, 1, DType::f32);
      compute->wait(gathers->record());
      if (stores) storage->wait(gathers->record()), compute->wait(storage->record());
      reductions->wait(gathers->record());
      of_reductions->reduce_scatter(*reductions, y, y + 64, 4, Into::overwrite, DType::f32);
      for (int i = 0; i < launches; ++i) kernels::fill_zero(*compute, y + 100, 16);
      compute->synchronize();
    } catch (const std::exception&) {
      ++given_up;
    }
  };
  try {
    run_ranks(2, rank);
  } catch (const UserError&) {  // of rank 1
  }
  return given_up;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_hanging_collective_is_given_up_under_any_number_of_launches) {
  for (const int launches : {10, 900, 1500, 5000}) BOOST_TEST(ranks_that_give_up(launches, true) == 2, launches << " launches");
}

BOOST_AUTO_TEST_CASE(a_hanging_collective_is_given_up_while_the_host_waits_for_a_storage_stream) {
  BOOST_TEST(ranks_that_give_up(10, true, true) == 2);
}

BOOST_AUTO_TEST_CASE(a_rank_that_never_comes_does_not_hold_up_an_abort) { BOOST_TEST(ranks_that_give_up(1500, false) == 1); }

// Rank 0 aborts the collective; then rank 1 also aborts, because rank 0 no longer takes part.
BOOST_AUTO_TEST_CASE(a_rank_that_comes_too_late_is_not_waited_for) {
  std::atomic<int> given_up = 0;
  on_gpus({2}, {.timeout_s = 0.3}, [&](Rank& rank) {
    OnDevice<float> x(rank.device, rank.stream, std::vector<float>(2, 1.0f));
    rank.host.barrier();
    if (rank.me() == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
    try {
      on_stream(rank.stream, [&] { rank.nccl.all_gather(rank.stream, x.data() + rank.me(), x.data(), 1, DType::f32); });
    } catch (const CollectiveTimeout& timeout) {
      ++given_up;
      require(timeout.ranks.empty(), "nobody is named");
    }
  });
  BOOST_TEST(given_up == 2);
}

// Rank 1 does not come to the second gather, so that only an abort ends it; and the error is inside a group of messages: there
// is too little memory for the connection of the reductions.
BOOST_AUTO_TEST_CASE(an_error_inside_a_group_of_messages_does_not_hold_up_an_abort) {
  if (wants_real_gpu() || shares_gpu()) return;  // it would fill the memory of a GPU, or of other ranks
  std::atomic<bool> has_failed = false;
  const auto rank = [&](Communicator& host) {
    const auto device = make_device(Threads::of_own_gpu, static_cast<std::uint64_t>(host.rank()));
    const auto second = host.split(0, host.rank());
    const auto gathers = device->make_stream(StreamUse::communication),
               reductions = device->make_stream(StreamUse::communication);
    const auto groups = library().connect(host, *device, {.timeout_s = 0.3});
    const auto of_reductions = groups->make(host, 1 << 20), of_gathers = groups->make(*second, 0);
    const Buffer gathered = of_gathers->allocate(*device, 8), reduced = of_reductions->allocate(*device, 512);
    auto* const x = reinterpret_cast<float*>(gathered.data());
    auto* const y = reinterpret_cast<float*>(reduced.data());
    of_gathers->all_gather(*gathers, x + host.rank(), x, 1, DType::f32);
    gathers->synchronize();
    if (host.rank() == 1) {
      while (!has_failed) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      throw UserError("rank 1 stops");
    }
    std::vector<Buffer> rest;
    BOOST_CHECK_THROW(for (;;) rest.push_back(device->allocate(std::size_t{1} << 20)), UserError);
    of_gathers->all_gather(*gathers, x, x, 1, DType::f32);
    BOOST_CHECK_THROW(of_reductions->reduce_scatter(*reductions, y, y + 64, 4, Into::overwrite, DType::f32), CallError);
    has_failed = true;
    gathers->synchronize();
  };
  BOOST_CHECK_THROW(run_ranks(2, rank), std::exception);
}
