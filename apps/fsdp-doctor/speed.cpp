#include "fsdp-doctor/speed.hpp"

#include <time.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>

#include "base/format.hpp"
#include "base/timer.hpp"
#include "comm/agree.hpp"
#include "files/input_file.hpp"
#include "fsdp-doctor/machine.hpp"
#include "fsdp-doctor/storage.hpp"
#include "kernels/threads.hpp"
#include "machine/measure.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

/// Returns the text of a file of the system without its line end; empty if it cannot be read.
std::string line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}
double number_of(const fs::path& path) { return std::max(0.0, std::atof(line_of(path).c_str())); }

/// Returns the median of `value` over the other nodes; 0 if there is no other.
template <class Node, class Value>
double median_of_others(const std::vector<Node>& nodes, std::size_t i, const Value& value) {
  std::vector<double> others;
  for (std::size_t j = 0; j < nodes.size(); ++j)
    if (j != i) others.push_back(static_cast<double>(value(nodes[j])));
  return others.empty() ? 0 : median(others);
}

std::string format_rate(double bytes_per_s) {
  return bytes_per_s < 1e9 ? format("{:.3g} MB/s", bytes_per_s / 1e6) : format("{:.3g} GB/s", bytes_per_s / 1e9);
}
std::string format_flops(double flops) {
  return flops < 1e12 ? format("{:.3g} GFLOP/s", flops / 1e9) : format("{:.3g} TFLOP/s", flops / 1e12);
}

/// The time in which a processor has run this thread.
double processor_seconds() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

/// Calls `measure`, which returns the seconds that it takes with this many bytes, with growing sizes until it takes `seconds`
/// or `most` bytes. `measure` must return the same time on all ranks that take part. Returns the last size.
std::size_t grow(std::size_t least, std::size_t most, double seconds, const std::function<double(std::size_t)>& measure) {
  std::size_t bytes = least;
  while (measure(bytes) < seconds && bytes * 4 <= most) bytes *= 4;
  return bytes;
}

}  // namespace

Finding judge_compute(const std::vector<NodeSpeed>& all, DType type, bool on_gpu) {
  constexpr double slow = 0.7;  // equal nodes differ by a tenth; half of the cores are half of the speed
  const auto by_flops = [](const NodeSpeed& a, const NodeSpeed& b) { return a.flops < b.flops; };
  const auto [least, most] = std::minmax_element(all.begin(), all.end(), by_flops);
  Finding finding{.text = format("a rank multiplies at {}{} ({}, {})",
                                 least->flops < 0.95 * most->flops ? format_flops(least->flops) + " to " : std::string(),
                                 format_flops(most->flops), name_of(type),
                                 on_gpu ? least->processor : plural(least->threads, "thread"))};
  std::vector<std::string> problems;
  for (const NodeSpeed& node : all) {
    finding.figures[node.node] = {{"flops", node.flops}, {"threads", node.threads}, {"busy", node.busy}, {"load", node.load}};
    std::vector<NodeSpeed> equal;  // nodes with the same processor
    std::copy_if(all.begin(), all.end(), std::back_inserter(equal),
                 [&](const auto& other) { return other.processor == node.processor; });
    const auto at = std::find_if(equal.begin(), equal.end(), [&](const auto& other) { return other.node == node.node; });
    const auto usual = [&](auto member) {
      return median_of_others(equal, static_cast<std::size_t>(at - equal.begin()),
                              [&](const auto& other) { return other.*member; });
    };
    const double flops = usual(&NodeSpeed::flops), threads = usual(&NodeSpeed::threads), busy = usual(&NodeSpeed::busy);
    // A rank that shares its processors with others reaches its best speed only by chance: that is compared only if it does
    // not.
    const bool few_threads = static_cast<double>(node.threads) < slow * threads,
               is_interrupted = !on_gpu && node.busy < slow * busy && busy > slow,
               is_slow = node.flops < slow * flops && (on_gpu || node.busy > slow);
    if (!few_threads && !is_interrupted && !is_slow) continue;
    std::string problem = format("{} multiplies at {:.0f} % of the others' median ({} a rank, not {})", node.node,
                                 100 * node.flops / flops, format_flops(node.flops), format_flops(flops));
    if (on_gpu) {
      finding.advice = "look there for a limit of power or heat, and for other programs (nvidia-smi -q -d PERFORMANCE,CLOCK)";
    } else if (few_threads) {
      problem = format("a rank on {} has {}, elsewhere {:.0f}: it multiplies at {}, elsewhere at {}", node.node,
                       plural(node.threads, "thread"), threads, format_flops(node.flops), format_flops(flops));
      finding.advice = format("give ranks there as many cores as elsewhere (srun --cpus-per-task={:.0f})", threads);
    } else if (is_interrupted) {
      problem += format(": its processors ran a rank for {:.0f} % of the time, elsewhere {:.0f} %; its load was {:.1f}",
                        100 * node.busy, 100 * busy, node.load);
      finding.advice =
          "end other programs there (top), ask for whole nodes (sbatch --exclusive), and look for a limit of its control group "
          "(cpu.max)";
    } else {
      problem += ", although nothing interrupted it";
      finding.advice = "look there for a limit of power or heat (turbostat, cpupower frequency-info)";
    }
    problems.push_back(problem);
    finding.advice += format(", or leave it out (sbatch --exclude={}): all ranks wait for the slowest", node.node);
  }
  if (problems.empty()) return finding;
  finding.status = Status::warning;
  finding.text = format("{}", fmt::join(problems, "; "));
  return finding;
}

