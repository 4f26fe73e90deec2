#include "plan/rates.hpp"

#include <algorithm>
#include <cmath>

#include <boost/math/distributions/normal.hpp>
#include <nlohmann/json.hpp>

#include "base/format.hpp"

namespace fsdp {

namespace {

// A tile of a product has a cost that does not depend on K. 250 fits an H200, on which products of width 768, 2,048 and 4,096
// reached 60-66, 65-69 and 68-73 % of the peak. For another GPU it is in proportion to the rate of a multiprocessor.
constexpr double half_of_h100 = 250, rate_of_h100 = 989.5e12 / 132;

/// The rate of cuDNN's attention, in proportion to the peak of the GPU.
AttentionRates cudnn_attention(GpuArchitecture architecture, double peak) {
  if (architecture == GpuArchitecture::hopper)
    return AttentionRates{
        {128, 175, 274, 303, 322, 335},
        {213, 289, 347, 385, 403, 430},
        1.4,
        "cuDNN measured on an H200 at 1k and 2k tokens (heads of 64) and 4k (128); other lengths by the curve "
        "of FlashAttention-2"}
        .scaled(peak / 989.5);
  if (architecture == GpuArchitecture::ampere || architecture == GpuArchitecture::ada)
    return AttentionRates{{88, 119, 140, 156, 165, 171},
                          {99, 133, 155, 173, 182, 189},
                          1.3,
                          "assumed to be FlashAttention-2's on an A100, as published in its repository"}
        .scaled(peak / 312);
  return {equal_rates(0.3 * peak), equal_rates(0.3 * peak), 1.4, "assumed: 0.3 of the peak"};
}

/// The share of the memory bandwidth that our row kernels reach on an H200: 0.42, 0.60 and 0.70 for widths 768, 2,048, 4,096.
double share_of_rows(std::size_t width) {
  const double x = std::log2(static_cast<double>(width));
  const auto between = [&](double from, double to, double low, double high) {
    return low + (high - low) * std::clamp((x - std::log2(from)) / (std::log2(to) - std::log2(from)), 0.0, 1.0);
  };
  return width < 2048 ? between(768, 2048, 0.42, 0.60) : between(2048, 4096, 0.60, 0.70);
}

nlohmann::json to_json(const Rate& rate) { return {{"value", rate.value}, {"source", rate.source}}; }

}  // namespace

AttentionRates AttentionRates::scaled(double factor) const {
  AttentionRates out = *this;
  for (auto* const table : {&out.head_64, &out.head_128})
    for (double& rate : *table) rate *= factor;
  return out;
}

double AttentionRates::both(std::size_t tokens, std::size_t head_size) const {
  const auto& table = head_size >= 96 ? head_128 : head_64;
  const double x = std::clamp(std::log2(static_cast<double>(std::max<std::size_t>(1, tokens))) - 9, 0.0, 5.0);
  const std::size_t i = std::min<std::size_t>(4, static_cast<std::size_t>(x));
  return table[i] + (table[i + 1] - table[i]) * (x - static_cast<double>(i));
}

Rates rates_of(const GpuFigures& gpu, const Transformer& model, DType type, const Network& network, double watts) {
  // The clock of a GPU below its full power is in proportion to the cube root of the dynamic power. About 200 of 700 W are
  // static, so the rate is close to the square root of the power limit.
  const double power = watts > 0 ? std::sqrt(std::min(1.0, watts / gpu.watts)) : 1, peak = gpu.flops(type);
  const std::string limited = power < 1 ? format("; {:.2f} of it at {:.0f} W", power, watts) : "";
  const bool has_nvlink = gpu.link_bandwidth > 64e9;
  const double row_share = share_of_rows(model.config().width);
  AttentionRates attention;
  if (type != DType::f32 && model.device().cudnn_head_size >= model.config().head_size) {
    attention = cudnn_attention(gpu.architecture, peak);
  } else {
    attention = AttentionRates{{115, 156, 189, 189, 189, 189},
                               {104, 139, 163, 181, 181, 181},
                               1.45,
                               "our kernels on an H200 at 1k and 2k tokens (heads of 64) and 4k (128), by the peak; shorter "
                               "sequences by the curve of FlashAttention-2"}
                    .scaled(peak / 989.5);
  }
  attention = attention.scaled(power), attention.source += limited;
  constexpr const char* nccl = "NCCL, src/graph/tuning.cc: ring, protocol Simple";
  return {.machine = std::string(gpu.product),
          .type = type,
          .peak = peak,
          .watts = watts > 0 ? std::min(watts, gpu.watts) : gpu.watts,
          .products = {gpu.product_share * peak * power,
                       format("{:.3g} of the peak of the datasheet: {}{}", gpu.product_share, gpu.share_by, limited)},
          .product_half = {half_of_h100 * peak / gpu.multiprocessors / rate_of_h100,
                           "products of three widths on an H200, by the rate of a multiprocessor"},
          .fp32_products = {gpu.product_share * gpu.flops_fp32 * power, "as other products"},
          .attention = attention,
          .memory = {row_share * gpu.memory_bandwidth,
                     format("{:.2f} of the datasheet's bandwidth: row kernels of this width on an H200", row_share)},
          .optimizer = {0.67 * gpu.memory_bandwidth, "0.67 of the datasheet's bandwidth: AdamW on an H200"},
          .host_link = {0.8 * gpu.host_bandwidth, "0.8 of the datasheet's PCIe or NVLink: assumed"},
          .launch = {},
          .update = {1e-3, "assumed"},
          .spread = {0.0175, "5 % between the 8 GPUs of a node (Bekman, ml-engineering)"},
          .ring = {gpu.ring_bandwidth, std::string(gpu.ring_by)},
          .call = {8.4e-6, nccl},
          .hop = {has_nvlink ? 3.4e-6 : 5.7e-6, nccl},
          .network_share = {0.93, "assumed"},
          .network = network,
          .interference = {0.451, "fitted to ten updates of other programs (docs/simulator.md)"},
          .copies = {}};
}

Network network_of(const GpuFigures& gpu) {
  const Network* const known = find_network(gpu.network);
  return known ? *known : Network{};
}

std::vector<NamedRate> named_rates(const Rates& rates) {
  const auto flops = [](double value) {
    return value < 1e12 ? format("{:.3g} GFLOP/s", value / 1e9) : format("{:.3g} TFLOP/s", value / 1e12);
  };
  const auto bytes = [](double value) { return format("{:.4g} GB/s", value / 1e9); };
  const double attention_64 = rates.attention.both(2048, 64), attention_128 = rates.attention.both(2048, 128);
  std::vector<NamedRate> all = {{"products", flops(rates.products), rates.products.source},
                                {"attention", format("{}, {}", flops(attention_64), flops(attention_128)),
                                 "2k tokens, heads of 64 and 128: " + rates.attention.source},
                                {"other kernels", bytes(rates.memory), rates.memory.source},
                                {"optimizer", bytes(rates.optimizer), rates.optimizer.source}};
  const bool is_gpu = rates.queues == Queues::streams;
  if (is_gpu)
    all.insert(all.begin() + 1,
               {"sums of K terms", format("1 + {:.0f} / K", rates.product_half.value), rates.product_half.source});
  if (is_gpu || rates.shared_memory > 0)
    all.push_back({is_gpu ? "ring in a node" : "collectives", bytes(rates.ring), rates.ring.source});
  if (rates.network.ports > 0)
    all.push_back({"network", format("{} x {:.4g} Gbit/s", rates.network.ports, 8 * rates.network.port_bandwidth / 1e9),
                   format("{}: {}; {:.3g} us for a hop, decay {:.3g}", rates.network.name, rates.network.source,
                          1e6 * rates.network.hop, rates.network.decay)});
  if (rates.interference > 0)
    all.push_back({"during collectives", format("-{:.0f} %", 100 * rates.interference), rates.interference.source});
  if (is_gpu && rates.host_link > 0) all.push_back({"host memory", bytes(rates.host_link), rates.host_link.source});
  if (rates.update > 0) all.push_back({"host, per update", format("{:.1f} ms", 1e3 * rates.update), rates.update.source});
  return all;
}

CostTime time_of(const Cost& cost, const Rates& rates, double bandwidth) {
  CostTime time;
  time.products =
      (cost.product_flops + rates.product_half * cost.product_outputs) / rates.products + cost.fp32_flops / rates.fp32_products;
  if (cost.attention_forward_flops > 0)
    time.attention += cost.attention_forward_flops / rates.attention.forward(cost.attention_tokens, cost.head_size);
  if (cost.attention_backward_flops > 0)
    time.attention += cost.attention_backward_flops / rates.attention.backward(cost.attention_tokens, cost.head_size);
  time.memory = cost.memory_bytes / bandwidth;
  time.total = std::max(time.products + time.attention + time.memory, cost.launches * rates.launch);
  return time;
}

double touched_bytes(const CollectiveUse& use, std::size_t ranks) {
  if (ranks == 1) return 0;
  const auto whole = static_cast<double>(use.buffer_bytes(ranks)), shard = whole / static_cast<double>(ranks);
  switch (use.kind) {
    case Collective::all_gather:
      return 2 * whole;
    case Collective::reduce_scatter:
      return whole + shard;
    default:
      return whole + shard + 2 * (whole - shard);
  }
}

RingGroup ring_group(GroupAxis axis, MeshShape mesh, const Cluster& cluster) {
  const GroupMembers group = members_along(axis, mesh);
  const auto per_node = static_cast<std::size_t>(cluster.ranks_per_node);
  if (group.stride == 1 && group.size % per_node != 0 && per_node % group.size != 0)  // some groups begin inside a node
    return {static_cast<int>(group.size), std::min(cluster.nodes, static_cast<int>((group.size - 1) / per_node + 2)), 0.5};
  const std::size_t on_node = std::min(group.size, (per_node + group.stride - 1) / group.stride);
  return {static_cast<int>(group.size), static_cast<int>((group.size + on_node - 1) / on_node),
          static_cast<double>(on_node) / cluster.ranks_per_node};
}

namespace {

/// Bytes per second of the ports of a node that the group uses.
double port_bandwidth(const RingGroup& group, const Rates& rates) {
  return rates.network_share * rates.network.node_bandwidth() * group.share_of_node;
}

/// The part of this bandwidth that is left if the group spans more than two nodes.
double share_of_many_nodes(const RingGroup& group, const Rates& rates) {
  return std::pow(group.nodes / 2.0, -rates.network.decay);
}

/// Bytes per second of a ring over the group.
double ring_bandwidth(const RingGroup& group, const Rates& rates) {
  if (group.nodes == 1) return rates.ring;
  return std::min<double>(rates.ring, port_bandwidth(group, rates) * share_of_many_nodes(group, rates));
}

}  // namespace

CollectiveTime time_of(const CollectiveUse& use, MeshShape mesh, const Cluster& cluster, const Rates& rates) {
  const RingGroup group = ring_group(use.axis, mesh, cluster);
  if (group.ranks == 1) return {};
  if (rates.shared_memory > 0 && group.nodes == 1)
    return {touched_bytes(use, static_cast<std::size_t>(group.ranks)) / rates.shared_memory, rates.interference};
  // An all-reduce is two passes. NCCL does short ones by a tree of nodes, with a chain in each node.
  const bool reduces_all = use.kind == Collective::all_reduce;
  const double passes = reduces_all ? 2 : 1, on_node = static_cast<double>(group.ranks) / group.nodes,
               hops = reduces_all ? on_node - 1 : group.ranks - group.nodes,
               between = reduces_all ? std::log2(group.nodes) : group.nodes - 1;
  const double latency = passes * (rates.call + hops * rates.hop + between * rates.network.hop);
  const double copied = use.kind != Collective::reduce_scatter
                            ? 0
                            : rates.copies * static_cast<double>(use.buffer_bytes(static_cast<std::size_t>(group.ranks))) /
                                  static_cast<double>(use.element_bytes) / rates.memory;
  // Half of the interference is the multiprocessors that NCCL's channels hold. The other half is the traffic in memory, in
  // proportion to the rate of the links in a node: `busy` is 1 if they limit the collective.
  const auto time = [&](double moving, double busy) {
    return CollectiveTime{latency + moving + copied, rates.interference * (0.5 + 0.5 * busy)};
  };
  if (use.kind == Collective::all_gather || cluster.sum_order == SumOrder::library) {
    const double sent = reduces_all && rates.all_reduce_bytes > 0
                            ? passes * rates.all_reduce_bytes * static_cast<double>(use.count) * (group.ranks - 1) / group.ranks
                            : static_cast<double>(use.sent_bytes(static_cast<std::size_t>(group.ranks)));
    return time(sent / ring_bandwidth(group, rates),
                group.nodes == 1 ? 1 : std::min(1.0, port_bandwidth(group, rates) / rates.ring));
  }
  // Sums in canonical order: messages from rank to rank.
  const ClusterTraffic traffic = traffic_of_cluster({use}, mesh, cluster);
  const double of_rank = static_cast<double>(traffic.rank.total()) / rates.ring,
               of_node = traffic.out_of_node == 0
                             ? 0
                             : static_cast<double>(traffic.out_of_node) /
                                   (rates.network_share * rates.network.node_bandwidth() * share_of_many_nodes(group, rates));
  return time(std::max(of_rank, of_node), of_rank == 0 ? 0 : std::min(1.0, of_rank / of_node));
}

double slowest_of(int ranks) {
  const auto maximum = [](int n) { return boost::math::quantile(boost::math::normal(), (n - 0.375) / (n + 0.25)); };
  return ranks <= 8 ? 0 : maximum(ranks) - maximum(8);
}

nlohmann::json to_json(const Rates& rates) {
  nlohmann::json attention = {{"head_64", rates.attention.head_64},
                              {"head_128", rates.attention.head_128},
                              {"forward_to_backward", rates.attention.forward_to_backward},
                              {"source", rates.attention.source}};
  return {{"machine", rates.machine},
          {"precision", name_of(rates.type)},
          {"peak_flops", rates.peak},
          {"watts", rates.watts},
          {"products", to_json(rates.products)},
          {"product_half", to_json(rates.product_half)},
          {"fp32_products", to_json(rates.fp32_products)},
          {"attention", attention},
          {"memory", to_json(rates.memory)},
          {"optimizer", to_json(rates.optimizer)},
          {"host_link", to_json(rates.host_link)},
          {"update", to_json(rates.update)},
          {"spread", to_json(rates.spread)},
          {"ring", to_json(rates.ring)},
          {"shared_memory", to_json(rates.shared_memory)},
          {"call", to_json(rates.call)},
          {"hop", to_json(rates.hop)},
          {"network_share", to_json(rates.network_share)},
          {"network", rates.network.ports == 0 ? nlohmann::json() : to_json(rates.network)},
          {"interference", to_json(rates.interference)}};
}

nlohmann::json to_json(const GpuFigures& gpu) {
  return {{"name", gpu.name},
          {"product", gpu.product},
          {"flops_16bit", gpu.flops_16bit},
          {"flops_fp32", gpu.flops_fp32},
          {"multiprocessors", gpu.multiprocessors},
          {"watts", gpu.watts},
          {"memory_bytes", gpu.memory_bytes},
          {"memory_bandwidth", gpu.memory_bandwidth},
          {"link_bandwidth", gpu.link_bandwidth},
          {"ring_bandwidth", gpu.ring_bandwidth},
          {"host_bandwidth", gpu.host_bandwidth},
          {"network", gpu.network.empty() ? nlohmann::json() : nlohmann::json(gpu.network)},
          {"source", gpu.source}};
}

}  // namespace fsdp
