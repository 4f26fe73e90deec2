#include "machine/measured_rates.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/format.hpp"
#include "base/user_error.hpp"
#include "files/json.hpp"
#include "plan/kind.hpp"

namespace fsdp {

namespace {

// No node is faster or slower: limits that find damaged files.
constexpr double least_rate = 1e6, most_flops = 1e16, most_bytes_per_second = 1e14, most_cores = 1e5;
// Clocks may be higher than those of the data sheet, or of the product that measured a CPU's peak.
constexpr double most_of_peak = 1.2;
// Shorter collectives do not show the bandwidth of a ring.
constexpr double least_ring_bytes = 1 << 20;

double rate_of(double work, double seconds) { return work > 0 && seconds > 0 ? work / seconds : 0; }

/// Returns a number of a file. Throws UserError.
double checked(const nlohmann::json& object, const char* key, double least, double most, const std::string& name) {
  const double value = number_at(object, key);
  if (std::isnan(value))
    throw UserError(
        format("{} has no number '{}' (fsdp-bench --json writes one; the file is damaged, or of another version); "
               "measure again",
               name, key));
  if (!(value >= least && value <= most))
    throw UserError(
        format("{} has the impossible value {:g} for '{}' ({:g} to {:g}); measure again", name, value, key, least, most));
  return value;
}

/// The rates of a rank on CPUs, from the object `rates` of fsdp-bench step.
Rates cpu_rates(const nlohmann::json& content, const std::string& name, const MeasuredUse& use) {
  const nlohmann::json& node = content.at("rates");
  const double cores = checked(node, "cores", 0.01, most_cores, name),
               of_rank = use.cores > 0 ? use.cores : std::min(use.threads, cores / use.ranks_per_node),
               busy = of_rank * use.ranks_per_node, share = of_rank / cores;
  // Not all kernels use several threads equally well, so threads of a rank are slower than as many ranks.
  if (const double threads = checked(node, "threads", 1, most_cores, name); threads != use.threads)
    throw UserError(format(
        "{} was measured with --threads {:g}, but the job's ranks have {:g}; measure with --threads {:g}, or give the job "
        "as many",
        name, threads, use.threads, use.threads));
  // A core is faster if few others are busy, because they share memory and power. Within a factor of two that is small.
  if (busy > 1.01 * cores || busy < 0.49 * cores)
    throw UserError(
        format("{} was measured with {:g} busy cores on a node, but the {} of a node of the job would keep {:g} busy "
               "(no more, and at least half as many); measure with as many, or change --threads",
               name, cores, plural(use.ranks_per_node, "rank"), busy));
  const std::string arch = text_at(content, "arch"), with = arch.empty() ? "" : ", measured with " + excerpt(arch),
                    source = format("{}{}: {:.3g} of {:g} cores", name, with, of_rank, cores);
  const auto rate = [&](const char* key, double most) -> Rate {
    return {share * checked(node, key, least_rate, most, name), source};
  };
  Rates rates;
  rates.machine = format("{}, {:g} cores", text_at(content, "device"), cores);
  rates.type = use.type, rates.queues = use.queues;
  rates.peak = rate("peak", most_flops);
  rates.products = rates.fp32_products = rate("products", most_flops);
  if (rates.products > most_of_peak * rates.peak)
    throw UserError(format("{} has products that are {:.1f} times as fast as its peak (it is damaged); measure again", name,
                           rates.products / rates.peak));
  const double attention = rate("attention", most_flops);
  rates.attention = {equal_rates(attention), equal_rates(attention), 1, source};
  rates.memory = rates.host_link = rate("memory", most_bytes_per_second);
  rates.optimizer = rate("optimizer", most_bytes_per_second);
  if (use.ranks > 1) {
    if (!node.contains("collectives") || node["collectives"].is_null())
      throw UserError(
          format("{} has no rate of collectives (it was measured with one rank, or on several nodes), but the job has "
                 "{} ranks; measure with 2 or more ranks on one node",
                 name, use.ranks));
    rates.shared_memory = rates.ring = rate("collectives", most_bytes_per_second);
  }
  return rates;
}

/// Products: the least squares of seconds per output = (K + k) / rate, each with an equal relative error.
void read_products(const nlohmann::json& content, const std::string& name, const MeasuredUse& use, Rates& rates) {
  const double ranks = checked(content, "ranks", 1, most_cores, name);
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const nlohmann::json& product : content.at("products")) {
    const double K = checked(product, "k", 1, 1e9, name),
                 flops = 1e9 *
                         checked(product, "gflops", 1e-9 * least_rate, 1e-9 * most_of_peak * ranks * use.gpu->flops(use.type),
                                 name) /
                         ranks,
                 seconds = K / flops, weight = 1 / (seconds * seconds);
    n += weight, x += weight * K, y += weight * seconds, xx += weight * K * K, xy += weight * K * seconds;
  }
  const double divisor = n * xx - x * x;
  const double slope = divisor > 1e-9 * n * xx ? (n * xy - x * y) / divisor : 0, offset = n > 0 ? (y - slope * x) / n : 0;
  // Else noise is larger than the influence of K.
  const bool fits = slope * most_of_peak * use.gpu->flops(use.type) >= 1 && offset >= 0;
  if (!(fits || xy > 0)) throw UserError(format("{} lists no products (it is damaged); measure again", name));
  rates.products = {fits ? 1 / slope : xx / xy, name};
  rates.product_half = {fits ? offset / slope : 0, name};
  if (use.type == DType::f32) rates.fp32_products = rates.products;
}

/// Collectives of a node's GPUs: the ring's bandwidth from the largest all-gather, the time of a call from the smallest.
void read_collectives(const nlohmann::json& content, const std::string& name, const MeasuredUse& use, Rates& rates) {
  const double ranks = checked(content, "ranks", 1, most_cores, name);
  if (ranks != use.ranks_per_node || ranks < 2)
    throw UserError(
        format("{} has collectives of {:g} ranks, but a node of the job has {}; measure with the ranks of one node (2 "
               "or more)",
               name, ranks, use.ranks_per_node));
  double least = 0, most = 0, latency = 0, ring = 0;
  for (const nlohmann::json& one : content.at("collectives")) {
    if (text_at(one, "name") != "all-gather") continue;
    if (one.contains("group") && !text_at(one, "group").ends_with(format(" of {:g}", ranks))) continue;  // with --arch
    const double bytes = checked(one, "bytes", 1, 1e15, name), seconds = 1e-3 * checked(one, "ms", 1e-6, 1e6, name);
    if (least == 0 || bytes < least) least = bytes, latency = seconds;
    if (bytes > most) most = bytes, ring = rate_of(bytes * (ranks - 1) / ranks, seconds);
  }
  if (most > 0 && most < least_ring_bytes)
    throw UserError(format(
        "the largest all-gather of {} has {:g} bytes (1 MiB or more show the bandwidth); measure longer ones", name, most));
  if (!(ring >= least_rate && ring <= most_bytes_per_second))
    throw UserError(format(
        "{} has no all-gather with a possible rate ({:g} bytes/s); measure again with fsdp-bench collectives", name, ring));
  rates.ring = {ring, name};
  rates.call = {std::max(0.0, latency - (ranks - 1) * rates.hop), name};
}

}  // namespace