std::vector<Interface> interfaces_of(const fs::path& proc_net_dev, const fs::path& sys) {
  std::vector<Interface> found;
  std::error_code error;
  std::ifstream table(proc_net_dev);  // "eth0: ", eight numbers of what was received, the bytes sent, ...
  for (std::string line; std::getline(table, line);) {
    const std::size_t colon = line.find(':');
    std::istringstream words(colon == line.npos ? std::string() : line.replace(colon, 1, " "));
    std::string name;
    std::array<double, 9> numbers{};
    words >> name;
    for (double& number : numbers) words >> number;
    if (!words || name == "lo") continue;
    // Interfaces without hardware, such as veth, state rates that nothing limits.
    const fs::path about = sys / "net" / name;
    found.push_back({name, numbers.back(), fs::exists(about / "device", error) ? number_of(about / "speed") * 1e6 / 8 : 0});
  }
  for (const auto& device : fs::directory_iterator(sys / "infiniband", error))
    for (const auto& port : fs::directory_iterator(device.path() / "ports", error)) {
      if (line_of(port.path() / "state").find("ACTIVE") == std::string::npos) continue;
      found.push_back({device.path().filename().string(), 4 * number_of(port.path() / "counters/port_xmit_data"),  // words
                       number_of(port.path() / "rate") * 1e9 / 8, true});
    }
  return found;
}

Interface carrier_of(const std::vector<Interface>& before, const std::vector<Interface>& after, double bytes) {
  // A bond and the interface below it send the same bytes: the interface is preferred, which knows its rate.
  const auto weight = [](const Interface& interface) { return interface.bytes_sent * (interface.rate > 0 ? 1.1 : 1); };
  Interface most;
  for (Interface now : after)
    for (const Interface& old : before)
      if (old.name == now.name && old.is_rdma == now.is_rdma) {
        now.bytes_sent -= old.bytes_sent;
        if (now.bytes_sent >= 0.2 * bytes && weight(now) > weight(most)) most = now;
      }
  return most;
}

