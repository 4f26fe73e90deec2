#include "bench/parts.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "base/timer.hpp"
#include "comm/agree.hpp"
#include "files/json.hpp"
#include "kernels/kernels.hpp"
#include "kernels/threads.hpp"
#include "machine/machine.hpp"
#include "nn/config.hpp"
#include "plan/layout.hpp"

namespace fsdp {

namespace {

float* floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

/// Returns true if the optimizer updates bf16 state in one pass; SGD is measured with momentum.
bool works_by_element(const Optimizer& optimizer) {
  return std::ranges::all_of(optimizer.rules, [](const Rule* rule) { return rule->by_element || rule->states.empty(); });
}

/// Returns true if parameters, gradients and moments are bf16. Only updates in one pass are then measured.
bool is_narrow(const PartsOptions& options) {
  const DType master = options.sharding.types.master, gradient = options.sharding.types.gradient;
  if (master == DType::f32 && gradient == DType::f32) return false;
  if (master != gradient || options.sharding.optimizer.state_type != master)
    throw UserError(
        "the update is measured with parameters and gradients in fp32, or with everything in bf16; give all of --master-dtype "
        "bf16, --grad-dtype bf16 and --optimizer-state-dtype bf16, or leave out the first two");
  if (!options.optimizer.empty() && !works_by_element(find_optimizer(options.optimizer)))
    throw UserError(
        format("{} does not update bf16 parameters in one pass; leave out --master-dtype and --grad-dtype", options.optimizer));
  return true;
}

/// One optimizer with random gradients. This rank holds all parameters of the model, unsharded.
class Contestant {
 public:
  Contestant(const OptimizerOptions& options, bool narrow, const std::vector<Parameter>& parameters, Device& device,
             Stream& stream)
      : options_(options),
        layout_(parameters,
                wrap_parameters(parameters, {.kind = WrapPolicy::Kind::none},
                                {.rule_of = [&](const Parameter& p) -> const Rule& { return rule_of(options, p); }}),
                1) {
    const auto settings = settings_of(options, parameters);
    for (std::size_t u = 0; u < layout_.units().size(); ++u) {
      const std::size_t n = layout_.shard_numel(u);
      const Rule& rule = *layout_.units()[u].rule;
      const auto room = [&](std::size_t bytes) -> std::byte* {
        return memory_.emplace_back(device.allocate(std::max<std::size_t>(bytes, 64))).data();
      };
      parts_.push_back(parts_of_unit(layout_, u, 0, settings));
      UnitMemory unit{.tensors = parts_.back().tensors, .slices = parts_.back().slices};
      const auto normal = [&](std::uint32_t tensor, float deviation) {
        auto* const numbers = reinterpret_cast<float*>(room(n * sizeof(float)));
        kernels::fill_normal(stream, numbers, n, 0, 1, 2 * static_cast<std::uint32_t>(u) + tensor, 0, deviation);
        return numbers;
      };
      const auto in_bf16 = [&](const float* numbers) {
        auto* const kept = reinterpret_cast<bf16*>(room(n * sizeof(bf16)));
        kernels::convert(stream, kept, numbers, n);
        stream.synchronize();
        memory_.erase(memory_.end() - 2);  // the numbers in fp32
        return kept;
      };
      if (narrow) {
        unit.kept_parameters = in_bf16(normal(0, 0.02f));
        unit.kept_gradients = in_bf16(normal(1, 1e-3f));
      } else {
        unit.parameters = normal(0, 0.02f);
        unit.gradients = normal(1, 1e-3f);
      }
      std::size_t states = 0;
      for (std::size_t k = 0; k < rule.states.size(); ++k) {
        const Extent extent = rule.states[k].extent;
        unit.states[k] =
            room(layout_.state_numel(u, extent) * size_of(extent == Extent::element ? options.state_type : DType::f32));
        states += extent == Extent::element;
      }
      for (int round = 0; round < rule.statistics.rounds; ++round)
        unit.statistics[static_cast<std::size_t>(round)] =
            reinterpret_cast<std::int64_t*>(room(layout_.statistics(u, round).size() * sizeof(std::int64_t)));
      if (rule.whole.work) unit.directions = reinterpret_cast<float*>(room(n * sizeof(float)));
      for (const UnitTensor& tensor : unit.tensors) {
        if (!rule.whole.work) continue;
        scratch_numel_ = std::max(scratch_numel_, rule.whole.scratch(tensor.rows, tensor.columns));
        flops_ += rule.whole.cost(tensor.rows, tensor.columns);
      }
      bytes_ += static_cast<double>(layout_.units()[u].numel) *
                static_cast<double>(static_cast<std::size_t>(rule.passes.numbers) * (narrow ? sizeof(bf16) : sizeof(float)) +
                                    static_cast<std::size_t>(rule.passes.per_state) * states * size_of(options.state_type));
      numel_ += layout_.units()[u].numel;
      units_.push_back(unit);
    }
    scratch_ = device.allocate(std::max<std::size_t>(scratch_numel_, 16) * sizeof(float));
    norm_ = device.allocate(sizeof(kernels::GradientNorm));
    const kernels::GradientNorm norm = {.norm = 1e-3 * std::sqrt(static_cast<double>(numel_))};
    stream.copy(norm_.data(), &norm, sizeof(norm));
    stream.synchronize();
  }

