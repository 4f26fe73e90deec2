// Compares every collective with the same result computed on one rank: each rank makes all ranks' data from one seed. The
// checks throw, instead of using Boost.Test, because they run on several threads at once.
#pragma once

#include <array>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/element.hpp"
#include "base/format.hpp"
#include "base/philox.hpp"
#include "comm/communicator.hpp"
#include "comm/mesh.hpp"

namespace fsdp::test {

inline void require(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what);
}

/// Returns the argument of Backend::staging_bytes for a group on one node.
inline std::vector<int> one_node(int ranks) { return std::vector<int>(static_cast<std::size_t>(ranks), 0); }

/// Returns element i of rank r's data: exponents over a range of twenty, both signs, so that a sum in another order has other
/// bits.
template <class T>
T element(int rank, std::size_t i) {
  const auto word = philox({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(rank), 0, 0}, {20, 26});
  if constexpr (std::is_integral_v<T>) return static_cast<T>(std::uint64_t{word[0]} << 32 | word[1]);
  return static_cast<T>(std::ldexp(static_cast<double>(word[0]) - 0x1p31, static_cast<int>(word[1] % 20) - 40));
}

template <class T>
std::vector<T> elements(int rank, std::size_t n) {
  std::vector<T> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = element<T>(rank, i);
  return values;
}

template <class T>
T add(T a, T b) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  return a + b;
}

/// Sums level by level: neighbours are added, and the last of an odd number moves to the next level unchanged.
template <class T>
T canonical_sum(std::vector<T> values) {
  while (values.size() > 1) {
    std::vector<T> next;
    for (std::size_t i = 0; i + 1 < values.size(); i += 2) next.push_back(add(values[i], values[i + 1]));
    if (values.size() % 2 == 1) next.push_back(values.back());
    values = next;
  }
  return values[0];
}

/// Returns the sum over all ranks' element i, each rounded to `reduce_dtype`.
template <class T>
T expected_sum(int size, std::size_t i, DType reduce_dtype = DType::f32) {
  std::vector<T> values;
  for (int r = 0; r < size; ++r) {
    values.push_back(element<T>(r, i));
    if constexpr (std::is_same_v<T, float>)
      values.back() = with_element(reduce_dtype, [&]<class E>() { return static_cast<float>(E(values.back())); });
  }
  return canonical_sum(values);
}

template <class T>
void require_same_bits(const T& found, const T& expected, const std::string& what, std::size_t i) {
  if (std::memcmp(&found, &expected, sizeof(T)) != 0)
    throw std::runtime_error(format("{}: element {} is {} instead of {}", what, i, found, expected));
}

inline std::uint64_t bytes_sent(const Communicator& comm, Collective kind) {
  return comm.traffic().bytes_sent[static_cast<std::size_t>(kind)];
}

// Memory past the end of every destination, which must stay as it is.
constexpr std::size_t guard = 9;

inline void check_all_gather(Communicator& comm, Stream& stream, std::size_t count, DType type, bool in_place) {
  const std::string what = format("all_gather of {} x {}{}", count, name_of(type), in_place ? " in place" : "");
  const auto ranks = static_cast<std::size_t>(comm.size()), me = static_cast<std::size_t>(comm.rank());
  const std::size_t bytes = count * size_of(type);
  const auto byte_of = [](std::size_t rank, std::size_t i) {
    return static_cast<unsigned char>(element<std::int64_t>(static_cast<int>(rank), i));
  };
  std::vector<unsigned char> shard(bytes), whole(ranks * bytes + guard, 0x5a);
  for (std::size_t i = 0; i < bytes; ++i) shard[i] = byte_of(me, i);
  if (in_place) std::copy(shard.begin(), shard.end(), whole.begin() + static_cast<std::ptrdiff_t>(me * bytes));
  const std::uint64_t before = bytes_sent(comm, Collective::all_gather);
  comm.all_gather(stream, in_place ? whole.data() + me * bytes : shard.data(), whole.data(), count, type);
  require(bytes_sent(comm, Collective::all_gather) - before == (ranks - 1) * bytes, what + ": bytes sent");
  for (std::size_t r = 0; r < ranks; ++r)
    for (std::size_t i = 0; i < bytes; ++i) require_same_bits(whole[r * bytes + i], byte_of(r, i), what, r * bytes + i);
  for (std::size_t i = 0; i < guard; ++i) require(whole[ranks * bytes + i] == 0x5a, what + " writes past the end");
}

