#include "optim/optimizer.hpp"

#include <algorithm>

#include "base/registry.hpp"
#include "nn/patterns.hpp"

namespace fsdp {

namespace {

Registry<Optimizer>& table() {
  static Registry<Optimizer> rows(
      {&adamw_optimizer(), &cpu_adam_optimizer(), &adam_optimizer(), &sgd_optimizer(), &adagrad_optimizer(), &lion_optimizer(),
       &lamb_optimizer(), &adafactor_optimizer(), &muon_optimizer()},
      "there is no optimizer \"{}\"");
  return rows;
}

}  // namespace

const std::vector<const Optimizer*>& optimizers() { return table().rows(); }

const Optimizer& find_optimizer(std::string_view name) { return table().find(name); }

std::string_view algorithm_of(std::string_view name) {
  const Optimizer* const optimizer = table().look_up(name);
  return optimizer && !optimizer->same_as.empty() ? optimizer->same_as : name;
}

void add_optimizer(const Optimizer& optimizer) {
  expect(!optimizer.rules.empty() && (optimizer.rules.size() == 1 || optimizer.rule_of),
         "an optimizer with several rules must have rule_of");
  for (const Rule* rule : optimizer.rules) {
    expect(rule->update && rule->states.size() <= kernels::most_states,
           "a rule must have an update function, and not too many states");
    expect(!rule->by_element || (!rule->states.empty() && rule->statistics.rounds == 0 && !rule->whole.work),
           "a rule that works by element must have states, and needs no sums or whole matrices");
    const Rule* const other = find_rule(rule->name);
    expect(!other || other == rule, "two rules must not have the same name");
  }
  table().add(optimizer);
}

const Rule* find_rule(std::string_view name) {
  for (const Optimizer* optimizer : optimizers())
    for (const Rule* rule : optimizer->rules)
      if (rule->name == name) return rule;
  return name == running_mean_rule().name ? &running_mean_rule() : nullptr;
}

const Rule& rule_of(const OptimizerOptions& options, const Parameter& parameter) {
  if (parameter.is_state()) return running_mean_rule();
  const Optimizer& optimizer = *options.kind;
  return optimizer.rule_of ? optimizer.rule_of(options, parameter) : *optimizer.rules.front();
}

kernels::UpdateTarget target_of(const UnitMemory& memory, const OptimizerSlice& slice, const OptimizerOptions& options,
                                const OptimizerStep& step) {
  kernels::UpdateTarget target{
      .n = slice.range.size(), .norm = step.norm, .state_type = options.state_type, .copy = memory.copy.from(slice.offset)};
  if (memory.kept_parameters) {
    target.kept_parameter = memory.kept_parameters + slice.offset;
    target.kept_gradient = memory.kept_gradients + slice.offset;
    target.parameter_noise =
        kernels::rounding_noise(RandomSite::master_weights, options.seed, step.of_run, slice.parameter, slice.range.begin);
  } else {
    target.parameter = memory.parameters + slice.offset;
    target.gradient = memory.gradients + slice.offset;
  }
  for (std::size_t k = 0; k < target.state.size(); ++k)
    if (memory.states[k]) target.state[k] = memory.states[k] + slice.offset * size_of(options.state_type);
  if (options.state_type != DType::f32)
    target.noise =
        kernels::rounding_noise(RandomSite::optimizer_state, options.seed, step.number, slice.parameter, slice.range.begin);
  return target;
}

kernels::ExactSum& sum_of(const UnitMemory& memory, const OptimizerSlice& slice, int round, std::size_t i) {
  const auto r = static_cast<std::size_t>(round);
  return reinterpret_cast<kernels::ExactSum*>(memory.statistics[r] + memory.tensors[slice.tensor].words[r])[i];
}

std::vector<std::string> states_of(const OptimizerOptions& options, const std::vector<Parameter>& parameters) {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters)
    for (const StateInfo& state : rule_of(options, parameter).states)
      if (std::find(names.begin(), names.end(), state.name) == names.end()) names.emplace_back(state.name);
  return names;
}

std::vector<ParameterSettings> settings_of(const OptimizerOptions& options, const std::vector<Parameter>& parameters) {
  std::vector<ParameterSettings> settings(parameters.size());
  const std::vector<bool> without_decay = named_by(options.no_decay, "parameters without decay", parameters);
  for (std::size_t p = 0; p < parameters.size(); ++p) settings[p].momentum = parameters[p].momentum.value_or(0);
  for (std::size_t p = 0; p < parameters.size(); ++p)
    settings[p].weight_decay = parameters[p].decayed && !without_decay[p] ? options.weight_decay : 0;
  for (const auto& [pattern, scale] : options.learning_rate_scales) {
    const std::vector<bool> scaled = named_by({pattern}, "scales of the learning rate", parameters);
    for (std::size_t p = 0; p < parameters.size(); ++p)
      if (scaled[p]) settings[p].learning_rate_scale = scale;
  }
  for (const ParameterGroup& group : options.groups) {
    const std::vector<bool> members = named_by(group.patterns, "groups of parameters", parameters);
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      if (!members[p]) continue;
      if (group.weight_decay) settings[p].weight_decay = *group.weight_decay;
      if (group.learning_rate_scale) settings[p].learning_rate_scale = *group.learning_rate_scale;
    }
  }
  return settings;
}

}  // namespace fsdp
