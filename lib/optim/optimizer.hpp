// Optimizers over shards. An optimizer is one file in this folder and one line in the table of optimizer.cpp: a row that says
// what it is called, what PyTorch's defaults are and which rules it has; a rule says how a parameter is updated. Plan, memory,
// checkpoints, options and their help read these rows. docs/extending-optimizer.md adds one.
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

#include "base/element.hpp"
#include "device/device.hpp"
#include "kernels/optimizers.hpp"
#include "nn/parameters.hpp"

namespace fsdp {

struct Optimizer;
struct Rule;

/// The library's rows, each in its file: NAME.cpp.
const Optimizer& adamw_optimizer();
const Optimizer& cpu_adam_optimizer();
const Optimizer& adam_optimizer();
const Optimizer& sgd_optimizer();
const Optimizer& adagrad_optimizer();
const Optimizer& lion_optimizer();
const Optimizer& lamb_optimizer();
const Optimizer& adafactor_optimizer();
const Optimizer& muon_optimizer();

struct OptimizerOptions {
  const Optimizer* kind = &adamw_optimizer();
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01, momentum = 0;
  bool amsgrad = false, nesterov = false;
  DType state_type = DType::f32;  // of states that are as large as parameters
  std::uint32_t seed = 1;         // of the noise that 16-bit states are rounded with
  /// Shell globs over parameter names: no decay; numbers by which the learning rate is multiplied. By default vectors have no
  /// decay.
  std::vector<std::string> no_decay = {};
  std::vector<std::pair<std::string, double>> learning_rate_scales = {};
};

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
  Halves copy = {};  // the parameters in 16 bits, if they are computed with so
  std::array<std::int64_t*, most_rounds> statistics = {};
  float* directions = nullptr;  // as long as the rank's part, for rules with whole matrices
};

/// One update, the same numbers on all ranks.
struct OptimizerStep {
  std::uint64_t number = 1;  // of updates since the states were zero: for bias corrections
  double learning_rate = 0;
  const kernels::GradientNorm* norm = nullptr;  // where kernels read it; null as in UpdateTarget
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

/// How a parameter is updated. The name identifies the rule in checkpoints.
struct Rule {
  std::string_view name;
  std::vector<StateInfo> states = {};  // in the order of UnitMemory::states
  UpdateFunction update = nullptr;
  MemoryPasses passes = {};
  Statistics statistics = {};
  WholeMatrices whole = {};
};

/// The numbers of OptimizerOptions that an optimizer reads.
struct OptimizerReads {
  bool betas = false, eps = false, momentum = false, nesterov = false, amsgrad = false;
};

/// An optimizer as users know it. Numbers are PyTorch's defaults, or those of the paper where PyTorch has no such optimizer.
struct Optimizer {
  std::string_view name;          // the name that users choose it by, and that checkpoints hold
  std::string_view same_as = "";  // the name of another one with the same algorithm, whose states it takes
  std::string_view about = "";    // a sentence for the help, where the name does not say it all
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool l2_decay = false;  // decay is added to the gradient; else weights decay beside it
  OptimizerReads reads = {};
  std::vector<const Rule*> rules = {};
  /// The one of `rules` that updates a parameter; null: the first updates all.
  const Rule& (*rule_of)(const OptimizerOptions& options, const Parameter& parameter) = nullptr;
};

/// All rows, those of the library first.
const std::vector<const Optimizer*>& optimizers();
/// The row of this name. Throws UserError, which names those that there are.
const Optimizer& find_optimizer(std::string_view name);
/// Optimizers with the same one take each other's states: what `same_as` says, else the name, also of one that is not known.
std::string_view algorithm_of(std::string_view name);
/// Adds a row; `optimizer` and its rules must live as long as the program. Call it before anything else: threads that look for
/// an optimizer at the same time would see the table change.
void add_optimizer(const Optimizer& optimizer);

/// A rule of any optimizer by its name; null if there is none.
const Rule* find_rule(std::string_view name);
/// Adam's, which is also how AdamW updates, and the rest beside Muon's matrices.
const Rule& adam_rule();
/// The rule that updates a parameter.
const Rule& rule_of(const OptimizerOptions& options, const Parameter& parameter);

/// What kernels take of a rank's part of a parameter.
kernels::UpdateTarget target_of(const UnitMemory& memory, const OptimizerSlice& slice, const OptimizerOptions& options,
                                const OptimizerStep& step);
/// The i-th exact sum of a tensor in the words of a round of statistics; exact sums come first in them. Kernels alone know its
/// value.
kernels::ExactSum& sum_of(const UnitMemory& memory, const OptimizerSlice& slice, int round, std::size_t i);

/// Names of all states that these options need for a model, each once.
std::vector<std::string> states_of(const OptimizerOptions& options, const std::vector<Parameter>& parameters);

/// Of each parameter.
struct ParameterSettings {
  double learning_rate_scale = 1, weight_decay = 0;
};
/// Throws UserError for a pattern that names nothing.
std::vector<ParameterSettings> settings_of(const OptimizerOptions& options, const std::vector<Parameter>& parameters);

}  // namespace fsdp