enum class Where { apart, in_place };

inline void check_reduce_scatter(Communicator& comm, Stream& stream, std::size_t count, Into into, Where where = Where::apart,
                                 DType reduce_dtype = DType::f32) {
  const std::string what = format("reduce_scatter of {} x {}{}{}", count, name_of(reduce_dtype),
                                  into == Into::add ? ", added" : "", where == Where::in_place ? ", in place" : "");
  const auto ranks = static_cast<std::size_t>(comm.size()), me = static_cast<std::size_t>(comm.rank());
  auto whole = elements<float>(comm.rank(), ranks * count);
  whole.resize(ranks * count + guard, 0.3f);
  std::vector<float> apart(count + guard, 0.3f);
  float* const shard = where == Where::in_place ? whole.data() + me * count : apart.data();
  const std::uint64_t before = bytes_sent(comm, Collective::reduce_scatter);
  comm.reduce_scatter(stream, whole.data(), shard, count, into, reduce_dtype);
  const std::size_t sent = bytes_sent(comm, Collective::reduce_scatter) - before;  // sums of nodes are sent in fp32
  require(sent >= (ranks - 1) * count * size_of(reduce_dtype) && sent <= (ranks - 1) * count * 4, what + ": bytes sent");
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = expected_sum<float>(comm.size(), me * count + i, reduce_dtype);
    require_same_bits(shard[i], into == Into::add ? 0.3f + sum : sum, what, i);
  }
  for (std::size_t i = 0; i < guard; ++i)
    require(apart[count + i] == 0.3f && whole[ranks * count + i] == 0.3f, what + " writes past the end");
}

template <class T>
void check_all_reduce(Communicator& comm, Stream& stream, std::size_t count, DType reduce_dtype = DType::f32) {
  const std::string what = format("all_reduce of {} elements of {} bytes, {}", count, sizeof(T), name_of(reduce_dtype));
  const auto ranks = static_cast<std::size_t>(comm.size());
  auto data = elements<T>(comm.rank(), count);
  data.resize(count + guard, T{3});
  const std::uint64_t before = bytes_sent(comm, Collective::all_reduce);
  if constexpr (std::is_same_v<T, float>)
    comm.all_reduce(stream, data.data(), count, reduce_dtype);
  else
    comm.all_reduce(stream, data.data(), count);
  const double sent = static_cast<double>(bytes_sent(comm, Collective::all_reduce) - before);
  const double optimal = 2.0 * static_cast<double>((ranks - 1) * count * sizeof(T)) / static_cast<double>(ranks);
  // Shares that differ by one element: the largest is sent to all others, the smallest is kept. By nodes, doubles and
  // integers take more.
  const double rounding = static_cast<double>(ranks * sizeof(T)), most = sizeof(T) == sizeof(float) ? optimal : 2 * optimal;
  const double least = optimal * static_cast<double>(size_of(reduce_dtype) + 4) / 8;  // half of the bytes are sums
  require(sent >= least - rounding && sent <= most + rounding, what + ": bytes sent");
  for (std::size_t i = 0; i < count; ++i) require_same_bits(data[i], expected_sum<T>(comm.size(), i, reduce_dtype), what, i);
  for (std::size_t i = 0; i < guard; ++i) require(data[count + i] == T{3}, what + " writes past the end");
}

inline void check_broadcast(Communicator& comm, Stream& stream, std::size_t bytes, int root) {
  const std::string what = format("broadcast of {} bytes from rank {}", bytes, root);
  std::vector<unsigned char> data(bytes + guard, 0x5a);
  const auto byte_at = [&](std::size_t i) { return static_cast<unsigned char>(element<std::int64_t>(root + 100, i)); };
  if (comm.rank() == root)
    for (std::size_t i = 0; i < bytes; ++i) data[i] = byte_at(i);
  const std::uint64_t before = bytes_sent(comm, Collective::broadcast);
  comm.broadcast(data.data(), bytes, root);
  for (std::size_t i = 0; i < bytes; ++i) require_same_bits(data[i], byte_at(i), what, i);
  for (std::size_t i = 0; i < guard; ++i) require(data[bytes + i] == 0x5a, what + " writes past the end");
  // All ranks together send the data once to every rank except the root.
  auto sent = static_cast<std::int64_t>(bytes_sent(comm, Collective::broadcast) - before);
  comm.all_reduce(stream, &sent, 1);
  require(sent == static_cast<std::int64_t>(bytes) * (comm.size() - 1), what + ": bytes sent");
}

