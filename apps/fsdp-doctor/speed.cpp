#include "fsdp-doctor/speed.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/format.hpp"
#include "base/timer.hpp"
#include "comm/agree.hpp"
#include "fsdp-doctor/machine.hpp"
#include "fsdp/sharded_model.hpp"
#include "kernels/kernels.hpp"
#include "kernels/threads.hpp"
#include "train/measure.hpp"

namespace fsdp {

namespace {

constexpr double slow_share = 0.8;

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Rates with three digits: "0.118", "5.20", "1234".
std::string rate_text(double rate) { return rate >= 100 ? format("{:.0f}", rate) : format("{:.3g}", rate); }

/// "node1 88.1 and node2 90.2 GB/s"; of many nodes the median and the ends.
std::string rates_text(const std::vector<std::string>& nodes, const std::vector<double>& rates, const std::string& unit) {
  if (nodes.size() == 1) return format("{} {}", rate_text(rates[0]), unit);
  if (nodes.size() <= 4) {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < nodes.size(); ++i) parts.push_back(format("{} {}", nodes[i], rate_text(rates[i])));
    return format("{} {}", list_of(parts), unit);
  }
  const auto [low, high] = std::minmax_element(rates.begin(), rates.end());
  return format("median {} {}, {} {}, {} {}", rate_text(median(rates)), unit,
                nodes[static_cast<std::size_t>(low - rates.begin())], rate_text(*low),
                nodes[static_cast<std::size_t>(high - rates.begin())], rate_text(*high));
}

/// "node2 is slower than node1", "node7 and node9 are slower than the other 6 nodes".
std::string slow_text(const std::vector<std::string>& nodes, const std::vector<std::size_t>& slow) {
  std::vector<std::string> names;
  for (const std::size_t i : slow) names.push_back(nodes[i]);
  return format("{} {} slower than {}", list_of(names), names.size() == 1 ? "is" : "are",
                nodes.size() == 2 ? nodes[1 - slow[0]] : format("the other {} nodes", nodes.size() - slow.size()));
}

/// Bytes per second that each rank of `group` receives in an all-gather of `bytes` of each; the same on all of them.
double gather_rate(Communicator& group, Device& cpu, std::size_t bytes) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto stream = cpu.make_stream();
  Buffer shard;
  agree(group, [&] { shard = cpu.allocate(bytes); });
  const Buffer whole = group.allocate(cpu, ranks * bytes);
  const auto calls = [&](std::size_t n) {
    group.barrier();
    const Timer timer;
    for (std::size_t i = 0; i < n; ++i)
      group.all_gather(*stream, shard.data(), whole.data(), bytes / sizeof(float), DType::f32);
    stream->synchronize();
    return 1e-9 * static_cast<double>(group.max(static_cast<std::size_t>(1e9 * timer.seconds()))) / static_cast<double>(n);
  };
  double best = calls(1);  // connects, and is slow
  best = calls(1);
  const auto rounds = static_cast<std::size_t>(std::clamp(0.1 / best, 1.0, 20.0));
  for (int i = 0; i < 2; ++i) best = std::min(best, calls(rounds));
  return static_cast<double>((ranks - 1) * bytes) / best;
}

/// Seconds of a sum of one number over all ranks.
double latency_of(Communicator& group) {
  std::vector<double> times;
  for (int i = 0; i < 50; ++i) {
    const Timer timer;
    group.sum(1.0);
    times.push_back(timer.seconds());
  }
  return median(std::move(times));
}

/// All ranks, connected as training connects them.
Communicator& connected(DoctorJob& job) {
  if (!job.comm) job.comm = job.connect(job.options.comm);
  return *job.comm;
}

TransformerConfig tiny_model() {
  TransformerConfig config = arch_config("gpt2");
  config.vocab_size = 256;
  config.max_positions = 32;
  config.layers = 2;
  config.heads = config.kv_heads = 2;
  config.head_size = 32;
  config.width = 64;
  config.ffn_width = 256;
  return config;
}

}  // namespace

std::vector<std::size_t> slow_ones(const std::vector<double>& rates) {
  std::vector<std::size_t> slow;
  if (rates.size() < 2) return slow;
  const double usual = median(rates);  // of two the upper one
  for (std::size_t i = 0; i < rates.size(); ++i)
    if (rates[i] < slow_share * usual) slow.push_back(i);
  return slow;
}

