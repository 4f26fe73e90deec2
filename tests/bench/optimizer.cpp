#include "bench/parts.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
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

/// One optimizer with random gradients. This rank holds all parameters of the model, unsharded.
class Contestant {
 public:
  Contestant(const OptimizerOptions& options, const std::vector<Parameter>& parameters, Device& device, Stream& stream)
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
      unit.parameters = reinterpret_cast<float*>(room(n * sizeof(float)));
      auto* const gradients = reinterpret_cast<float*>(room(n * sizeof(float)));
      unit.gradients = gradients;
      kernels::fill_normal(stream, unit.parameters, n, 0, 1, 2 * static_cast<std::uint32_t>(u), 0, 0.02f);
      kernels::fill_normal(stream, gradients, n, 0, 1, 2 * static_cast<std::uint32_t>(u) + 1, 0, 1e-3f);
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
                static_cast<double>(static_cast<std::size_t>(rule.passes.numbers) * sizeof(float) +
                                    static_cast<std::size_t>(rule.passes.per_state) * states * size_of(options.state_type));
      numel_ += layout_.units()[u].numel;
      units_.push_back(unit);
    }
    scratch_ = device.allocate(std::max<std::size_t>(scratch_numel_, 16) * sizeof(float));
    norm_.norm = 1e-3 * std::sqrt(static_cast<double>(numel_));
  }

  /// Runs one update in the same way as training on one rank. Returns the seconds of the update, and the part of them that is
  /// spent on matrix products, for optimizers such as Muon that work on whole matrices.
  std::pair<double, double> update(Stream& stream) {
    const OptimizerStep step = {++number_, 1e-4, &norm_};
    const Timer timer;
    double matrices = 0;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const Rule& rule = *layout_.units()[u].rule;
      UnitMemory& unit = units_[u];
      for (int round = 0; round < rule.statistics.rounds; ++round) {
        std::fill_n(unit.statistics[static_cast<std::size_t>(round)], layout_.statistics(u, round).size(), 0);
        rule.statistics.count(stream, unit, options_, step, round);
      }
      if (rule.whole.work) {
        rule.whole.prepare(stream, unit, options_, step);
        const Timer work;
        for (std::size_t i = 0; i < unit.tensors.size(); ++i)
          rule.whole.work(stream, unit.directions + layout_.units()[u].offsets[i], unit.tensors[i].rows,
                          unit.tensors[i].columns, floats(scratch_));
        matrices += work.seconds();
      }
      rule.update(stream, unit, options_, step);
    }
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
  kernels::GradientNorm norm_;
};

struct Figure {
  std::string name;
  double bytes_per_parameter, ms, rate, of_copy, matrix_ms, matrix_rate;
};

}  // namespace

std::string bench_optimizer(const PartsOptions& options, Communicator& world, Device& device, Stream& stream) {
  const std::vector<Parameter> parameters = agree(world, [&] { return list_parameters(config_of(options)).parameters; });
  std::size_t numel = 0;
  for (const Parameter& parameter : parameters) numel += fsdp::numel(parameter.shape);

  const Buffer from = device.allocate(numel * sizeof(float)), to = device.allocate(numel * sizeof(float));
  kernels::fill_normal(stream, floats(from), numel, 0, 1, 0, 0, 1);
  std::vector<Figure> figures;
  for (const Optimizer* const row : optimizers()) {
    const Optimizer& kind = *row;
    if (!options.optimizer.empty() ? options.optimizer != kind.name : !kind.same_as.empty()) continue;
    std::optional<Contestant> ours;
    agree(world, [&] {
      ours.emplace(OptimizerOptions{.kind = &kind,
                                    .beta1 = kind.beta1,
                                    .beta2 = kind.beta2,
                                    .eps = kind.eps,
                                    .weight_decay = 0.01,
                                    .momentum = &kind == &sgd_optimizer() ? 0.9 : kind.momentum,
                                    .state_type = options.sharding.optimizer.state_type},
                   parameters, device, stream);
    });
    std::vector<double> seconds, copies, matrices;
    for (std::size_t i = 0; i < options.steps + 2; ++i) {
      world.barrier();
      const auto [all, of_matrices] = ours->update(stream);
      world.barrier();
      const Timer timer;
      kernels::copy(stream, floats(to), floats(from), numel);
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
                         {"parameters", numel},
                         {"ranks", world.size()},
                         {"threads", kernels::threads()},
                         {"state_dtype", name_of(options.sharding.optimizer.state_type)},
                         {"optimizers", nlohmann::json::array()}};
  std::string text = format(
      "{}, {} parameters on each of {} ranks of {} threads, moments in {}; rank 0's medians of {}, in turn with a copy\n"
      "{:<16} {:>10} {:>9} {:>8} {:>10}\n",
      model_of(options), format_count(static_cast<double>(numel)), world.size(), kernels::threads(),
      name_of(options.sharding.optimizer.state_type), options.steps, "", "bytes/param", "ms", "GB/s", "of copy");
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
