#include "fsdp-doctor/work.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <fstream>
#include <sstream>

#include "base/format.hpp"
#include "base/timer.hpp"
#include "comm/agree.hpp"
#include "fsdp-doctor/machine.hpp"
#include "fsdp-doctor/storage.hpp"
#include "kernels/threads.hpp"
#include "machine/measure.hpp"
#include "run/sharded_model.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

/// Returns the median of the other nodes' values, of those whose kind is that of node i; 0 if there is none.
double median_of_others(std::size_t i, const std::vector<double>& values, const std::vector<std::string>& kinds) {
  std::vector<double> others;
  for (std::size_t j = 0; j < values.size(); ++j)
    if (j != i && kinds[j] == kinds[i]) others.push_back(values[j]);
  return others.empty() ? 0 : median(others);
}

std::string format_rate(double bytes_per_s) {
  return bytes_per_s < 1e9 ? format("{:.3g} MB/s", bytes_per_s / 1e6) : format("{:.3g} GB/s", bytes_per_s / 1e9);
}
std::string format_flops(double flops) {
  return flops < 1e12 ? format("{:.3g} GFLOP/s", flops / 1e9) : format("{:.3g} TFLOP/s", flops / 1e12);
}

/// Makes a finding a warning, with these problems and this advice, if there are problems.
void warn(Finding& finding, const std::vector<std::string>& problems, const std::vector<std::string>& advice) {
  if (problems.empty()) return;
  finding.text += format("; {}", fmt::join(problems, "; "));
  finding.warn(format("{}", fmt::join(advice, "; ")));
}

}  // namespace

Finding judge_compute(const std::vector<NodeSpeed>& nodes, DType type, bool on_gpu) {
  constexpr double slow = 0.7;  // equal nodes differ by a tenth; half of the cores are half of the speed
  const auto [least, most] =
      std::minmax_element(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) { return a.flops < b.flops; });
  Finding finding{.text = format("a rank multiplies at {}{} ({}, {})",
                                 least->flops < 0.95 * most->flops ? format_flops(least->flops) + " to " : std::string(),
                                 format_flops(most->flops), name_of(type),
                                 on_gpu ? least->processor : plural(least->threads, "thread"))};
  std::vector<double> rates, busy;
  std::vector<std::string> processors, problems, slow_nodes;
  for (const NodeSpeed& node : nodes) {
    finding.figures[node.node] = {{"flops", node.flops}, {"threads", node.threads}, {"busy", node.busy}};
    rates.push_back(node.flops * node.busy), busy.push_back(node.busy), processors.push_back(node.processor);
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    // If the other nodes' processors are busy with other programs, chance decides about a rank's speed.
    const double usual = median_of_others(i, rates, processors), usually_busy = median_of_others(i, busy, processors);
    if (usually_busy <= slow || rates[i] >= slow * usual) continue;
    slow_nodes.push_back(nodes[i].node);
    problems.push_back(format("{} reaches {:.0f} % of the others' median ({}{})", nodes[i].node, 100 * rates[i] / usual,
                              format_flops(nodes[i].flops),
                              on_gpu ? std::string()
                                     : format(" with {}, which processors ran for {:.0f} % of the time",
                                              plural(nodes[i].threads, "thread"), 100 * busy[i])));
  }
  warn(
      finding, problems,
      {format("look there for {}, or leave it out (sbatch --exclude={}): all ranks wait for the slowest",
              on_gpu ? "a limit of power or heat, and for other programs (nvidia-smi -q -d PERFORMANCE,CLOCK)"
                     : "fewer cores for each rank (srun --cpus-per-task), other programs (top, sbatch --exclusive), a limit of "
                       "the control group (cpu.max), and a limit of power or heat (turbostat)",
              fmt::join(slow_nodes, ","))});
  return finding;
}

Finding judge_network(const std::vector<NodeLink>& nodes) {
  constexpr double of_others = 0.5, half_of_gigabit_ethernet = 60e6;
  Finding finding;
  std::vector<double> rates;
  std::vector<std::string> names, ways, below, unused, problems, advice;
  for (const NodeLink& node : nodes) {
    finding.figures[node.node] = {{"bytes_per_s", node.rate}, {"tcp", node.uses_tcp}, {"rdma", node.has_rdma}};
    rates.push_back(node.rate), names.push_back(node.node), ways.emplace_back(node.uses_tcp ? "by TCP" : "not by TCP");
    if (node.uses_tcp && node.has_rdma) unused.push_back(node.node);
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const double usual = median_of_others(i, rates, std::vector<std::string>(nodes.size()));
    if (nodes.size() > 2 && rates[i] < of_others * usual) {
      problems.push_back(format("{} reaches {:.0f} % of the others' median ({} instead of {})", names[i],
                                100 * rates[i] / usual, format_rate(rates[i]), format_rate(usual)));
      advice.push_back(format(
          "check cable, port and limits of {0} (ethtool, ibstat, tc qdisc), or leave it out (sbatch --exclude={0})", names[i]));
    } else if (rates[i] < half_of_gigabit_ethernet) {
      below.push_back(names[i]);
    }
  }
  if (!below.empty()) {
    problems.push_back(format("the network of {} is slower than Gigabit Ethernet", list_of(below)));
    advice.push_back(
        "look for a limit (ethtool, tc qdisc), for other traffic, or for a faster interface that MPI did not choose (Open MPI: "
        "--mca btl_tcp_if_include; UCX_NET_DEVICES; MPICH: FI_TCP_IFACE)");
  }
  if (!unused.empty()) {
    problems.push_back(format("{} can do RDMA, and MPI does not use it", list_of(unused)));
    advice.push_back("use an MPI with UCX or libfabric (Open MPI: --mca pml ucx; MPICH: FI_PROVIDER=verbs)");
  }
  finding.text = format("each node sends and receives at least {} at once ({})",
                        format_rate(*std::min_element(rates.begin(), rates.end())), by_value(names, ways));
  warn(finding, problems, advice);
  return finding;
}

