#include "plan/wrap.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

/// A module: its name, the parameters of its own, and its children in order.
struct Module {
  std::string name;  // "transformer.h.0.attn"
  std::vector<std::size_t> own;
  std::vector<Module> children;

  /// Returns true for a list of modules (torch.nn.ModuleList), which cannot be wrapped.
  bool is_list() const {
    return !children.empty() && std::all_of(children.begin(), children.end(), [&](const Module& child) {
      const std::string last = child.name.substr(name.empty() ? 0 : name.size() + 1);
      return std::all_of(last.begin(), last.end(), [](char c) { return c >= '0' && c <= '9'; });
    });
  }
};

/// Builds the module tree from the dotted parameter names. The last part of a name is the parameter itself.
Module module_tree(const std::vector<Parameter>& parameters) {
  Module root;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const std::string& name = parameters[p].name;
    Module* at = &root;
    for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      const std::string child = name.substr(0, dot);
      auto found = std::find_if(at->children.begin(), at->children.end(), [&](const Module& m) { return m.name == child; });
      if (found == at->children.end()) found = at->children.insert(at->children.end(), Module{child, {}, {}});
      at = &*found;
    }
    at->own.push_back(p);
  }
  return root;
}

/// unit_of[p]: the name of parameter p's unit, "" for the root.
using Assignment = std::vector<std::string>;

/// PyTorch's recursion (torch/distributed/fsdp/wrap.py, _recursive_wrap with size_based_auto_wrap_policy). If a module is
/// large, its children are wrapped first. If the rest is still large, the module is wrapped, too. Returns the number of
/// elements wrapped.
std::size_t wrap_by_size(const Module& module, const std::vector<Parameter>& parameters, std::size_t least, bool is_root,
                         Assignment& unit_of) {
  const std::function<std::size_t(const Module&)> count = [&](const Module& m) {
    std::size_t n = 0;
    for (const std::size_t p : m.own) n += numel(parameters[p].shape);
    for (const Module& child : m.children) n += count(child);
    return n;
  };
  const std::size_t all = count(module);
  if (all < least) return 0;
  std::size_t wrapped = 0;
  for (const Module& child : module.children) wrapped += wrap_by_size(child, parameters, least, false, unit_of);
  if (is_root || module.is_list() || all - wrapped < least) return wrapped;
  const std::function<void(const Module&)> take = [&](const Module& m) {
    for (const std::size_t p : m.own)
      if (unit_of[p].empty()) unit_of[p] = module.name;
    for (const Module& child : m.children) take(child);
  };
  take(module);
  return all;
}

/// Appends the names of all modules, from the root down.
void list_modules(const Module& module, std::vector<std::string>& names) {
  if (!module.name.empty() && !module.is_list()) names.push_back(module.name);
  for (const Module& child : module.children) list_modules(child, names);
}

bool is_inside(std::string_view parameter, std::string_view module) {
  return parameter.size() > module.size() && parameter.starts_with(module) && parameter[module.size()] == '.';
}

void wrap_by_patterns(const std::vector<Parameter>& parameters, const WrapPolicy& policy, Assignment& unit_of) {
  std::vector<std::string> modules;
  list_modules(module_tree(parameters), modules);
  std::vector<const std::string*> taken_by(parameters.size());  // the pattern
  for (const std::string& pattern : policy.patterns) {
    bool found = false;
    for (const std::string& module : modules) {
      if (!matches(pattern, module)) continue;
      found = true;
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        if (!is_inside(parameters[p].name, module) || taken_by[p] == &pattern) continue;
        if (taken_by[p])
          throw UserError(format("`custom units` '{}' and '{}' overlap (both match {}); let each module match one of them",
                                 *taken_by[p], pattern, parameters[p].name));
        taken_by[p] = &pattern;
        unit_of[p] = policy.unit_per_match ? module : pattern;
      }
    }
    if (found) continue;
    if (const auto tied = tied_head(pattern, parameters))
      throw UserError(format("`custom units` '{}' matches no module: {}; name the module of that tensor", pattern, *tied));
    throw UserError(
        format("`custom units` '{}' matches no module with parameters (this model has {}, ...); correct the pattern", pattern,
               fmt::join(modules.begin(), modules.begin() + std::min<std::ptrdiff_t>(4, std::ssize(modules)), ", ")));
  }
}

