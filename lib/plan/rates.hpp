// How fast a machine does the operations of a plan: the constants of a prediction, each with its source. They come from
// datasheets, published measurements and ten fitted updates (docs/simulator.md), or from a measurement of the machine itself.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "device/gpu_figures.hpp"
#include "nn/transformer.hpp"
#include "nn/work.hpp"
#include "plan/network.hpp"
#include "plan/traffic.hpp"

namespace fsdp {

struct Rate {
  double value = 0;
  std::string source = {};
  operator double() const { return value; }
};

/// The rates of attention if they are the same for all lengths and heads.
constexpr std::array<double, 6> equal_rates(double rate) { return {rate, rate, rate, rate, rate, rate}; }
/// FLOP/s of causal attention, where FLOPs count the half that is not masked: 2 products forward and 5 backward.
struct AttentionRates {
  /// Forward and backward together, for sequences of 512, 1k, 2k, 4k, 8k and 16k tokens. Between them the rate is interpolated
  /// in log2 T; outside it is constant. Heads of 96 and more use head_128.
  std::array<double, 6> head_64{}, head_128{};
  double forward_to_backward = 1.3;  // the ratio of the two rates
  std::string source = {};

  /// Returns the rates, all multiplied by `factor`.
  AttentionRates scaled(double factor) const;
  double both(std::size_t tokens, std::size_t head_size) const;
  double backward(std::size_t tokens, std::size_t head_size) const {
    return both(tokens, head_size) * (1 / forward_to_backward + 2.5) / 3.5;
  }
  double forward(std::size_t tokens, std::size_t head_size) const { return forward_to_backward * backward(tokens, head_size); }
};

/// How operations share threads: one for each stream; one for computing and one for the rest, in the order of the plan; or one
/// for all (CPUs, by default).
enum class Queues { streams, thread, one };

/// Bytes, bytes per second, FLOP/s and seconds of one rank. Rates of products and attention are for one type of numbers.
struct Rates {
  std::string machine;
  DType type = DType::bf16;
  double peak = 0;   // FLOP/s, for MFU
  double watts = 0;  // of a GPU; 0: unknown

  Rate products;      // of a product with a long sum
  Rate product_half;  // k: a product whose sum has K terms takes 1 + k / K times as long as its FLOPs
  Rate fp32_products;
  AttentionRates attention;
  Rate memory;     // of other kernels in forward and backward
  Rate optimizer;  // of the optimizer and of roundings
  Rate host_link;  // between device and host memory, in one direction
  Rate launch;     // host seconds per kernel launch; 0 in fsdp: for other programs (docs/simulator.md)
  Rate update;     // per update, outside of the device
  Rate spread;     // the standard deviation of the devices' speeds; `products` and others are those of 8 devices together

  Rate ring;                // in a node: bytes sent by a rank per second
  Rate shared_memory = {};  // CPUs: bytes that a rank reads and writes per second in collectives; 0: rings of NCCL
  Rate call;                // of a collective
  Rate hop;                 // of a ring in a node; that of the network is in `network`
  Rate network_share;       // of a port's bandwidth, that payload reaches
  Network network;
  Rate interference;            // the part of its rate that computing loses while a collective runs at the rate of `ring`
  Rate copies;                  // bytes copied around a reduction, for each element; 0 in fsdp: for other programs
  double all_reduce_bytes = 0;  // of an element that an all-reduce sends, in both passes; 0 in fsdp: as in the plan
  Queues queues = Queues::streams;
};

/// The rates of fsdp on a GPU, with a network, which is not used if the cluster has one node. `watts` is the power limit; 0
/// means the highest. Model: the width determines the rate of row kernels, and the device's traits which attention it uses.
Rates rates_of(const GpuFigures& gpu, const Transformer& model, DType type, const Network& network, double watts = 0);

/// The network of NVIDIA's own system with this GPU; without ports if there is none.
Network network_of(const GpuFigures& gpu);

/// The seconds of an operation. If the host's launches take longer than the work, `total` is more than the sum.
struct CostTime {
  double products = 0, attention = 0, memory = 0, total = 0;
};
/// The time of an operation that is not a collective, load or unload. `bandwidth` is Rates::memory or Rates::optimizer.
CostTime time_of(const Cost& cost, const Rates& rates, double bandwidth);

/// The bytes that a rank reads and writes in a collective of `ranks` processes through shared memory. In an all-gather it
/// copies the whole buffer. In a reduce-scatter it reads as much and writes its shard. An all-reduce does both, but for this
/// shard.
double touched_bytes(const CollectiveUse& use, std::size_t ranks);

/// A group of ranks. All groups of an axis use the ports of a node at the same time: `share_of_node` is the group's part.
struct RingGroup {
  int ranks = 1, nodes = 1;
  double share_of_node = 1;
};
RingGroup ring_group(GroupAxis axis, MeshShape mesh, const Cluster& cluster);
struct CollectiveTime {
  double seconds = 0;
  double slows = 0;  // the part of its rate that computing loses meanwhile
};
/// The time of a collective, with NCCL's rings or, for sums in canonical order, with the messages that traffic.hpp counts.
CollectiveTime time_of(const CollectiveUse& use, MeshShape mesh, const Cluster& cluster, const Rates& rates);
/// The expected maximum of n standard normal numbers (Blom 1958) less that of 8; 0 for fewer.
double slowest_of(int ranks);

/// The constants that matter for a user, for tables.
struct NamedRate {
  std::string name, value, source;
};
std::vector<NamedRate> named_rates(const Rates& rates);
/// The constants of fsdp with their sources.
nlohmann::json to_json(const Rates& rates);
nlohmann::json to_json(const GpuFigures& gpu);

}  // namespace fsdp