UpdateWork work_of_update(const Transformer& model, const Plan& plan, const Layout& layout, const ShardingOptions& options,
                          MeshShape mesh) {
  const StageWork stages(model, layout.trained(), options.batch, options.types.parameter);
  const Costing costing{layout, stages, options.optimizer, plan.blocks_in_pieces};
  UpdateWork work;
  for (const Operation& op : plan.update) {
    if (const auto use = collective_of(op)) {
      work.collective_bytes += touched_bytes(*use, members_along(use->axis, mesh).size);
      continue;
    }
    const Cost cost = cost_by_kind(op, costing);
    if (is_of_optimizer(op)) {
      work.optimizer_bytes += cost.memory_bytes;
      continue;
    }
    work.model.product_flops += cost.product_flops;
    work.model.attention_forward_flops += cost.attention_forward_flops;
    work.model.attention_backward_flops += cost.attention_backward_flops;
    work.model.memory_bytes += cost.memory_bytes;
  }
  return work;
}

WorkRates rates_of_work(const UpdateWork& work, const WorkSeconds& seconds) {
  return {rate_of(work.model.product_flops, seconds.products),
          rate_of(work.model.attention_forward_flops + work.model.attention_backward_flops, seconds.attention),
          rate_of(work.model.memory_bytes, seconds.memory), rate_of(work.optimizer_bytes, seconds.optimizer),
          rate_of(work.collective_bytes, seconds.collectives)};
}