std::string block_range(std::size_t first, std::size_t last, const std::vector<std::string>& stage_names) {
  if (!stage_names.empty()) return stage_names[1 + first] + (first == last ? "" : " to " + stage_names[1 + last]);
  return first == last ? format("block {}", first) : format("blocks {}-{}", first, last);
}

/// If the embedding and the head are not tied, each becomes a unit: they are the largest modules and are never used together. A
/// tied matrix is used at both ends, so it stays in the root.
void wrap_ends(const std::vector<Parameter>& parameters, const std::vector<std::string>& stage_names, Assignment& unit_of) {
  std::vector<std::size_t> embedding, head;
  bool after_blocks = false, has_matrix = false;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (parameters[p].block >= 0) {
      after_blocks = true;
      continue;
    }
    (after_blocks ? head : embedding).push_back(p);
    has_matrix |= after_blocks && parameters[p].shape.size() > 1;
  }
  if (!has_matrix) return;
  for (const std::size_t p : embedding) unit_of[p] = stage_names.empty() ? "embedding" : stage_names.front();
  for (const std::size_t p : head) unit_of[p] = stage_names.empty() ? "head" : stage_names.back();
}

Assignment assign(const std::vector<Parameter>& parameters, const WrapPolicy& policy,
                  const std::vector<std::string>& stage_names) {
  Assignment unit_of(parameters.size());
  std::size_t blocks = 0;
  for (const Parameter& p : parameters) blocks = std::max(blocks, static_cast<std::size_t>(p.block + 1));
  switch (policy.kind) {
    case WrapPolicy::Kind::none:
      break;
    case WrapPolicy::Kind::transformer:
      expect(policy.blocks_per_unit > 0, "a unit has blocks");
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        if (parameters[p].block < 0) continue;
        const std::size_t first =
            static_cast<std::size_t>(parameters[p].block) / policy.blocks_per_unit * policy.blocks_per_unit;
        unit_of[p] = block_range(first, std::min(first + policy.blocks_per_unit, blocks) - 1, stage_names);
      }
      wrap_ends(parameters, stage_names, unit_of);
      break;
    case WrapPolicy::Kind::size:
      wrap_by_size(module_tree(parameters), parameters, policy.min_num_params, true, unit_of);
      break;
    case WrapPolicy::Kind::custom:
      if (policy.unit_of)
        for (std::size_t p = 0; p < parameters.size(); ++p) unit_of[p] = policy.unit_of(parameters[p]);
      else
        wrap_by_patterns(parameters, policy, unit_of);
  }
  return unit_of;
}

std::size_t elements_of(const UnitSpec& unit, const std::vector<Parameter>& parameters) {
  std::size_t count = 0;
  for (const std::size_t p : unit.parameters) count += numel(parameters[p].shape);
  return count;
}

void warn_of_cost(const std::vector<Parameter>& parameters, const Assignment& unit_of, const WrapPolicy& policy,
                  std::vector<std::string>& warnings) {
  if (policy.kind != WrapPolicy::Kind::size) return;
  std::map<std::string, std::size_t> sizes;
  std::size_t all = 0;
  for (std::size_t p = 0; p < parameters.size(); ++p)
    sizes[unit_of[p]] += numel(parameters[p].shape), all += numel(parameters[p].shape);
  const auto largest =
      std::max_element(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (2 * largest->second > all)
    warnings.push_back(
        format("`least parameters of a unit` {} puts {} of {} parameters into one unit ({} in fp32 are gathered at once, "
               "and little communication can overlap with computation); lower `least parameters of a unit`",
               policy.min_num_params, format_count(static_cast<double>(largest->second)),
               format_count(static_cast<double>(all)), format_bytes(4.0 * static_cast<double>(largest->second))));
}

}  // namespace

