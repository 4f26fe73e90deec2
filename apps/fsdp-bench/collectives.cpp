#include "fsdp-bench/collectives.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "base/timer.hpp"
#include "comm/mesh.hpp"
#include "comm/mpi_calls.hpp"
#include "device/gpu_figures.hpp"
#include "files/json.hpp"
#include "fsdp-bench/support.hpp"
#include "machine/machine.hpp"

namespace fsdp {

namespace {

/// One collective, by this project and by MPI, and a plain copy of the same number of bytes.
struct Contest {
  const char* name;
  std::array<std::function<void()>, 3> calls;  // this project's collective, MPI's, the copy
  double touched_bytes;  // the bytes that a rank must read and write in the collective; the copy of n bytes touches 2 n
};

struct Seconds {
  double ours, mpi, copy;
};

std::size_t rounds_for(std::size_t bytes) { return std::clamp<std::size_t>((std::size_t{512} << 20) / bytes, 9, 201); }

/// Measures the three calls in alternation, for several rounds. Returns the median time of each call on its slowest rank. Short
/// calls are repeated within one measurement.
Seconds measure(const Contest& contest, std::size_t bytes, Group& comm) {
  const std::size_t at_once = bytes < std::size_t{1} << 20 ? 20 : 1;
  std::array<std::vector<double>, 3> times;
  for (std::size_t round = 0; round < rounds_for(bytes) + 1; ++round)
    for (std::size_t who = 0; who < times.size(); ++who) {
      comm.barrier();
      const Timer timer;
      for (std::size_t i = 0; i < at_once; ++i) contest.calls[who]();
      if (round > 0) times[who].push_back(timer.seconds() / static_cast<double>(at_once));
    }
  const auto figure = [&](std::size_t who) { return slowest(comm, median(times[who])); };
  return {figure(0), figure(1), figure(2)};
}

}  // namespace

std::string bench_collectives(std::size_t largest_bytes, bool json_wanted, Communicator& comm, Device& device, Stream& stream) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  // This project's collectives work on memory allocated by the communicator, as in training; MPI's on ordinary memory.
  const Buffer slot = comm.allocate(device, largest_bytes), own = device.allocate(largest_bytes),
               other = device.allocate(largest_bytes), shard = device.allocate(largest_bytes / ranks + sizeof(float));
  const auto floats = [](const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); };
  for (const Buffer* buffer : {&slot, &own, &other, &shard}) std::memset(buffer->data(), 0, buffer->bytes());

  nlohmann::json json = {{"ranks", comm.size()}, {"comm", comm.description()}};
  std::string text = format(
      "{}, fp32; ours, MPI's and a plain copy of the whole buffer on every rank take turns\n"
      "GB/s: whole buffer / time; of copy: what a rank must read and write per second, against the copy; ratio: MPI's time / "
      "ours\n"
      "{:<15} {:>9} {:>10} {:>8} {:>8} {:>10} {:>8} {:>7} {:>10}\n",
      comm.description(), "collective", "whole", "ours ms", "GB/s", "of copy", "MPI ms", "GB/s", "ratio", "copy ms");
  for (std::size_t bytes = std::size_t{4} << 10; bytes <= largest_bytes; bytes *= bytes < std::size_t{4} << 20 ? 16 : 4) {
    const std::size_t count = bytes / sizeof(float) / ranks, whole = count * ranks;
    const double w = static_cast<double>(whole * sizeof(float)), s = w / static_cast<double>(ranks);
    const auto copy = [&] { std::memcpy(other.data(), own.data(), whole * sizeof(float)); };
    const std::array<Contest, 3> contests = {
        {{"all-gather",
          {[&] { comm.all_gather(stream, floats(shard), floats(slot), count, DType::f32); },
           [&] { mpi_calls::all_gather(floats(shard), floats(own), count); }, copy},
          2 * w},
         {"reduce-scatter",
          {[&] { comm.reduce_scatter(stream, floats(slot), floats(shard), count, Into::overwrite, DType::f32); },
           [&] { mpi_calls::reduce_scatter(floats(own), floats(shard), count); }, copy},
          w + s},
         {"all-reduce",
          {[&] { comm.all_reduce(stream, floats(slot), whole, DType::f32); },
           [&] { mpi_calls::all_reduce(floats(own), whole); }, copy},
          w + s + 2 * (w - s)}}};
    for (const Contest& contest : contests) {
      const Seconds t = measure(contest, bytes, comm);
      const double of_copy = contest.touched_bytes / t.ours / (2 * w / t.copy);
      text += format("{:<15} {:>9} {:>10.3f} {:>8.2f} {:>7.0f}% {:>10.3f} {:>8.2f} {:>7.2f} {:>10.3f}\n", contest.name,
                     format_bytes(w), 1e3 * t.ours, w / t.ours / 1e9, 100 * of_copy, 1e3 * t.mpi, w / t.mpi / 1e9,
                     t.mpi / t.ours, 1e3 * t.copy);
      json["collectives"].push_back({{"name", contest.name},
                                     {"bytes", whole * sizeof(float)},
                                     {"ms", 1e3 * t.ours},
                                     {"gb_per_s", w / t.ours / 1e9},
                                     {"of_copy", of_copy},
                                     {"mpi_ms", 1e3 * t.mpi},
                                     {"mpi_gb_per_s", w / t.mpi / 1e9},
                                     {"ratio", t.mpi / t.ours},
                                     {"copy_ms", 1e3 * t.copy}});
    }
  }
  return json_wanted ? json_text(json) + "\n" : text;
}