/// Checks every collective at one count.
inline void check_count(Communicator& comm, Stream& stream, std::size_t count) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const bool in_place : {false, true}) check_all_gather(comm, stream, count, type, in_place);
  check_reduce_scatter(comm, stream, count, Into::overwrite);
  for (const DType reduce_dtype : {DType::f32, DType::bf16, DType::f16}) {
    check_reduce_scatter(comm, stream, count, Into::overwrite, Where::in_place, reduce_dtype);
    check_reduce_scatter(comm, stream, count, Into::add, Where::apart, reduce_dtype);
    check_all_reduce<float>(comm, stream, count, reduce_dtype);
  }
  check_all_reduce<double>(comm, stream, count);
  check_all_reduce<std::int64_t>(comm, stream, count);
  check_broadcast(comm, stream, count, comm.size() - 1);
  comm.barrier();
}

inline float* floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

/// Checks all collectives on `whole` (size() * count elements, plus a guard) and `shard`, in any kind of memory.
inline void check_buffers(Communicator& comm, Stream& stream, float* whole, float* shard, std::size_t count) {
  const auto ranks = static_cast<std::size_t>(comm.size()), me = static_cast<std::size_t>(comm.rank()), total = ranks * count;
  const std::string what = format("{} elements", count);
  whole[total] = 0.25f;
  for (int round = 0; round < 3; ++round) {  // the next round overwrites what the last one read
    for (std::size_t i = 0; i < total; ++i) whole[i] = element<float>(comm.rank(), i + static_cast<std::size_t>(round));
    comm.reduce_scatter(stream, whole, shard, count, Into::overwrite, DType::f32);
    for (std::size_t i = 0; i < count; ++i)
      require_same_bits(shard[i], expected_sum<float>(comm.size(), me * count + i + static_cast<std::size_t>(round)),
                        "reduce_scatter of " + what, i);
    for (std::size_t i = 0; i < total; ++i) whole[i] = element<float>(comm.rank(), i);
    comm.reduce_scatter(stream, whole, whole + me * count, count, Into::overwrite, DType::f32);
    for (std::size_t i = 0; i < count; ++i)
      require_same_bits(whole[me * count + i], expected_sum<float>(comm.size(), me * count + i),
                        "reduce_scatter in place of " + what, i);
    for (std::size_t i = 0; i < total; ++i) whole[i] = -1;
    comm.all_gather(stream, shard, whole, count, DType::f32);
    for (std::size_t i = 0; i < total; ++i)
      require_same_bits(whole[i], expected_sum<float>(comm.size(), i + static_cast<std::size_t>(round)),
                        "all_gather of " + what, i);
    for (std::size_t i = 0; i < total; ++i) whole[i] = element<float>(comm.rank(), i);
    comm.all_reduce(stream, whole, total, DType::f32);
    for (std::size_t i = 0; i < total; ++i)
      require_same_bits(whole[i], expected_sum<float>(comm.size(), i), "all_reduce of " + what, i);
    for (const DType reduce_dtype : {DType::bf16, DType::f16}) {
      for (std::size_t i = 0; i < total; ++i) whole[i] = element<float>(comm.rank(), i);
      comm.reduce_scatter(stream, whole, shard, count, Into::overwrite, reduce_dtype);
      for (std::size_t i = 0; i < count; ++i)
        require_same_bits(shard[i], expected_sum<float>(comm.size(), me * count + i, reduce_dtype),
                          "16-bit reduce_scatter of " + what, i);
      for (std::size_t i = 0; i < total; ++i) whole[i] = element<float>(comm.rank(), i);
      comm.all_reduce(stream, whole, total, reduce_dtype);
      for (std::size_t i = 0; i < total; ++i)
        require_same_bits(whole[i], expected_sum<float>(comm.size(), i, reduce_dtype), "16-bit all_reduce of " + what, i);
    }
    for (std::size_t i = 0; i < total; ++i) whole[i] = expected_sum<float>(comm.size(), i);
    const int root = round % comm.size();
    if (comm.rank() != root) whole[0] = whole[total - 1] = -1;
    comm.broadcast(whole, total * sizeof(float), root);
    for (std::size_t i = 0; i < total; ++i)
      require_same_bits(whole[i], expected_sum<float>(comm.size(), i), "broadcast of " + what, i);
  }
  require(whole[total] == 0.25f, "a collective of " + what + " writes past the end");
}