std::vector<UnitSpec> wrap_parameters(const std::vector<Parameter>& parameters, const WrapPolicy& policy,
                                      const ParameterPatterns& patterns, std::vector<std::string>* warnings,
                                      const std::vector<std::string>& stage_names) {
  const Assignment unit_of = assign(parameters, policy, stage_names);
  if (warnings) warn_of_cost(parameters, unit_of, policy, *warnings);
  const bool has_adapters =
      std::any_of(parameters.begin(), parameters.end(), [](const Parameter& parameter) { return parameter.is_adapter; });
  if (has_adapters && !(patterns.freeze.empty() && patterns.train_only.empty() && patterns.frozen.empty()))
    throw UserError(
        "`frozen parameters` and `trained parameters` do not go with adapters (which are all that is trained); leave them out");
  std::vector<bool> frozen = patterns.frozen;
  if (frozen.empty()) {
    frozen = named_by(patterns.freeze, "frozen parameters", parameters);
    const std::vector<bool> trained = named_by(patterns.train_only, "trained parameters", parameters);
    for (std::size_t p = 0; p < parameters.size(); ++p) frozen[p] = frozen[p] || (!patterns.train_only.empty() && !trained[p]);
  }
  const std::vector<bool> ignored = named_by(patterns.ignore, "ignored parameters", parameters);
  std::map<std::string, std::vector<std::size_t>> parameters_of;
  for (std::size_t p = 0; p < parameters.size(); ++p) parameters_of[unit_of[p]].push_back(p);
  std::vector<UnitSpec> units;
  const auto add_unit = [&](const std::string& name) {
    for (const bool sharded : {true, false})
      for (const bool trainable : {true, false}) {
        std::vector<UnitSpec> by_rule;
        for (const std::size_t p : parameters_of[name]) {
          const bool quantized = parameters[p].quantized.has_value();
          const bool trains =
              !frozen[p] && !quantized && !parameters[p].is_constant && (parameters[p].is_adapter || !has_adapters);
          if (trains != trainable || ignored[p] == sharded) continue;
          const Rule& rule = parameters[p].is_state()        ? running_mean_rule()
                             : trainable && patterns.rule_of ? patterns.rule_of(parameters[p])
                                                             : adam_rule();
          auto unit = std::find_if(by_rule.begin(), by_rule.end(),
                                   [&](const UnitSpec& one) { return one.rule == &rule && one.quantized == quantized; });
          if (unit == by_rule.end())
            unit = by_rule.insert(by_rule.end(), {"", {}, trainable, sharded, &rule, trainable || !has_adapters, quantized});
          unit->parameters.push_back(p);
        }
        std::stable_sort(by_rule.begin(), by_rule.end(), [&](const UnitSpec& a, const UnitSpec& b) {
          if (a.quantized != b.quantized) return b.quantized;
          if (a.rule->is_of_state != b.rule->is_of_state) return b.rule->is_of_state;
          return elements_of(a, parameters) > elements_of(b, parameters);
        });
        for (UnitSpec& unit : by_rule) {
          unit.name = format("{}{}{}{}{}", name.empty() ? "root" : name, trainable ? "" : ", frozen",
                             sharded ? "" : ", ignored", unit.quantized ? ", quantized" : "",
                             unit.rule->is_of_state              ? ", state"
                             : unit.rule == by_rule.front().rule ? ""
                                                                 : format(", by {}", unit.rule->name));
          units.push_back(std::move(unit));
        }
      }
  };
  add_unit("");
  std::set<std::string> added = {""};
  for (const std::string& name : unit_of)
    if (added.insert(name).second) add_unit(name);
  if (std::none_of(units.begin(), units.end(), [](const UnitSpec& unit) { return unit.is_averaged(); }))
    throw UserError(
        "every parameter is frozen (there is nothing to train); narrow `frozen parameters` or widen `trained parameters`");
  return units;
}

}  // namespace fsdp
