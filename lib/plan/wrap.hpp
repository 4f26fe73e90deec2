// Defines which parameters form a unit: wrap policies over the module tree, and parameters that are frozen or not sharded. Pure
// functions of the model and the options.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "nn/parameters.hpp"
#include "nn/patterns.hpp"
#include "optim/optimizer.hpp"

namespace fsdp {

/// How modules become units. Parameters that are in no other unit belong to the root.
struct WrapPolicy {
  enum class Kind {
    transformer,  // a unit per `blocks_per_unit` blocks; also one for the embedding and one for the head if they are not tied
    size,         // modules of min_num_params or more, from the leaves up: PyTorch's size_based_auto_wrap_policy
    none,         // only the root
    custom,       // a unit for each of `patterns`, or the units that `unit_of` names
  };
  std::size_t blocks_per_unit = 1;
  Kind kind = Kind::transformer;
  std::size_t min_num_params = 100'000'000;
  std::vector<std::string> patterns = {};  // shell globs over module names, see matches()
  bool unit_per_match = false;             // of `patterns`: a unit for each outermost module that matches one
  /// Returns the name of a parameter's unit, "" for the root. If a program that uses the library sets it, it replaces
  /// `patterns`.
  std::function<std::string(const Parameter&)> unit_of = nullptr;
};

/// Shell globs over whole dotted parameter names.
struct ParameterPatterns {
  std::vector<std::string> freeze = {};      // not trained
  std::vector<std::string> train_only = {};  // all other parameters are not trained
  std::vector<std::string> ignore = {};      // kept whole on every rank
  std::vector<bool> frozen =
      {};  // by parameter: true if it is not trained; if not empty, it replaces `freeze` and `train_only`
  std::function<const Rule&(const Parameter&)> rule_of = nullptr;  // optimizer rule of a parameter; null: the same for all
};

/// A set of parameters that is gathered, released and reduced together. All of them are trained or none, all are sharded or
/// none, all are quantized or none, all are state of layers or none, and one optimizer rule updates them. If a unit of the
/// policy has parameters of several such kinds, it becomes several UnitSpecs, which are gathered and released together.
struct UnitSpec {
  /// "root", "embedding", "block 3", "blocks 0-3", "transformer.h.0.mlp"; of a user's layers "stem", "stem to blocks.2". ",
  /// frozen", ", ignored", ", quantized", ", state" or ", by adam" may follow.
  std::string name;
  std::vector<std::size_t> parameters;  // indices, ascending
  bool trainable = true;
  bool sharded = true;
  const Rule* rule = &adam_rule();  // the optimizer rule, if the unit is trained
  bool saved = true;                // false: a part of a base model, which checkpoints of its adapters leave out
  bool quantized = false;           // has only quantized matrices, or none

  /// Returns true if an average (EMA) of the parameters is kept, if there is one.
  bool is_averaged() const { return trainable && !rule->is_of_state; }
  bool operator==(const UnitSpec&) const = default;
};

/// Assigns every parameter to exactly one unit. The root's units come first, the others follow in the order of their first
/// parameter. If the model has adapters, only these are trained. Throws UserError if a pattern matches nothing, if patterns
/// overlap, or if no parameter is trained. `warnings`, if not null, receives options that are allowed but costly.
/// `stage_names`: see Model.
std::vector<UnitSpec> wrap_parameters(const std::vector<Parameter>& parameters, const WrapPolicy& policy,
                                      const ParameterPatterns& patterns = {}, std::vector<std::string>* warnings = nullptr,
                                      const std::vector<std::string>& stage_names = {});

}  // namespace fsdp