Finding judge_rates(const std::vector<std::string>& nodes, const std::vector<double>& rates,
                    const std::vector<std::size_t>& ranks, const Measurement& measurement) {
  Finding finding;
  for (std::size_t i = 0; i < rates.size(); ++i)
    finding.figures[nodes[i]] = {{"rate_of_a_rank", rates[i]}, {"unit", measurement.unit}, {"ranks", ranks[i]}};
  const bool alike = std::all_of(ranks.begin(), ranks.end(), [&](std::size_t n) { return n == ranks[0]; });
  std::vector<double> shown = rates;  // of whole nodes, where that can be compared
  for (std::size_t i = 0; alike && i < rates.size(); ++i) shown[i] *= static_cast<double>(ranks[i]);
  finding.text = format("{}{} {}", rates_text(nodes, shown, measurement.unit), alike ? "" : " for each rank", measurement.what);
  if (!alike && measurement.is_shared) return finding;
  if (const std::vector<std::size_t> slow = slow_ones(rates); !slow.empty()) {
    finding.status = Status::warning;
    finding.text = format("{}: {}", slow_text(nodes, slow), finding.text);
    finding.advice = measurement.advice;
  }
  return finding;
}

Finding judge_links(const std::vector<std::string>& nodes, const LinkFigures& links) {
  Finding finding;
  finding.figures = {{"connection", links.connection}, {"latency_s", links.latency_s}};
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    finding.figures["near_gb_per_s"][nodes[i]] = links.near[i];
    if (!links.between.empty()) finding.figures["between_gb_per_s"][nodes[i]] = links.between[i];
  }
  std::vector<std::string> near_nodes;  // of several ranks
  std::vector<double> near;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (links.near[i] > 0) {
      near_nodes.push_back(nodes[i]);
      near.push_back(links.near[i]);
    }
  if (!links.between.empty())
    parts.push_back((nodes.size() == 2 ? rate_text(links.between[0]) + " GB/s" : rates_text(nodes, links.between, "GB/s")) +
                    " between nodes");
  if (!near.empty()) parts.push_back(rates_text(near_nodes, near, "GB/s") + " to a rank from its node");
  parts.push_back(links.latency_s < 1e-3 ? format("a small sum takes {:.0f} us", 1e6 * links.latency_s)
                                         : format("a small sum takes {:.1f} ms", 1e3 * links.latency_s));
  finding.text = format("{}: {}", links.connection, fmt::join(parts, "; "));

  std::string slow;
  if (const auto far = nodes.size() > 2 ? slow_ones(links.between) : std::vector<std::size_t>{}; !far.empty())
    slow = slow_text(nodes, far);
  else if (const auto within = slow_ones(near); !within.empty())
    slow = "within the node " + slow_text(near_nodes, within);
  const double best = links.between.empty() ? 0 : *std::max_element(links.between.begin(), links.between.end());
  if (!slow.empty()) {
    finding.status = Status::warning;
    finding.text = format("{}: {}", slow, finding.text);
    finding.advice =
        "look there for other traffic, a link at a lower rate (ethtool, ibstat) and other processes (top), or "
        "leave it out (sbatch --exclude)";
  } else if (links.has_rdma && !links.between.empty() && best < 1) {
    finding.status = Status::warning;
    finding.text += "; the nodes have InfiniBand or its kin (/sys/class/infiniband), and this is as slow as Ethernet";
    finding.advice =
        "use an MPI that is built for this network (with UCX or libfabric; see ompi_info), and no setting that "
        "keeps it from it";
  } else if (!links.shares_memory) {
    finding.status = Status::warning;
    finding.text += "; the ranks of a node cannot share memory and send messages instead";
    finding.advice =
        "let the ranks of a node see each other's processes (one container for all, no hidepid), and leave room in "
        "the memory limit of the job";
  }
  return finding;
}