Finding judge_network(const std::vector<NodeLink>& nodes) {
  constexpr double of_others = 0.5, of_link = 0.25, half_of_gigabit_ethernet = 60e6;
  Finding finding;
  std::vector<std::string> names, ways, below, idle, unused, problems, advice;
  double least = nodes[0].rate, latency = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodeLink& node = nodes[i];
    const Interface& by = node.carrier;
    names.push_back(node.node);
    ways.push_back(by.name.empty() ? "what moved the messages is unknown"
                                   : format("by {} over {}{}", by.is_rdma ? "RDMA" : "TCP", by.name,
                                            by.rate > 0 ? format(", {:.3g} Gbit/s", 8e-9 * by.rate) : ""));
    finding.figures[node.node] = {{"bytes_per_s", node.rate},
                                  {"latency_s", node.latency},
                                  {"interface", by.name},
                                  {"rdma", by.is_rdma},
                                  {"link_bytes_per_s", by.rate > 0 ? nlohmann::json(by.rate) : nlohmann::json()}};
    least = std::min(least, node.rate), latency = std::max(latency, node.latency);
    const double usual = median_of_others(nodes, i, [](const NodeLink& other) { return other.rate; });
    if (nodes.size() > 2 && node.rate < of_others * usual) {
      problems.push_back(format("{} reaches {:.0f} % of the others' median ({} instead of {})", node.node,
                                100 * node.rate / usual, format_rate(node.rate), format_rate(usual)));
      advice.push_back(
          format("check cable, port and limits of {} (ethtool, ibstat, tc qdisc), or leave it out (sbatch "
                 "--exclude={})",
                 node.node, node.node));
    } else if (node.rate < half_of_gigabit_ethernet) {
      below.push_back(node.node);
    } else if (node.rate < of_link * by.rate) {
      idle.push_back(node.node);
    }
    if (!node.idle_rdma.empty()) unused.push_back(format("{} of {}", node.idle_rdma, node.node));
  }
  if (!below.empty()) {
    problems.push_back(format("the network of {} is slower than Gigabit Ethernet", list_of(below)));
    advice.push_back(
        "look for a limit (ethtool, tc qdisc), for other traffic, or for a faster interface that MPI did not choose (Open MPI: "
        "--mca btl_tcp_if_include; UCX_NET_DEVICES; MPICH: FI_TCP_IFACE)");
  }
  if (!idle.empty()) {
    problems.push_back(format("that is less than a quarter of the link's rate on {}", list_of(idle)));
    advice.push_back(
        "start more ranks on each node, as one TCP connection may not fill a fast link, or look for other traffic");
  }
  if (!unused.empty()) {
    problems.push_back(format("{} can do RDMA, and MPI does not use it", list_of(unused)));
    advice.push_back("use an MPI with UCX or libfabric (Open MPI: --mca pml ucx; MPICH: FI_PROVIDER=verbs)");
  }
  finding.text = format("each node sends and receives at least {} at once, and a message takes {:.0f} us ({})",
                        format_rate(least), 1e6 * latency, by_value(names, ways));
  if (problems.empty()) return finding;
  finding.status = Status::warning;
  finding.text += format("; {}", fmt::join(problems, "; "));
  finding.advice = format("{}", fmt::join(advice, "; "));
  return finding;
}

Finding judge_files(const FileRates& rates) {
  // Parameters and two states of AdamW take 12 bytes of fp32 for each parameter.
  constexpr double model_bytes = 12e9, slow = 30e6;
  Finding finding{.text =
                      format("{} of {} written and read by {} at once: {} and {}; a checkpoint of 1 B parameters (12 GB) "
                             "takes {} to write",
                             rates.ranks == 1 ? "a file" : "files", format_bytes(rates.bytes), plural(rates.ranks, "rank"),
                             format_rate(rates.write), format_rate(rates.read), format_duration(model_bytes / rates.write))};
  finding.figures = {{"write_bytes_per_s", rates.write}, {"read_bytes_per_s", rates.read}, {"bytes_of_rank", rates.bytes}};
  if (rates.write >= slow) return finding;
  finding.status = Status::warning;
  finding.advice = "choose a --save-dir on a faster file system, or save less often (--save-interval-updates)";
  return finding;
}