std::string bench_collectives_of_gpus(const BenchOptions& options, Communicator& world, Device& device) {
  const auto ranks = static_cast<std::size_t>(world.size());
  Mesh mesh = make_mesh(world, world.size(), 1);
  mesh.use_device(device, options.comm, {options.largest_bytes, 0, 0});
  Collectives& data = mesh.data_along(GroupAxis::shard);
  const auto stream = device.make_stream(StreamUse::communication);
  const std::size_t largest = options.largest_bytes;
  const Buffer slot = data.allocate(device, largest), other = device.allocate(largest),
               shard = device.allocate(largest / ranks + sizeof(float));
  const auto floats = [](const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); };
  const GpuFigures* const figures = figures_of(device.description());

  nlohmann::json json = {{"ranks", world.size()}, {"device", device.description()}, {"comm", mesh.data_description}};
  std::string text = format(
      "{}; {} ranks, {}, fp32\n"
      "GB/s: whole buffer / time; sent: what a rank sends per second{}\n"
      "{:<15} {:>9} {:>10} {:>8} {:>8} {:>8} {:>10}\n",
      device.description(), world.size(), mesh.data_description,
      figures ? format(", and its share of the {:.0f} GB/s of its links in one direction", figures->link_bandwidth / 1e9)
              : std::string(),
      "collective", "whole", "ms", "GB/s", "sent", "of link", "copy ms");
  for (std::size_t bytes = std::size_t{4} << 10; bytes <= largest; bytes *= bytes < std::size_t{4} << 20 ? 16 : 4) {
    const std::size_t count = bytes / sizeof(float) / ranks, whole = count * ranks;
    const double w = static_cast<double>(whole * sizeof(float)), sent = w - w / static_cast<double>(ranks);
    const auto measure_on = [&](const std::function<void()>& call) {
      return time_collective(*stream, world, bytes < std::size_t{1} << 20 ? 20 : 5, 9, call);
    };
    const double copy = measure_on([&] { stream->copy(other.data(), slot.data(), whole * sizeof(float)); });
    struct Row {
      const char* name;
      double sent;
      std::function<void()> call;
    };
    const std::array<Row, 3> rows = {
        {{"all-gather", sent, [&] { data.all_gather(*stream, floats(shard), floats(slot), count, DType::f32); }},
         {"reduce-scatter", sent,
          [&] { data.reduce_scatter(*stream, floats(slot), floats(shard), count, Into::overwrite, DType::f32); }},
         {"all-reduce", 2 * sent, [&] { data.all_reduce(*stream, floats(slot), whole, DType::f32); }}}};
    for (const Row& row : rows) {
      const double time = measure_on(row.call);
      const double of_link = figures ? row.sent / time / figures->link_bandwidth : 0;
      text += format("{:<15} {:>9} {:>10.3f} {:>8.2f} {:>8.2f} {:>8} {:>10.3f}\n", row.name, format_bytes(w), 1e3 * time,
                     w / time / 1e9, row.sent / time / 1e9, figures ? format("{:.0f} %", 100 * of_link) : std::string("-"),
                     1e3 * copy);
      json["collectives"].push_back({{"name", row.name},
                                     {"bytes", whole * sizeof(float)},
                                     {"ms", 1e3 * time},
                                     {"gb_per_s", w / time / 1e9},
                                     {"sent_gb_per_s", row.sent / time / 1e9},
                                     {"of_link", figures ? nlohmann::json(of_link) : nlohmann::json()},
                                     {"copy_ms", 1e3 * copy}});
    }
  }
  world.barrier();
  return options.json ? json_text(json) + "\n" : text;
}

}  // namespace fsdp