/// Checks the result of a split: these ranks of `comm`, in this order, and a working group.
inline void check_group(Communicator& part, Communicator& comm, Stream& stream, const std::vector<int>& members) {
  require(part.size() == static_cast<int>(members.size()), "size of a split group");
  require(members.at(static_cast<std::size_t>(part.rank())) == comm.rank(), "place in a split group");
  std::vector<std::int64_t> found(members.size());
  const std::int64_t mine = comm.rank();
  static_assert(sizeof mine == 2 * 4);
  part.all_gather(stream, &mine, found.data(), 2, DType::f32);
  for (std::size_t i = 0; i < members.size(); ++i) require(found[i] == members[i], "members of a split group");
  check_count(part, stream, 17);
}

inline void check_splits(Communicator& comm, Stream& stream) {
  const int size = comm.size(), rank = comm.rank();
  {
    // Odd and even ranks, backwards.
    const auto part = comm.split(rank % 2, -rank);
    std::vector<int> members;
    for (int r = size - 1; r >= 0; --r)
      if (r % 2 == rank % 2) members.push_back(r);
    check_group(*part, comm, stream, members);
    // A split of a split; both groups still work.
    const auto alone = part->split(part->rank(), 0);
    check_group(*alone, comm, stream, {rank});
    check_count(*part, stream, 5);
  }
  for (int shard = 1; shard <= size; ++shard) {
    if (size % shard != 0) continue;
    const Mesh mesh = make_mesh(comm, shard, size / shard);
    std::vector<int> shards, replicas;
    for (int r = 0; r < size; ++r) {
      if (r / shard == rank / shard) shards.push_back(r);
      if (r % shard == rank % shard) replicas.push_back(r);
    }
    check_group(mesh.shard(), comm, stream, shards);
    check_group(mesh.replicate(), comm, stream, replicas);
  }
  check_count(comm, stream, 5);
}

/// Checks the operations of a group on host values.
inline void check_host_values(Group& comm) {
  require(comm.all(true), "all agree");
  for (int r = 0; r < comm.size(); ++r) require(!comm.all(comm.rank() != r), "one dissents");
  require(!comm.all(false), "none agrees");
  const int n = comm.size(), r = comm.rank();
  require(comm.sum(std::int64_t{r + 1}) == n * (n + 1) / 2, "a sum of integers");
  require(comm.sum(0.5 * (r + 1)) == 0.25 * n * (n + 1), "a sum of doubles");
  const std::vector<std::int64_t> pairs = comm.gather(std::array<std::int64_t, 2>{r, -r});
  const std::vector<double> halves = comm.gather(0.5 * r);
  const std::vector<std::string> texts = comm.gather(std::string(static_cast<std::size_t>(3 * r), 'x'));  // of 0, 3, 6 bytes
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(n); ++rank) {
    const auto number = static_cast<std::int64_t>(rank);
    require(pairs[2 * rank] == number && pairs[2 * rank + 1] == -number, "every rank's numbers");
    require(halves[rank] == 0.5 * static_cast<double>(rank), "every rank's number");
    require(texts[rank] == std::string(3 * rank, 'x'), "every rank's text");
  }
  std::vector<std::int64_t> row = {r, -1};
  comm.sum(row);
  require(row[0] == n * (n - 1) / 2 && row[1] == -n, "a sum of a row");
  std::array<std::size_t, 2> most = {static_cast<std::size_t>(r), static_cast<std::size_t>(n - r)};
  comm.max(most);
  require(most[0] == static_cast<std::size_t>(n - 1) && most[1] == static_cast<std::size_t>(n), "the largest of each");
  require(comm.max(std::size_t{7}) == 7, "the largest of all alike");
  require(comm.min(static_cast<std::size_t>(comm.size() - comm.rank()) + 4) == 5, "the smallest");
  require(comm.min(~std::size_t{0}) == ~std::size_t{0} / 2, "the largest number");
}

}  // namespace fsdp::test