Finding judge_training(const TrainingFigures& training) {
  Finding finding;
  finding.figures = {{"losses", training.losses}, {"update_s", training.update_s}, {"how", training.how}};
  const double first = training.losses.front(), last = training.losses.back();
  finding.text = format("{} of {} on {}: loss {:.3f} to {:.3f}, {:.1f} ms each{}", plural(training.losses.size(), "update"),
                        training.model, plural(training.ranks, "rank"), first, last, 1e3 * training.update_s,
                        training.how.empty() ? "" : "; " + training.how);
  const bool finite = std::all_of(training.losses.begin(), training.losses.end(), [](double x) { return std::isfinite(x); });
  if (finite && training.agreed && last < first) return finding;
  finding.status = Status::failed;
  finding.text += !finite            ? "; it is not finite"
                  : !training.agreed ? "; the ranks have different losses"
                                     : "; it does not fall";
  finding.advice =
      "something computes or sends wrong numbers: run it on fewer nodes until it works, to find where; memory "
      "errors are in the system's log (dmesg, nvidia-smi -q -d ECC)";
  return finding;
}

std::vector<std::size_t> partners(std::size_t nodes, std::size_t round) {
  // The circle: the last one stays, the others turn by one place each round; who stand opposite meet. With an odd number a
  // place is empty, and who would meet it rests.
  const std::size_t places = nodes + nodes % 2, turning = places - 1;
  std::vector<std::size_t> partner(nodes);
  for (std::size_t i = 0; i < nodes; ++i) partner[i] = i;
  for (std::size_t i = 0; i < places / 2; ++i) {
    const std::size_t a = i == 0 ? places - 1 : (round + i) % turning, b = (round + turning - i) % turning;
    if (a < nodes && b < nodes && a != b) {
      partner[a] = b;
      partner[b] = a;
    }
  }
  return partner;
}

namespace {

struct NodeRates {
  std::vector<double> of_a_rank;  // of each node: the mean over its ranks
  std::vector<std::size_t> ranks;
};

/// From what each rank has measured of itself. Collective over job.world.
NodeRates rates_of_nodes(DoctorJob& job, double mine) {
  NodeRates nodes = {sums_of_nodes(job, job.world->gather(mine)), {}};
  for (std::size_t i = 0; i < nodes.of_a_rank.size(); ++i) {
    nodes.ranks.push_back(job.ranks_of(i));
    nodes.of_a_rank[i] /= static_cast<double>(nodes.ranks[i]);
  }
  return nodes;
}

}  // namespace

std::optional<Finding> check_products(DoctorJob& job) {
  const bool on_gpu = job.device->kind() == DeviceKind::cuda;
  const DType type = on_gpu ? DType::bf16 : DType::f32;
  const auto rate_of = [&](std::size_t n, double seconds) {
    using kernels::Trans;
    return product_rate(type, *job.device, *job.stream, *job.world, Trans::no, Trans::no, n, n, n, seconds);
  };
  // As large as it takes to last some milliseconds on the slowest rank.
  std::size_t n = 256;
  for (; n < 8192; n *= 2) {
    const std::vector<double> rates = job.world->gather(rate_of(n, 0));
    const double slowest_s = 2 * std::pow(static_cast<double>(n), 3) / *std::min_element(rates.begin(), rates.end());
    if (slowest_s > 2e-3) break;
  }
  const double mine = rate_of(n, 0.4);
  const NodeRates nodes = rates_of_nodes(job, mine / 1e9);
  return judge_rates(
      job.nodes, nodes.of_a_rank, nodes.ranks,
      {.unit = "GFLOP/s",
       .what = format("in {} products of {} x {}", name_of(type), n, n),
       .advice = "look there for other processes (top), a lower clock (cpupower, nvidia-smi -q -d CLOCK) and other binding, or "
                 "leave it out (sbatch --exclude)"});
}