double bytes_sent_by_kernel(const fs::path& proc_net_dev) {
  std::ifstream table(proc_net_dev);  // "eth0: ", eight numbers of what was received, the bytes sent, ...
  double sent = 0;
  for (std::string line; std::getline(table, line);) {
    const std::size_t colon = line.find(':');
    if (colon == line.npos) continue;
    std::istringstream words(line.replace(colon, 1, " "));
    std::string name;
    std::array<double, 9> numbers{};
    words >> name;
    for (double& number : numbers) words >> number;
    if (words && name != "lo") sent += numbers.back();
  }
  return sent;
}

Finding judge_files(double write, double bytes, std::size_t ranks) {
  // Parameters and two states of AdamW take 12 bytes of fp32 for each parameter.
  constexpr double model_bytes = 12e9, slow = 30e6;
  Finding finding{.text = format("{} of {} written by {} at once: {}; a checkpoint of 1 B parameters (12 GB) takes {} to write",
                                 ranks == 1 ? "a file" : "files", format_bytes(bytes), plural(ranks, "rank"),
                                 format_rate(write), format_duration(model_bytes / write))};
  finding.figures = {{"write_bytes_per_s", write}, {"bytes_of_rank", bytes}};
  if (write >= slow) return finding;
  finding.warn("choose a --save-dir on a faster file system, or save less often (--save-interval-updates)");
  return finding;
}

Finding judge_training(const std::vector<double>& losses, bool agreed, const std::string& job) {
  Finding finding{.text = format("{} of a small model on {}: loss {:.3f} to {:.3f}", plural(losses.size(), "update"), job,
                                 losses.front(), losses.back())};
  finding.figures = {{"losses", losses}};
  const bool finite = std::all_of(losses.begin(), losses.end(), [](double x) { return std::isfinite(x); });
  if (finite && agreed && losses.back() < losses.front()) return finding;
  finding.text += !finite   ? "; the loss is not finite"
                  : !agreed ? "; the ranks have different losses"
                            : "; the loss does not decrease";
  finding.fail(
      "some node computes or sends wrong numbers: run the check on fewer nodes to find out which; memory errors are in the "
      "system's log (dmesg, nvidia-smi -q -d ECC)");
  return finding;
}

std::optional<Finding> check_compute(DoctorJob& job) {
  const bool on_gpu = !is_host(job.device->kind());
  const DType type = on_gpu ? DType::bf16 : DType::f32;
  const auto stream = job.device->make_stream();
  // Nothing has interrupted the fastest product, so it shows what the processors can do; `busy` shows how often they do. A
  // product is large enough if it takes half a millisecond.
  double flops = 0, busy = 1;
  const auto measure = [&](std::size_t size, double seconds) {
    const Timer wall;
    const std::clock_t before = std::clock();
    flops = product_rate(type, *job.device, *stream, *job.world, kernels::Trans::no, kernels::Trans::no, size, size, size,
                         seconds, smallest);
    const double used = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
    if (!on_gpu) busy = std::min(1.0, used / (wall.seconds() * kernels::threads()));
    return slowest(*job.world, 2 * std::pow(static_cast<double>(size), 3) / flops);
  };
  std::size_t size = 128;
  while (measure(size, 0.05) < 0.5e-3 && size < 4096) size *= 2;
  measure(size, 0.5);
  const std::vector<double> all = job.world->gather(flops), busies = job.world->gather(busy),
                            threads = job.world->gather(kernels::threads());
  const std::vector<std::string> processors =
      job.world->gather(on_gpu ? job.device->description() : job.processors[job.my_node()]);
  std::vector<NodeSpeed> nodes(job.nodes.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto i = static_cast<std::size_t>(job.node_of[rank]);
    NodeSpeed& node = nodes[i];
    if (node.flops == 0 || all[rank] * busies[rank] < node.flops * node.busy)
      node = {job.nodes[i], all[rank], processors[rank], static_cast<std::size_t>(threads[rank]), busies[rank]};
  }
  return judge_compute(nodes, type, on_gpu);
}

