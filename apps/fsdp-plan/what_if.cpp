#include "fsdp-plan/what_if.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "fsdp-plan/prediction_notes.hpp"
#include "plan/kind.hpp"

namespace fsdp {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PathShare, work, share)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WhatIf, change, gain)

namespace {

struct Change {
  const char* name;
  void (*apply)(Rates& rates, DiskRates& disk);
};
constexpr Change changes_to_try[] = {
    {"products x 2", [](Rates& r, DiskRates&) { r.products.value *= 2, r.fp32_products.value *= 2; }},
    {"attention x 2", [](Rates& r, DiskRates&) { r.attention = r.attention.scaled(2); }},
    {"memory bandwidth x 2", [](Rates& r, DiskRates&) { r.memory.value *= 2, r.optimizer.value *= 2; }},
    {"links in a node x 2", [](Rates& r, DiskRates&) { r.ring.value *= 2, r.shared_memory.value *= 2; }},
    {"network x 2", [](Rates& r, DiskRates&) { r.network.port_bandwidth *= 2; }},
    {"link to the host x 2", [](Rates& r, DiskRates&) { r.host_link.value *= 2; }},
    {"disk x 2", [](Rates&, DiskRates& d) { d.read *= 2, d.write *= 2; }},
    {"no latencies of collectives", [](Rates& r, DiskRates&) { r.call.value = r.hop.value = r.network.hop = 0; }},
    {"no slowing by collectives", [](Rates& r, DiskRates&) { r.interference.value = 0; }},
    {"no time of the host", [](Rates& r, DiskRates&) { r.update.value = 0; }}};

using Times = std::map<std::string, double>;

/// Seconds of the work on the critical path of an update.
Times path_of(const std::vector<SimulatedOperation>& operations, MeshShape mesh, const Cluster& cluster) {
  Times times;
  for (const SimulatedOperation& simulated : operations) {
    if (!simulated.is_critical) continue;
    const Operation& op = *simulated.operation;
    const CostTime& work = simulated.work;
    const double length = simulated.time.end - simulated.time.begin;
    if (is_collective(op)) {
      const bool leaves_node = ring_group(op.group, mesh, cluster).nodes > 1;
      times[format("{}s {}", name_of_collective(*op.kind->collective), leaves_node ? "between nodes" : "in a node")] += length;
    } else if (op.kind->part == UpdatePart::transfer) {
      times["copies of offloaded state"] += length;
    } else {
      times["slowing by collectives"] += length - work.total;
      if (is_of_optimizer(op))
        times["optimizer"] += work.total - work.products, times["optimizer's products"] += work.products;
      else if (op.kind->part == UpdatePart::again)
        times["recomputation"] += work.total;
      else
        times["products"] += work.products, times["attention"] += work.attention,
            times["other kernels"] += work.total - work.products - work.attention;
    }
  }
  return times;
}

/// Returns "a 10 %, b 5 %" of those that are not below half a percent.
template <class Items, class Text>
std::string listed(const Items& items, double(Items::value_type::*value), const Text& text) {
  std::string out;
  for (const auto& item : items)
    if (std::abs(item.*value) >= 0.005) out += (out.empty() ? "" : ", ") + text(item);
  return out;
}

}  // namespace

Bottlenecks find_bottlenecks(const Transformer& model, const ShardingOptions& options, MeshShape mesh, const Cluster& cluster,
                             const Rates& rates, const DiskRates& disk, SlowRank slow) {
  const UpdateSimulation simulation(model, options, mesh, cluster);
  const double total = simulation.predict(rates, disk, slow).total;
  Bottlenecks out;
  const std::size_t K = options.plan.micro_batches;
  Times times = path_of(simulation.operations(rates, disk, slow, std::min<std::size_t>(K, 3)), mesh, cluster);
  if (K > 3) {  // further micro-batches are like the third
    Times two = path_of(simulation.operations(rates, disk, slow, 2), mesh, cluster);
    for (auto& [work, seconds] : times) seconds = std::max(0.0, seconds + static_cast<double>(K - 3) * (seconds - two[work]));
  }
  times["host"] += rates.update;
  double sum = 0;
  for (const auto& [work, seconds] : times) sum += seconds;
  for (const auto& [work, seconds] : times)
    if (seconds > 1e-9 * sum) out.path.push_back({work, seconds / sum});
  for (const Change& change : changes_to_try) {
    Rates changed = rates;
    DiskRates changed_disk = disk;
    change.apply(changed, changed_disk);
    out.changes.push_back({change.name, total / simulation.predict(changed, changed_disk, slow).total - 1});
  }
  if (cluster.sum_order != SumOrder::library && cluster.ranks() > 1 && rates.queues == Queues::streams) {
    Cluster by_library = cluster;
    by_library.sum_order = SumOrder::library;
    const UpdateSimulation other(model, options, mesh, by_library);
    out.changes.push_back({"--sum-order library", total / other.predict(rates, disk, slow).total - 1});
  }
  std::ranges::stable_sort(out.path, std::greater(), &PathShare::share);
  std::ranges::stable_sort(out.changes, std::greater(), &WhatIf::gain);
  return out;
}

std::string describe(const Bottlenecks& b) {
  const std::string path =
      listed(b.path, &PathShare::share, [](const PathShare& p) { return format("{} {:.0f} %", p.work, 100 * p.share); });
  const std::string gains =
      listed(b.changes, &WhatIf::gain, [](const WhatIf& w) { return format("{} {:+.0f} %", w.change, 100 * w.gain); });
  return (path.empty() ? "" : wrapped(format("the critical path of an update: {}", path)) + "\n") +
         wrapped(format("tokens/s with one thing changed: {}", gains.empty() ? "no change brings half a percent" : gains)) +
         "\n";
}

nlohmann::json to_json(const Bottlenecks& b) { return {{"critical_path", b.path}, {"what_if", b.changes}}; }

}  // namespace fsdp