std::optional<Finding> check_compute(DoctorJob& job) {
  const bool on_gpu = !is_host(job.device->kind());
  const DType type = on_gpu ? DType::bf16 : DType::f32;
  double load = 0;
  static_cast<void>(getloadavg(&load, 1));
  const auto stream = job.device->make_stream();
  // The fastest product, which nothing has interrupted, shows what the processors can do; `busy` shows how often they do. A
  // product is large enough if it takes half a millisecond.
  double flops = 0, busy = 0;
  const auto measure = [&](std::size_t size, double seconds) {
    const Timer wall;
    const double before = processor_seconds();
    flops = product_rate(type, *job.device, *stream, *job.world, kernels::Trans::no, kernels::Trans::no, size, size, size,
                         seconds, smallest);
    busy = (processor_seconds() - before) / wall.seconds();
    return slowest(*job.world, 2 * std::pow(static_cast<double>(size), 3) / flops);
  };
  std::size_t size = 128;
  while (measure(size, 0.05) < 0.5e-3 && size < 4096) size *= 2;
  measure(size, 0.5);
  const std::size_t bytes = std::size_t{16} << 20;
  const Buffer from = job.device->allocate(bytes), to = job.device->allocate(bytes);
  job.rates.memory =
      2 * static_cast<double>(bytes) / median(time_calls(*stream, 0.05, [&] { stream->copy(to.data(), from.data(), bytes); }));
  const std::vector<double> all = job.world->gather(flops), busies = job.world->gather(busy);
  const std::vector<double> threads = job.world->gather(kernels::threads()), loads = job.world->gather(load);
  const std::vector<std::string> processors =
      job.world->gather(on_gpu ? job.device->description() : job.processors[job.my_node()]);
  job.rates.flops = *std::min_element(all.begin(), all.end());
  std::vector<NodeSpeed> nodes(job.nodes.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto i = static_cast<std::size_t>(job.node_of[rank]);
    NodeSpeed& node = nodes[i];
    if (node.flops > 0 && node.flops <= all[rank]) continue;
    node = {job.nodes[i], all[rank], processors[rank], static_cast<std::size_t>(threads[rank]), std::min(1.0, busies[rank]),
            loads[rank]};
  }
  return judge_compute(nodes, type, on_gpu);
}

