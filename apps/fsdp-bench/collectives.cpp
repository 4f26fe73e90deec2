#include "fsdp-bench/bench.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "base/timer.hpp"
#include "comm/agree.hpp"
#include "comm/mesh.hpp"
#include "comm/mpi_calls.hpp"
#include "device/gpu_figures.hpp"
#include "device/memory_view.hpp"
#include "files/json.hpp"
#include "machine/machine.hpp"
#include "plan/traffic.hpp"

namespace fsdp {

namespace {

/// One collective, by this project and, on CPUs, by MPI.
struct Contest {
  const char* name;
  std::function<void()> ours, mpis;
  double sent_bytes, touched_bytes;  // those that a rank sends, and those that it must read and write
};

/// Measures the calls in alternation, for several rounds after one that does not count. Returns the median time of each call on
/// its slowest rank. A call is repeated `at_once` times within one measurement.
std::vector<double> measure(const std::vector<std::function<void()>>& calls, std::size_t at_once, std::size_t rounds,
                            Stream& stream, Group& comm) {
  std::vector<std::vector<double>> times(calls.size());
  for (std::size_t round = 0; round <= rounds; ++round)
    for (std::size_t who = 0; who < calls.size(); ++who) {
      comm.barrier();
      const Timer timer;
      for (std::size_t i = 0; i < at_once; ++i) calls[who]();
      stream.synchronize();
      if (round > 0) times[who].push_back(timer.seconds() / static_cast<double>(at_once));
    }
  std::vector<double> medians;
  for (const std::vector<double>& of_call : times) medians.push_back(slowest(comm, median(of_call)));
  return medians;
}

/// Gathers bytes that differ from rank to rank. Throws RunError if this rank has received other ones: transports can be fast
/// and wrong (NCCL's LL128 with GPUDirect on Slingshot: NVIDIA/nccl issue 2001).
void require_right_gather(const Operation& op, const Mesh& mesh, std::byte* whole, const Buffer& part, Stream& stream) {
  const auto byte_of = [](std::size_t rank, std::size_t i) { return static_cast<std::byte>(i * 131 + i / 251 + rank * 17); };
  const Group& group = mesh.along(op.group);
  const std::size_t bytes = op.count * size_of(op.type), all = bytes * static_cast<std::size_t>(group.size());
  std::vector<std::byte> mine(bytes);
  for (std::size_t i = 0; i < bytes; ++i) mine[i] = byte_of(static_cast<std::size_t>(group.rank()), i);
  MemoryView({part.data(), bytes}, stream).write(0, mine);
  on_stream(stream, [&] { queue_collective(op, mesh, whole, part.data(), stream); });
  std::size_t at = 0, wrong = 0;
  MemoryView({whole, all}, stream).visit<std::byte>(0, all, [&](const std::byte* found, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i, ++at) wrong += found[i] != byte_of(at / bytes, at % bytes);
  });
  if (wrong > 0)
    throw RunError(format("an all-gather of {} has given {} wrong bytes; do not train with these settings",
                          format_bytes(static_cast<double>(all)), wrong));
}

}  // namespace

