#include "optim/optimizer.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "nn/patterns.hpp"
#include "optim/elementwise.hpp"
#include "optim/muon.hpp"
#include "optim/statistics.hpp"

namespace fsdp {

namespace {

using Kind = OptimizerKind;

constexpr std::array kinds = {
    // betas, eps, weight decay, momentum; reads momentum, nesterov, amsgrad
    KindInfo{Kind::adamw, "adamw", 0.9, 0.999, 1e-8, 0.01, 0, false, false, true},
    KindInfo{Kind::cpu_adam, "cpu_adam", 0.9, 0.999, 1e-8, 0.01, 0, false, false, true},
    KindInfo{Kind::adam, "adam", 0.9, 0.999, 1e-8, 0, 0, false, false, true},
    KindInfo{Kind::sgd, "sgd", 0.9, 0.999, 1e-8, 0, 0, true, true, false},
    KindInfo{Kind::adagrad, "adagrad", 0.9, 0.999, 1e-10, 0, 0, false, false, false},
    KindInfo{Kind::lion, "lion", 0.9, 0.99, 1e-8, 0, 0, false, false, false},
    KindInfo{Kind::lamb, "lamb", 0.9, 0.999, 1e-6, 0.01, 0, false, false, false},
    KindInfo{Kind::adafactor, "adafactor", 0.9, 0.999, 1e-8, 0, 0, false, false, false},
    KindInfo{Kind::muon, "muon", 0.9, 0.999, 1e-8, 0.1, 0.95, true, true, false},
};

const std::vector<RuleInfo>& rules() {
  static const std::vector<RuleInfo> all = {
      {Rule::adam, "adam", {{"exp_avg"}, {"exp_avg_sq"}}, update_adam},
      {Rule::adam_amsgrad, "adam_amsgrad", {{"exp_avg"}, {"exp_avg_sq"}, {"max_exp_avg_sq"}}, update_amsgrad},
      {Rule::sgd, "sgd", {}, update_sgd},
      {Rule::sgd_momentum, "sgd_momentum", {{"momentum_buffer"}}, update_sgd},
      {Rule::adagrad, "adagrad", {{"sum"}}, update_adagrad},
      {Rule::lion, "lion", {{"exp_avg"}}, update_lion},
      {Rule::lamb, "lamb", {{"exp_avg"}, {"exp_avg_sq"}}, update_lamb, {4, 3}, {1, lamb_words, lamb_statistics}},
      {Rule::adafactor_matrix,
       "adafactor_matrix",
       {{"row_var", Extent::row}, {"col_var", Extent::column}},
       update_adafactor,
       {7, 0},
       {2, adafactor_words, adafactor_statistics}},
      {Rule::muon,
       "muon",
       {{"momentum_buffer"}},
       update_muon,
       {5, 2},
       {},
       {muon_direction, kernels::newton_schulz, kernels::newton_schulz_scratch, kernels::newton_schulz_flops}},
      {Rule::adafactor_vector,
       "adafactor_vector",
       {{"variance"}},
       update_adafactor,
       {5, 4},
       {2, adafactor_words, adafactor_statistics}},
  };
  return all;
}

}  // namespace

std::span<const KindInfo> optimizer_kinds() { return kinds; }

const KindInfo& info_of(OptimizerKind kind) {
  return *std::find_if(kinds.begin(), kinds.end(), [&](const KindInfo& info) { return info.kind == kind; });
}

const RuleInfo& info_of(Rule rule) {
  return *std::find_if(rules().begin(), rules().end(), [&](const RuleInfo& info) { return info.rule == rule; });
}

const RuleInfo* find_rule(std::string_view name) {
  for (const RuleInfo& info : rules())
    if (info.name == name) return &info;
  return nullptr;
}

Rule rule_of(const OptimizerOptions& options, const Parameter& parameter) {
  switch (options.kind) {
    case Kind::adamw:
    case Kind::cpu_adam:
    case Kind::adam:
      return options.amsgrad ? Rule::adam_amsgrad : Rule::adam;
    case Kind::sgd:
      return options.momentum == 0 ? Rule::sgd : Rule::sgd_momentum;
    case Kind::adagrad:
      return Rule::adagrad;
    case Kind::lion:
      return Rule::lion;
    case Kind::lamb:
      return Rule::lamb;
    case Kind::adafactor:
      return parameter.shape.size() > 1 ? Rule::adafactor_matrix : Rule::adafactor_vector;
    case Kind::muon:  // matrices of blocks; embeddings and head are AdamW's
      return parameter.shape.size() == 2 && parameter.block >= 0 ? Rule::muon : Rule::adam;
  }
  fail_expectation("unknown kind of optimizer", std::source_location::current());
}

std::vector<std::string> states_of(const OptimizerOptions& options, const std::vector<Parameter>& parameters) {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters)
    for (const StateInfo& state : info_of(rule_of(options, parameter)).states)
      if (std::find(names.begin(), names.end(), state.name) == names.end()) names.emplace_back(state.name);
  return names;
}

std::vector<ParameterSettings> settings_of(const OptimizerOptions& options, const std::vector<Parameter>& parameters) {
  std::vector<ParameterSettings> settings(parameters.size());
  const std::vector<bool> without_decay = named_by(options.no_decay, "parameters without decay", parameters);
  for (std::size_t p = 0; p < parameters.size(); ++p)
    settings[p].weight_decay = parameters[p].decayed && !without_decay[p] ? options.weight_decay : 0;
  for (const auto& [pattern, scale] : options.learning_rate_scales) {
    const std::vector<bool> scaled = named_by({pattern}, "scales of the learning rate", parameters);
    for (std::size_t p = 0; p < parameters.size(); ++p)
      if (scaled[p]) settings[p].learning_rate_scale = scale;
  }
  return settings;
}

}  // namespace fsdp