std::optional<Finding> check_network(DoctorJob& job) {
  const std::size_t n = job.nodes.size(), me = job.my_node();
  if (n == 1) return std::nullopt;
  std::vector<NodeLink> links(n);
  std::vector<double> sent(n);
  const std::vector<Interface> before = interfaces_of();
  // The nodes form a ring. In a round, pairs of neighbours exchange data; the ranks of a node do so at the same time, each with
  // the rank of the same number on the other node. So each node is measured with both neighbours.
  const std::size_t rounds = n == 2 ? 1 : n % 2 == 0 ? 2 : 3;
  const auto round_of = [&](std::size_t i) { return i == n - 1 && n % 2 == 1 ? 2 : i % 2; };  // of the pair i, i + 1
  for (std::size_t round = 0; round < rounds; ++round) {
    const std::size_t left = (me + n - 1) % n;
    const std::size_t pair = round_of(me) == round ? me : round_of(left) == round ? left : n;
    const auto ranks = static_cast<int>(job.world->size());
    const auto group = job.world->split(static_cast<int>(pair) * ranks + job.node->rank(), job.world->rank());
    double rate = 0, latency = 0, moved = 0;
    if (pair < n && group->size() == 2) {
      const auto exchange = [&](std::size_t bytes, std::size_t at_once) {
        const Buffer mine = allocate_host(bytes), both = allocate_host(2 * bytes);
        const auto stream = make_host_stream();
        moved += static_cast<double>(2 * bytes * at_once);  // one round does not count
        return time_collective(*stream, *group, at_once, 1, [&] {
          group->all_gather(*stream, mine.data(), both.data(), bytes / sizeof(float), DType::f32);
        });
      };
      latency = std::min(exchange(sizeof(float), 20), exchange(sizeof(float), 20));
      double seconds = 0;
      const std::size_t bytes = grow(std::size_t{16} << 10, std::size_t{64} << 20, 0.05,
                                     [&](std::size_t size) { return seconds = exchange(size, 1); });
      for (int i = 0; i < 4 && seconds < 0.25; ++i) seconds = std::min(seconds, exchange(bytes, 1));
      rate = static_cast<double>(bytes) / seconds;
    }
    const std::vector<double> rates = sums_of_nodes(job, job.world->gather(rate)),
                              bytes = sums_of_nodes(job, job.world->gather(moved));
    const std::vector<double> latencies = job.world->gather(latency);
    for (std::size_t i = 0; i < n; ++i) links[i].rate = std::max(links[i].rate, rates[i]), sent[i] += bytes[i];
    for (std::size_t rank = 0; rank < latencies.size(); ++rank) {
      double& least = links[static_cast<std::size_t>(job.node_of[rank])].latency;
      if (latencies[rank] > 0 && (least == 0 || latencies[rank] < least)) least = latencies[rank];
    }
  }
  const std::vector<Interface> after = interfaces_of();
  const Interface carrier = carrier_of(before, after, sent[me]);
  std::string idle;
  for (const Interface& interface : after)
    if (interface.is_rdma && !carrier.name.empty() && !carrier.is_rdma) idle = interface.name;
  const auto names = of_leaders(job, job.world->gather(carrier.name)), idles = of_leaders(job, job.world->gather(idle));
  const auto rates = of_leaders(job, job.world->gather(carrier.rate)),
             rdma = of_leaders(job, job.world->gather(carrier.is_rdma));
  for (std::size_t i = 0; i < n; ++i) {
    links[i].node = job.nodes[i];
    links[i].carrier = {names[i], 0, rates[i], rdma[i] > 0};
    links[i].idle_rdma = idles[i];
  }
  const auto slow = std::min_element(links.begin(), links.end(), [](const auto& a, const auto& b) { return a.rate < b.rate; });
  job.rates.network = slow->rate;
  job.rates.latency = slow->latency;
  const Finding finding = judge_network(links);
  job.rates.network_is_slow = finding.status != Status::ok;
  return finding;
}

std::optional<Finding> check_files(DoctorJob& job) {
  if (!job.world->all(job.probe != nullptr)) return std::nullopt;
  const int ranks = job.world->size(), rank = job.world->rank();
  // Each size has names of its own, which no node has in a cache.
  const auto file_of = [&](int owner, std::size_t size) { return job.probe->path() / format("rank-{}-{}", owner, size); };
  constexpr std::size_t least = std::size_t{1} << 20;
  const std::size_t most = std::max(least, (std::size_t{1} << 30) / static_cast<std::size_t>(ranks));
  FileRates rates{.ranks = static_cast<std::size_t>(ranks)};
  std::vector<std::byte> bytes;
  try {
    grow(least, std::min(most, std::size_t{64} << 20), 0.25, [&](std::size_t size) {
      const double written = time_together(*job.world, [&] {
        bytes.assign(size, std::byte{1});
        write_as_saves(file_of(rank, size), bytes);
      });
      // Another node's file, if there is another node: it is in no cache of this node.
      const fs::path other = file_of((rank + std::max(1, ranks / 2)) % ranks, size);
      const double read = time_together(*job.world, [&] {
        drop_from_cache(other);
        InputFile(other).read(0, bytes.data(), size);
      });
      std::error_code ignored;
      fs::remove(file_of(rank, size), ignored);
      const double all = static_cast<double>(size) * ranks, write_s = slowest(*job.world, written),
                   read_s = slowest(*job.world, read);
      rates.bytes = static_cast<double>(size), rates.write = all / write_s, rates.read = all / read_s;
      return write_s + read_s;
    });
  } catch (const CollectiveError& error) {
    Finding finding = failed_by(error.what());
    finding.advice = "free space there (df, quota), or choose another --save-dir";
    return finding;
  }
  return judge_files(rates);
}

}  // namespace fsdp