  /// Runs one update in the same way as training on one rank. Returns the seconds of the update, and the part of them that is
  /// spent on matrix products, for optimizers such as Muon that work on whole matrices.
  std::pair<double, double> update(Stream& stream) {
    ++number_;
    const OptimizerStep step = {number_, 1e-4, reinterpret_cast<kernels::GradientNorm*>(norm_.data()), number_};
    const Timer timer;
    double matrices = 0;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const Rule& rule = *layout_.units()[u].rule;
      UnitMemory& unit = units_[u];
      for (int round = 0; round < rule.statistics.rounds; ++round) {
        kernels::fill_zero(stream, reinterpret_cast<float*>(unit.statistics[static_cast<std::size_t>(round)]),
                           layout_.statistics(u, round).size() * sizeof(std::int64_t) / sizeof(float));
        rule.statistics.count(stream, unit, options_, step, round);
      }
      if (rule.whole.work) {
        rule.whole.prepare(stream, unit, options_, step);
        stream.synchronize();
        const Timer work;
        for (std::size_t i = 0; i < unit.tensors.size(); ++i)
          rule.whole.work(stream, unit.directions + layout_.units()[u].offsets[i], unit.tensors[i].rows,
                          unit.tensors[i].columns, floats(scratch_));
        stream.synchronize();
        matrices += work.seconds();
      }
      rule.update(stream, unit, options_, step);
    }
    stream.synchronize();
    return {timer.seconds(), matrices};
  }

  double bytes() const { return bytes_; }
  double flops() const { return flops_; }
  std::size_t numel() const { return numel_; }

 private:
  OptimizerOptions options_;
  Layout layout_;
  std::vector<UnitParts> parts_;
  std::vector<Buffer> memory_;
  std::vector<UnitMemory> units_;
  Buffer scratch_;
  std::size_t scratch_numel_ = 0, numel_ = 0;
  std::uint64_t number_ = 0;
  double bytes_ = 0, flops_ = 0;
  Buffer norm_;  // a kernels::GradientNorm
};

struct Figure {
  std::string name;
  double bytes_per_parameter, ms, rate, of_copy, matrix_ms, matrix_rate;
};

}  // namespace