std::optional<Finding> check_memory(DoctorJob& job) {
  const bool on_gpu = job.device->kind() == DeviceKind::cuda;
  // Larger than caches together, and small beside a node's memory.
  const std::size_t of_node = std::size_t{512} << 20, width = 1024,
                    rows = std::clamp<std::size_t>(of_node / job.ranks_of(job.my_node()), std::size_t{8} << 20,
                                                   std::size_t{64} << 20) /
                           (width * sizeof(float)),
                    bytes = rows * width * sizeof(float);
  Buffer a, b, out;
  agree(*job.world, [&] {
    a = job.device->allocate(bytes);
    b = job.device->allocate(bytes);
    out = job.device->allocate(bytes);
  });
  const auto floats = [](const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); };
  job.world->barrier();
  // The mean, as a job waits for all of them: a node whose processes stand still now and then (a limit of processor time, other
  // jobs) is slow, however fast it is in between.
  const double seconds = mean(time_calls(
      *job.stream, 0.4, [&] { kernels::add_residual(*job.stream, floats(out), floats(a), floats(b), nullptr, rows, width); }));
  const NodeRates nodes = rates_of_nodes(job, 3.0 * static_cast<double>(bytes) / seconds / 1e9);
  return judge_rates(
      job.nodes, nodes.of_a_rank, nodes.ranks,
      {.unit = "GB/s",
       .is_shared = !on_gpu,
       .what = on_gpu ? "in sums of arrays on the GPUs"
                      : format("in sums of arrays of {}", format_bytes(static_cast<double>(bytes))),
       .advice = "look there for other processes (top), missing memory modules (dmidecode) and other binding to sockets "
                 "(numactl --hardware), or leave it out (sbatch --exclude)"});
}

std::optional<Finding> check_links(DoctorJob& job) {
  if (job.world->size() == 1) return std::nullopt;
  Communicator& comm = connected(job);
  const auto cpu = make_cpu_device();
  LinkFigures links;
  links.connection = comm.description();
  links.latency_s = latency_of(comm);

  const auto near = comm.split_by_node();
  const bool messages = near->size() > 1 && near->description().starts_with("MPI");
  links.shares_memory = !(job.world->sum(std::int64_t{messages}) > 0 && job.options.comm.kind != "mpi");
  double near_rate = 0;
  if (near->size() > 1)
    near_rate = gather_rate(*near, *cpu, std::max<std::size_t>((std::size_t{16} << 20) / job.ranks_of(job.my_node()), 65536));
  links.near = of_leaders(job, job.world->gather(near_rate / 1e9));

  const std::size_t nodes = job.nodes.size(), all_rounds = nodes == 1 ? 0 : nodes - 1 + nodes % 2;
  double best = 0;
  for (std::size_t round = 0; round < std::min<std::size_t>(all_rounds, 3); ++round) {
    const std::vector<std::size_t> partner = partners(nodes, round);
    const std::size_t me = job.my_node();
    // A node's lowest rank and its partner's; all others stay by themselves.
    const std::size_t color = job.is_leader() ? std::min(me, partner[me]) : nodes + static_cast<std::size_t>(job.world->rank());
    const auto pair = job.world->split(static_cast<int>(color), job.world->rank());
    if (pair->size() == 2) best = std::max(best, gather_rate(*pair, *cpu, std::size_t{1} << 20));
    job.world->barrier();
  }
  if (nodes > 1) links.between = of_leaders(job, job.world->gather(best / 1e9));
  links.has_rdma = job.world->sum(std::int64_t{node_has_rdma()}) > 0;
  return judge_links(job.nodes, links);
}

std::optional<Finding> check_training(DoctorJob& job) {
  Communicator& comm = connected(job);
  ShardingOptions sharding;
  sharding.batch = {.B = 2, .T = 32};
  const TransformerConfig config = tiny_model();
  ShardedModel sharded(config, sharding, comm, traits_of(job.device->kind(), kernels::threads()));
  sharded.allocate(*job.device, {}, job.options.comm);
  Executor& executor = sharded.executor();
  executor.initialize_parameters(1);
  executor.publish_parameters();
  const BatchReader tokens = random_batches(sharding.batch, config.vocab_size, comm.rank());
  TrainingFigures training{.model = format("{} parameters", format_count(static_cast<double>(parameter_count(config)))),
                           .ranks = static_cast<std::size_t>(comm.size()),
                           .how = sharded.mesh().data_description};
  for (std::uint64_t update = 1; update <= 5; ++update) {
    const Timer timer;
    const UpdateResult result =
        executor.run_update(tokens, {.update = update,
                                     .learning_rate = 1e-2,
                                     .clip_norm = 1,
                                     .tokens = static_cast<double>(sharding.batch.rows()) * comm.size()});
    const double seconds = timer.seconds();
    training.update_s = update == 1 ? seconds : std::min(training.update_s, seconds);
    training.losses.push_back(result.loss);
    for (const double loss : job.world->gather(result.loss))
      training.agreed = training.agreed && (loss == result.loss || !std::isfinite(loss));
  }
  return judge_training(training);
}

}  // namespace fsdp