std::optional<Finding> check_network(DoctorJob& job) {
  const std::size_t n = job.nodes.size(), me = job.my_node(), left = (me + n - 1) % n;
  if (n == 1) return std::nullopt;
  const double sent_before = bytes_sent_by_kernel();
  // In an exchange each node sends 8 MiB, by all its ranks.
  const std::size_t bytes = (std::size_t{8} << 20) / job.world->max(job.ranks_of[me]) / sizeof(float) * sizeof(float);
  const auto stream = make_host_stream();
  const Buffer mine = allocate_host(bytes), both = allocate_host(2 * bytes);
  std::vector<NodeLink> links(n);
  double sent = 0;
  // The nodes form a ring. In a round, pairs of neighbours exchange data; the ranks of a node do so at the same time, each with
  // the rank of the same number on the other node. So each node is measured with both neighbours.
  const std::size_t rounds = n == 2 ? 1 : 2 + n % 2;
  const auto round_of = [&](std::size_t i) { return i == n - 1 && n % 2 == 1 ? 2 : i % 2; };  // of the pair i, i + 1
  for (std::size_t round = 0; round < rounds; ++round) {
    const std::size_t pair = round_of(me) == round ? me : round_of(left) == round ? left : n;
    const auto group = job.world->split(static_cast<int>(pair) * job.world->size() + job.node->rank(), job.world->rank());
    double rate = 0;
    if (pair < n && group->size() == 2)
      rate = static_cast<double>(bytes) / time_collective(*stream, *group, 1, 3, [&] {
               group->all_gather(*stream, mine.data(), both.data(), bytes / sizeof(float), DType::f32);
               sent += static_cast<double>(bytes);
             });
    const std::vector<double> rates = job.sums_of_nodes(rate);
    for (std::size_t i = 0; i < n; ++i) links[i].rate = std::max(links[i].rate, rates[i]);
  }
  const std::vector<double> all_sent = job.sums_of_nodes(sent), by_kernel = job.of_nodes(bytes_sent_by_kernel() - sent_before),
                            rdma = job.of_nodes(node_has_rdma() ? 1 : 0);
  for (std::size_t i = 0; i < n; ++i) {
    links[i].node = job.nodes[i];
    links[i].uses_tcp = by_kernel[i] > 0.5 * all_sent[i];
    links[i].has_rdma = rdma[i] > 0;
  }
  return judge_network(links);
}

std::optional<Finding> check_files(DoctorJob& job) {
  if (!job.world->all(job.probe != nullptr)) return std::nullopt;
  const auto ranks = static_cast<std::size_t>(job.world->size());
  constexpr std::size_t all = std::size_t{64} << 20, least = std::size_t{1} << 20;
  const std::vector<std::byte> bytes(std::max(all / ranks, least), std::byte{1});
  try {
    const double seconds =
        time_together(*job.world, [&] { write_as_saves(job.probe->path() / format("rank-{}", job.world->rank()), bytes); });
    const auto size = static_cast<double>(bytes.size());
    return judge_files(size * static_cast<double>(ranks) / seconds, size, ranks);
  } catch (const CollectiveError& error) {
    Finding finding = failed_by(error.what());
    finding.advice = "free space there (df, quota), or choose another --save-dir";
    return finding;
  }
}

std::optional<Finding> check_training(DoctorJob& job) {
  const std::unique_ptr<Communicator> comm = job.connect(job.options.comm);
  TransformerConfig config = arch_config("transformer_lm_gpt2_tiny");
  config.vocab_size = 256;
  ShardingOptions sharding;
  sharding.batch = {.B = 2, .T = 64};
  ShardedModel sharded(config, sharding, *comm, traits_of(job.device->kind(), kernels::threads()));
  Executor& executor = sharded.allocate(*job.device, {}, job.options.comm);
  executor.initialize_parameters(1);
  executor.publish_parameters();
  const BatchReader tokens = random_batches(sharding.batch, config.vocab_size, comm->rank());
  std::vector<double> losses;
  bool agreed = true;
  for (std::uint64_t update = 1; update <= 5; ++update) {
    const UpdateResult result =
        executor.run_update(tokens, {.update = update,
                                     .learning_rate = 3e-3,
                                     .clip_norm = 1,
                                     .tokens = static_cast<double>(sharding.batch.rows()) * comm->size()});
    losses.push_back(result.loss);
    for (const double loss : job.world->gather(result.loss)) agreed = agreed && (loss == result.loss || !std::isfinite(loss));
  }
  const std::string& on_gpus = sharded.mesh().data_description;
  return judge_training(losses, agreed,
                        format("{} ({}{})", plural(static_cast<std::size_t>(comm->size()), "rank"), comm->description(),
                               on_gpus.empty() ? "" : "; " + on_gpus));
}

}  // namespace fsdp
