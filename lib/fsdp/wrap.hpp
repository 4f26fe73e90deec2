// Which parameters form a unit: wrap policies over the module tree, and parameters that are frozen or left out of sharding.
// Pure functions of the model and the options.
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

/// How modules become units. What no unit takes belongs to the root.
struct WrapPolicy {
  enum class Kind {
    transformer,  // every blocks_per_unit blocks; the embedding and the head, if they are not tied
    size,         // modules of min_num_params or more, from the leaves up: PyTorch's size_based_auto_wrap_policy
    none,         // the root alone
    custom,       // a unit for each of `patterns`, or what `unit_of` says
  };
  std::size_t blocks_per_unit = 1;
  Kind kind = Kind::transformer;
  std::size_t min_num_params = 100'000'000;
  std::vector<std::string> patterns = {};  // shell globs over module names, see matches()
  /// Names the unit of a parameter, "" for the root. Where it is set, which only callers of the library can do, it is used
  /// instead of patterns.
  std::function<std::string(const Parameter&)> unit_of = nullptr;
};

/// Shell globs over whole dotted parameter names.
struct ParameterPatterns {
  std::vector<std::string> freeze = {};                            // not trained
  std::vector<std::string> train_only = {};                        // all others are not trained
  std::vector<std::string> ignore = {};                            // kept whole on every rank
  std::function<const Rule&(const Parameter&)> rule_of = nullptr;  // how a parameter is updated; null: all alike
};

/// A set of parameters that is gathered, released and reduced together: all of them are trained or none, by one rule, all are
/// sharded or none. A unit of the policy that has several kinds becomes several of these, which are gathered and released
/// together.
struct UnitSpec {
  std::string
      name;  // "root", "embedding", "block 3", "blocks 0-3", "transformer.h.0.mlp"; ", frozen", ", ignored", ", by adam"
  std::vector<std::size_t> parameters;  // indices, ascending
  bool trainable = true;
  bool sharded = true;
  const Rule* rule = &adam_rule();  // if it is trained

  bool operator==(const UnitSpec&) const = default;
};

/// Every parameter in exactly one unit; those of the root come first, the others follow in order of their first parameter.
/// Throws UserError for patterns that match nothing or overlap, and if nothing is left to train. `warnings`, if not null, gets
/// what is allowed but costly.
std::vector<UnitSpec> wrap_parameters(const std::vector<Parameter>& parameters, const WrapPolicy& policy,
                                      const ParameterPatterns& patterns = {}, std::vector<std::string>* warnings = nullptr);

}  // namespace fsdp