std::string bench_collectives_of_update(const BenchOptions& options, Communicator& world, Device& device) {
  const ShardingOptions sharding = options_for(device.kind(), options.sharding);
  const TransformerConfig config = agree(world, [&] { return config_of(options); });
  const ShardedModel sharded(config, sharding, world, traits_for(options, config, sharding, device, world));
  Mesh mesh = make_mesh(world, sharded.mesh().shape.shard, sharded.mesh().shape.replicate);
  mesh.use_device(device, options.comm, largest_sums(sharded.plan(), mesh.shape));
  const auto ranks_of = [&](const Operation& op) { return static_cast<std::size_t>(mesh.along(op.group).size()); };

  // Operations with the same collective of the same group. The order is the same on all ranks.
  struct Use {
    const Operation* op = nullptr;
    std::uint64_t calls = 0;
  };
  std::map<CollectiveUse, Use> uses;
  std::map<Collectives*, std::size_t> largest;  // the bytes of a group's largest buffer
  std::size_t largest_part = 0;
  std::vector<Collectives*> groups;  // in the order of their first use
  for (const Operation& op : sharded.plan().update) {
    const auto use = collective_of(op);
    if (!use || ranks_of(op) == 1) continue;
    Use& of_kind = uses[*use];
    if (of_kind.calls++ == 0) of_kind.op = &op;
    Collectives& group = group_of(op, mesh);
    if (largest.emplace(&group, 0).second) groups.push_back(&group);
    largest[&group] = std::max(largest[&group], use->buffer_bytes(ranks_of(op)));
    largest_part = std::max(largest_part, op.count * size_of(op.type));
  }
  std::map<Collectives*, Buffer> memory;  // allocated by the communicator, as in training
  for (Collectives* const group : groups) memory[group] = group->allocate(device, largest[group]);
  const Buffer part = agree(world, [&] { return device.allocate(std::max<std::size_t>(largest_part, 1)); });
  const auto stream = device.make_stream(is_host(device.kind()) ? StreamUse::compute : StreamUse::communication);

  const std::string connection = is_host(device.kind()) ? world.description() : mesh.data_description;
  nlohmann::json json = {{"arch", model_of(options)},      {"ranks", world.size()}, {"strategy", options.sharding.strategy},
                         {"device", device.description()}, {"comm", connection},    {"collectives", nlohmann::json::array()}};
  std::vector<std::vector<std::string>> rows = {{"collective", "group", "whole", "ms", "GB/s", "calls", "ms/update"}};
  double update_s = 0;
  for (const auto& [use, of_kind] : uses) {
    const Operation& op = *of_kind.op;
    const double whole = static_cast<double>(use.buffer_bytes(ranks_of(op)));
    const std::string group = format("{} of {}", name_of(op.group), ranks_of(op));
    const std::size_t at_once = whole < 1 << 20 ? 20 : 2;
    std::byte* const data = memory.at(&group_of(op, mesh)).data();
    const double seconds = time_collective(*stream, world, at_once, std::max<std::size_t>(options.steps, 3),
                                           [&] { queue_collective(op, mesh, data, part.data(), *stream); });
    if (*op.kind->collective == Collective::all_gather)
      agree(world, [&] { require_right_gather(op, mesh, data, part, *stream); });
    const double all_calls = seconds * static_cast<double>(of_kind.calls);
    update_s += all_calls;
    rows.push_back({std::string(op.kind->name), group, format_bytes(whole), format("{:.3f}", 1e3 * seconds),
                    format("{:.2f}", whole / seconds / 1e9), format("{}", of_kind.calls), format("{:.2f}", 1e3 * all_calls)});
    json["collectives"].push_back({{"name", op.kind->name},
                                   {"group", group},
                                   {"bytes", use.buffer_bytes(ranks_of(op))},
                                   {"calls", of_kind.calls},
                                   {"ms", 1e3 * seconds}});
  }
  world.barrier();
  json["update_ms"] = 1e3 * update_s;
  return options.json
             ? json_text(json) + "\n"
             : format("{}, {} ranks, {}; {}\nthe collectives of an update, one after another; GB/s: whole buffer / time\n",
                      model_of(options), world.size(), options.sharding.strategy, connection) +
                   lay_out(rows, 2) + format("together {:.1f} ms for an update\n", 1e3 * update_s);
}