std::string bench_optimizer(const PartsOptions& options, Communicator& world, Device& device, Stream& stream) {
  const bool narrow = agree(world, [&] { return is_narrow(options); });
  const std::vector<Parameter> parameters = agree(world, [&] { return list_parameters(config_of(options)).parameters; });
  std::size_t numel = 0;
  for (const Parameter& parameter : parameters) numel += fsdp::numel(parameter.shape);

  const auto [from, to] =
      agree(world, [&] { return std::pair(device.allocate(numel * sizeof(float)), device.allocate(numel * sizeof(float))); });
  kernels::fill_normal(stream, floats(from), numel, 0, 1, 0, 0, 1);
  std::vector<Figure> figures;
  for (const Optimizer* const row : optimizers()) {
    const Optimizer& kind = *row;
    if (!options.optimizer.empty() ? options.optimizer != kind.name : !kind.same_as.empty()) continue;
    if (narrow && !works_by_element(kind)) continue;
    std::optional<Contestant> ours;
    agree(world, [&] {
      ours.emplace(OptimizerOptions{.kind = &kind,
                                    .beta1 = kind.beta1,
                                    .beta2 = kind.beta2,
                                    .eps = kind.eps,
                                    .weight_decay = 0.01,
                                    .momentum = &kind == &sgd_optimizer() ? 0.9 : kind.momentum,
                                    .state_type = options.sharding.optimizer.state_type},
                   narrow, parameters, device, stream);
    });
    std::vector<double> seconds, copies, matrices;
    for (std::size_t i = 0; i < options.steps + 2; ++i) {
      world.barrier();
      const auto [all, of_matrices] = ours->update(stream);
      world.barrier();
      const Timer timer;
      kernels::copy(stream, floats(to), floats(from), numel);
      stream.synchronize();
      const double copy = timer.seconds();
      if (i < 2) continue;
      seconds.push_back(all);
      copies.push_back(copy);
      matrices.push_back(of_matrices);
    }
    const double time = median(seconds), matrix_time = median(matrices), rate = ours->bytes() / (time - matrix_time);
    const double copy_rate = 2.0 * sizeof(float) * static_cast<double>(numel) / median(copies);
    figures.push_back({std::string(kind.name) + (&kind == &sgd_optimizer() ? ", momentum" : ""),
                       ours->bytes() / static_cast<double>(ours->numel()), time * 1e3, rate, rate / copy_rate,
                       matrix_time * 1e3, matrix_time > 0 ? ours->flops() / matrix_time : 0});
  }

  nlohmann::json json = {{"arch", model_of(options)},
                         {"device", device.description()},
                         {"parameters", numel},
                         {"ranks", world.size()},
                         {"threads", kernels::threads()},
                         {"state_dtype", name_of(options.sharding.optimizer.state_type)},
                         {"master_dtype", name_of(options.sharding.types.master)},
                         {"grad_dtype", name_of(options.sharding.types.gradient)},
                         {"optimizers", nlohmann::json::array()}};
  std::string text = format(
      "{}; {}, {} parameters on each of {} ranks of {} threads, moments in {}{}; rank 0's medians of {}, in turn with a copy\n"
      "{:<16} {:>10} {:>9} {:>8} {:>10}\n",
      device.description(), model_of(options), format_count(static_cast<double>(numel)), world.size(), kernels::threads(),
      name_of(options.sharding.optimizer.state_type), narrow ? ", everything else too" : "", options.steps, "", "bytes/param",
      "ms", "GB/s", "of copy");
  for (const Figure& f : figures) {
    text += format("{:<16} {:>10.1f} {:>9.1f} {:>8.1f} {:>9.0f}%", f.name, f.bytes_per_parameter, f.ms, f.rate / 1e9,
                   100 * f.of_copy);
    if (f.matrix_ms > 0)
      text += format("  and of the time {:.1f} ms of products, {:.0f} GFLOP/s", f.matrix_ms, f.matrix_rate / 1e9);
    text += "\n";
    json["optimizers"].push_back({{"name", f.name},
                                  {"bytes_per_parameter", f.bytes_per_parameter},
                                  {"ms", f.ms},
                                  {"bytes_per_second", f.rate},
                                  {"of_copy", f.of_copy},
                                  {"matrix_ms", f.matrix_ms},
                                  {"matrix_flops", f.matrix_rate}});
  }
  return options.json ? json_text(json) + "\n" : text;
}

}  // namespace fsdp