nlohmann::json to_json(const WorkRates& node, int threads, double cores, double peak) {
  return {{"threads", threads},
          {"cores", cores},
          {"peak", peak},
          {"products", node.products},
          {"attention", node.attention},
          {"memory", node.memory},
          {"optimizer", node.optimizer},
          {"collectives", node.collectives > 0 ? nlohmann::json(node.collectives) : nlohmann::json()}};
}

Rates measured_rates(const nlohmann::json& content, const std::string& name, const MeasuredUse& use, Rates rates) {
  const std::string device = text_at(content, "device"), precision = text_at(content, "precision");
  const bool has_rates = content.is_object() && content.contains("rates"),
             has_products = content.is_object() && content.contains("products"),
             has_collectives = content.is_object() && content.contains("collectives");
  if (device.empty() || !(has_rates || has_products || has_collectives))
    throw UserError(
        format("{} is no measurement of rates (fsdp-bench step --json on CPUs, gemm and collectives --json on GPUs "
               "write one); give another file",
               name));
  const GpuFigures* const measured = figures_of(device);
  const bool on_gpu = measured || !device.starts_with("CPU");
  if (use.gpu ? measured != use.gpu : on_gpu || (!use.device.empty() && device != use.device))
    throw UserError(format("{} was measured on another machine ({}, not {}); measure on this one", name, excerpt(device),
                           use.gpu              ? std::string(use.gpu->product)
                           : use.device.empty() ? std::string("a CPU")
                                                : use.device));
  if ((has_rates || has_products) && precision != name_of(use.type))
    throw UserError(format("{} was measured in {}, but the job computes in {}; measure with --precision {}", name,
                           excerpt(precision), name_of(use.type), name_of(use.type)));
  if (!use.gpu) {
    if (!has_rates)
      throw UserError(name + " has no rates of an update (on CPUs they come from fsdp-bench step --json); give such a file");
    return cpu_rates(content, name, use);
  }
  if (!has_products && !has_collectives)
    throw UserError(name +
                    " has no products or collectives of a GPU (fsdp-bench gemm or collectives --json); give such a file");
  if (has_products) read_products(content, name, use, rates);
  if (has_collectives) read_collectives(content, name, use, rates);
  return rates;
}

Rates measured_rates(std::span<const std::string> files, const MeasuredUse& use, Rates rates) {
  if (!use.gpu && files.size() > 1)
    throw UserError("--measured has several files (on CPUs one file has all rates); give the output of fsdp-bench step --json");
  std::map<std::string, std::string> files_with;
  for (const std::string& file : files) {
    const std::string name = "--measured " + excerpt(file);
    const nlohmann::json content = read_strict_json_file(file, name);
    for (const char* const what : {"products", "collectives"})
      if (content.is_object() && content.contains(what))
        if (const auto [known, is_new] = files_with.emplace(what, excerpt(file)); !is_new)
          throw UserError(format("{} has {}, but {} has them, too; give one of the two", name, what, known->second));
    rates = measured_rates(content, name, use, std::move(rates));
  }
  return rates;
}

}  // namespace fsdp