std::string bench_collectives(const BenchOptions& options, Communicator& world, Device& device) {
  const bool on_gpu = !is_host(device.kind());
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::size_t largest = options.largest_bytes;
  Mesh mesh = make_mesh(world, world.size(), 1);
  if (on_gpu) mesh.use_device(device, options.comm, {largest, 0, 0});
  Collectives& data = on_gpu ? mesh.data_along(GroupAxis::shard) : world;
  const auto stream = device.make_stream(on_gpu ? StreamUse::communication : StreamUse::compute);
  // This project's collectives work on memory allocated by the communicator, as in training; MPI's on ordinary memory.
  const Buffer slot = data.allocate(device, largest), own = device.allocate(largest), other = device.allocate(largest),
               shard = device.allocate(largest / ranks + sizeof(float));
  const auto floats = [](const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); };
  if (!on_gpu)
    for (const Buffer* buffer : {&slot, &own, &other, &shard}) std::memset(buffer->data(), 0, buffer->bytes());

  const GpuFigures* const figures = on_gpu ? figures_of(device.description()) : nullptr;
  const std::string connection = on_gpu ? mesh.data_description : world.description();
  nlohmann::json json = {{"ranks", world.size()}, {"device", device.description()}, {"comm", connection}};
  const std::string text =
      on_gpu ? format("{}; {} ranks, {}, fp32\nGB/s: whole buffer / time; sent: what a rank sends per second{}\n",
                      device.description(), world.size(), connection,
                      figures ? format(", and its share of the {:.0f} GB/s of its links in one direction",
                                       figures->link_bandwidth / 1e9)
                              : std::string())
             : format(
                   "{}, fp32; ours, MPI's and a plain copy of the whole buffer on every rank take turns\n"
                   "GB/s: whole buffer / time; of copy: what a rank must read and write per second, against the copy; ratio: "
                   "MPI's time / ours\n",
                   connection);
  using Cells = std::vector<std::string>;
  std::vector<Cells> rows = {
      on_gpu ? Cells{"collective", "whole", "ms", "GB/s", "sent", "of link", "copy ms"}
             : Cells{"collective", "whole", "ours ms", "GB/s", "of copy", "MPI ms", "GB/s", "ratio", "copy ms"}};
  for (std::size_t bytes = std::size_t{4} << 10; bytes <= largest; bytes *= bytes < std::size_t{4} << 20 ? 16 : 4) {
    const std::size_t count = bytes / sizeof(float) / ranks, whole = count * ranks;
    const double w = static_cast<double>(whole * sizeof(float)), s = w / static_cast<double>(ranks);
    const std::size_t at_once = bytes < std::size_t{1} << 20 ? 20
                                : on_gpu                     ? 5
                                                             : 1,
                      rounds = on_gpu ? 9 : std::clamp<std::size_t>((std::size_t{512} << 20) / bytes, 9, 201);
    const Contest contests[] = {
        {"all-gather", [&] { data.all_gather(*stream, floats(shard), floats(slot), count, DType::f32); },
         [&] { mpi_calls::all_gather(floats(shard), floats(own), count); }, w - s, 2 * w},
        {"reduce-scatter",
         [&] { data.reduce_scatter(*stream, floats(slot), floats(shard), count, Into::overwrite, DType::f32); },
         [&] { mpi_calls::reduce_scatter(floats(own), floats(shard), count); }, w - s, w + s},
        {"all-reduce", [&] { data.all_reduce(*stream, floats(slot), whole, DType::f32); },
         [&] { mpi_calls::all_reduce(floats(own), whole); }, 2 * (w - s), w + s + 2 * (w - s)}};
    for (const Contest& contest : contests) {
      std::vector<std::function<void()>> calls = {contest.ours,
                                                  [&] { stream->copy(other.data(), own.data(), whole * sizeof(float)); }};
      if (!on_gpu) calls.push_back(contest.mpis);
      const std::vector<double> t = measure(calls, at_once, rounds, *stream, world);
      const double ours = t[0], copy = t[1];
      Cells& row = rows.emplace_back(
          Cells{contest.name, format_bytes(w), format("{:.3f}", 1e3 * ours), format("{:.2f}", w / ours / 1e9)});
      nlohmann::json figure = {{"name", contest.name},
                               {"bytes", whole * sizeof(float)},
                               {"ms", 1e3 * ours},
                               {"gb_per_s", w / ours / 1e9},
                               {"copy_ms", 1e3 * copy}};
      if (on_gpu) {
        const double of_link = figures ? contest.sent_bytes / ours / figures->link_bandwidth : 0;
        row.push_back(format("{:.2f}", contest.sent_bytes / ours / 1e9));
        row.push_back(figures ? format("{:.0f} %", 100 * of_link) : "-");
        figure["sent_gb_per_s"] = contest.sent_bytes / ours / 1e9;
        figure["of_link"] = figures ? nlohmann::json(of_link) : nlohmann::json();
      } else {
        const double mpi = t[2], of_copy = contest.touched_bytes / ours / (2 * w / copy);
        for (const std::string& cell : {format("{:.0f} %", 100 * of_copy), format("{:.3f}", 1e3 * mpi),
                                        format("{:.2f}", w / mpi / 1e9), format("{:.2f}", mpi / ours)})
          row.push_back(cell);
        figure["of_copy"] = of_copy, figure["mpi_ms"] = 1e3 * mpi, figure["mpi_gb_per_s"] = w / mpi / 1e9;
        figure["ratio"] = mpi / ours;
      }
      row.push_back(format("{:.3f}", 1e3 * copy));
      json["collectives"].push_back(std::move(figure));
    }
  }
  world.barrier();
  return options.json ? json_text(json) + "\n" : text + lay_out(rows, 2);
}

}  // namespace fsdp
