// Optimizers over shards. What there is of them is data: a table of kinds (what users choose) and a table of rules (how a
// parameter is updated). A kind uses one rule, or one for matrices and one for the rest; a rule has states beside each
// parameter, and the functions that update a rank's part of a unit. Everything else (plan, memory, checkpoints, options) reads
// these tables: another optimizer is a row in each and a function.
//
// A parameter keeps its identity inside a flat shard: decay, rates, noise and statistics go by the parameter and the element's
// place in it, never by where the shard was cut.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.hpp"
#include "device/device.hpp"
#include "kernels/optimizers.hpp"
#include "nn/parameters.hpp"

namespace fsdp {

enum class OptimizerKind { adamw, cpu_adam, adam, sgd, adagrad, lion, lamb, adafactor, muon };

/// How a parameter is updated.
enum class Rule { adam, adam_amsgrad, sgd, sgd_momentum, adagrad, lion, lamb, adafactor_matrix, adafactor_vector, muon };

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01, momentum = 0;
  bool amsgrad = false, nesterov = false;
  DType state_type = DType::f32;  // of states that are as large as parameters
  std::uint32_t seed = 1;         // of the noise that 16-bit states are rounded with
  /// Shell globs over parameter names: no decay; numbers by which the learning rate is multiplied. By default vectors have no
  /// decay.
  std::vector<std::string> no_decay = {};
  std::vector<std::pair<std::string, double>> learning_rate_scales = {};
};

/// A kind as users know it: its names, PyTorch's defaults, and the options that it reads.
struct KindInfo {
  OptimizerKind kind;
  std::string_view name;
  double beta1, beta2, eps, weight_decay, momentum;
  bool reads_momentum, reads_nesterov, reads_amsgrad;
};
std::span<const KindInfo> optimizer_kinds();
const KindInfo& info_of(OptimizerKind kind);

/// How large a state is: as the parameter, of which a rank has its part; or an element for each of its rows or columns, which
/// every rank has.
enum class Extent { element, row, column };

struct StateInfo {
  std::string_view name;  // as in PyTorch's state dict
  Extent extent = Extent::element;
};

/// Some rules need sums over whole tensors, one round of them or two, the second of what follows from the first: each rank
/// counts its part in words, which are added up over the ranks as integers.
inline constexpr std::size_t most_rounds = 2;

/// A parameter of a unit, whether or not a rank has a part of it.
struct UnitTensor {
  bool is_matrix = false;
  std::size_t numel = 0, rows = 1, columns = 1;
  std::size_t first_row = 0, first_column = 0;      // in the unit's states by row and by column
  std::array<std::size_t, most_rounds> words = {};  // where the tensor's are in the unit's
};

/// A rank's part of a parameter inside its part of a unit, and how it is treated.
struct OptimizerSlice {
  std::size_t parameter;  // index in the model
  Range range;            // elements of the parameter
  std::size_t offset;     // of the first of them in the rank's part of the unit
  std::size_t tensor;     // index in the unit
  double learning_rate_scale = 1, weight_decay = 0;
};

/// A rank's part of a unit: where the kinds of its memory start.
struct UnitMemory {
  std::span<const UnitTensor> tensors;
  std::span<const OptimizerSlice> slices;
  float* parameters = nullptr;
  const float* gradients = nullptr;
  std::array<std::byte*, kernels::most_states> states = {};
  std::uint16_t* copy = nullptr;  // the parameters in 16 bits, of copy_type; null for none
  DType copy_type = DType::bf16;
  std::array<std::int64_t*, most_rounds> statistics = {};
  float* directions = nullptr;  // as long as the rank's part, for rules with whole matrices
};

/// One update, the same numbers on all ranks.
struct OptimizerStep {
  std::uint64_t number = 1;  // of updates since the states were zero: for bias corrections
  double learning_rate = 0, gradient_scale = 1;
  double gradient_norm = 0;  // before gradient_scale
};

using UpdateFunction = void (*)(Stream&, const UnitMemory&, const OptimizerOptions&, const OptimizerStep&);

/// A rule's rounds of sums: how many words a tensor has in a round, and what adds this rank's part to zeroed words, those of
/// earlier rounds being of the whole. It may move states on.
struct Statistics {
  int rounds = 0;
  std::size_t (*words)(const Shape& shape, int round) = nullptr;
  void (*count)(Stream&, const UnitMemory&, const OptimizerOptions&, const OptimizerStep&, int round) = nullptr;
};

/// A rule whose directions are made of whole matrices: each rank makes its part of what goes into them (`prepare`, into
/// UnitMemory::directions), one rank works on a matrix, in place, and each gets its part back.
struct WholeMatrices {
  UpdateFunction prepare = nullptr;
  void (*work)(Stream&, float* matrix, std::size_t rows, std::size_t columns, float* scratch) = nullptr;
  std::size_t (*scratch)(std::size_t rows, std::size_t columns) = nullptr;  // floats
  double (*cost)(std::size_t rows, std::size_t columns) = nullptr;          // of the work, in any unit
};

/// How often an update goes over memory: numbers read or written for each parameter, beside states, and for each state.
struct MemoryPasses {
  int numbers = 3, per_state = 2;  // parameter, gradient, parameter; once in and once out
};

struct RuleInfo {
  Rule rule;
  std::string_view name;          // in checkpoints
  std::vector<StateInfo> states;  // in the order of UnitMemory::states
  UpdateFunction update;
  MemoryPasses passes = {};
  Statistics statistics = {};
  WholeMatrices whole = {};
};
const RuleInfo& info_of(Rule rule);
/// Nothing of that name: null.
const RuleInfo* find_rule(std::string_view name);

/// The rule that updates a parameter.
Rule rule_of(const OptimizerOptions& options, const Parameter& parameter);
/// Names of all states that these options need for a model, each once.
std::vector<std::string> states_of(const OptimizerOptions& options, const std::vector<Parameter>& parameters);

/// Of each parameter.
struct ParameterSettings {
  double learning_rate_scale = 1, weight_decay = 0;
};
/// Throws UserError for a pattern that names nothing.
std::vector<ParameterSettings> settings_of(const OptimizerOptions& options, const std::vector<Parameter>& parameters);

}  // namespace fsdp
