// Optimizers over shards. An optimizer is an Optimizer struct with a name, default values and rules; a rule defines how a
// parameter is updated. Each optimizer has a file in this folder and a line in the table of optimizer.cpp. The execution plan,
// the memory plan, checkpoints, options and the help text use this table. docs/extending-optimizer.md shows how to add an
// optimizer.
//
// A parameter keeps its identity inside a flat shard: decay, learning rate, noise and statistics depend on the parameter and
// the element's position in it, never on where the shard was cut.
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
#include "optim/parameter_group.hpp"

namespace fsdp {

struct Optimizer;
struct Rule;

/// The library's optimizers, each defined in its file NAME.cpp.
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
  DType state_type = DType::f32;  // of states with as many elements as the parameter
  std::uint32_t seed = 1;         // of the noise for rounding 16-bit states
  /// Shell globs over parameter names. `no_decay` selects parameters without weight decay; vectors never have it. The factors
  /// of `learning_rate_scales` multiply the learning rate of the parameters that match.
  std::vector<std::string> no_decay = {};
  std::vector<std::pair<std::string, double>> learning_rate_scales = {};
  std::vector<ParameterGroup> groups = {};  // in addition to the patterns above, which they override
};

/// The size of a state. `element`: the state has as many elements as the parameter, and is sharded like the parameter. `row` or
/// `column`: the state has one element for each row or column of a matrix, and every rank has the whole state.
enum class Extent { element, row, column };

struct StateInfo {
  std::string_view name;  // the name in PyTorch's state dict
  Extent extent = Extent::element;
};

/// Some rules need sums over whole tensors, in one or two rounds. The second round may use the sums of the first. Each rank
/// adds its part to integer words, which are summed over the ranks.
inline constexpr std::size_t most_rounds = 2;

/// A parameter of an FSDP unit. A unit's parameters are listed even if this rank has no part of them.
struct UnitTensor {
  bool is_matrix = false;
  std::size_t numel = 0, rows = 1, columns = 1;
  std::size_t first_row = 0, first_column = 0;      // the index of its first element in states of extent `row` and `column`
  std::array<std::size_t, most_rounds> words = {};  // for each round, the index of its first word in UnitMemory::statistics
  std::uint64_t missed = 0;  // the number of updates that came before the first one with this tensor, while it was frozen
};

/// The part of a parameter that is in this rank's shard of a unit, with the parameter's settings.
struct OptimizerSlice {
  std::size_t parameter;  // index in the model
  Range range;            // elements of the parameter
  std::size_t offset;     // index of the first element in the rank's part of the unit
  std::size_t tensor;     // index in UnitMemory::tensors
  double learning_rate_scale = 1, weight_decay = 0, momentum = 0;
};

/// Pointers to the memory of a rank's shard of a unit, one for each kind of memory.
struct UnitMemory {
  std::span<const UnitTensor> tensors;
  std::span<const OptimizerSlice> slices;
  float* parameters = nullptr;
  const float* gradients = nullptr;
  std::array<std::byte*, kernels::most_states> states = {};
  Halves copy = {};  // 16-bit copies of the parameters, if the computation uses them
  std::array<std::int64_t*, most_rounds> statistics = {};
  float* directions = nullptr;  // for rules with whole matrices; as many elements as `parameters`
  // Replace `parameters` and `gradients` in an update of bf16 state without fp32 copies (Rule::by_element); else null.
  bf16* kept_parameters = nullptr;
  const bf16* kept_gradients = nullptr;
};

/// One update; the values are the same on all ranks.
struct OptimizerStep {
  std::uint64_t number = 1;  // 1 for the first update after the optimizer began
  double learning_rate = 0;
  const kernels::GradientNorm* norm = nullptr;  // read by kernels; may be null, as in UpdateTarget
  std::uint64_t of_run = 1;  // like `number`, but counted from the first update of the run; for the noise of parameters
  int micro_batches = 1;     // of the update

  /// The number of the update for this tensor: 1 for the first one after its states were zero. Used for bias corrections.
  double number_of(const UnitTensor& tensor) const { return static_cast<double>(number - tensor.missed); }
};

using UpdateFunction = void (*)(Stream&, const UnitMemory&, const OptimizerOptions&, const OptimizerStep&);

/// The rounds of sums that a rule needs. words() returns the number of integer words of a tensor in a round. count() adds this
/// rank's part to the words of the round, which are zero at first. When count() is called, the words of earlier
/// rounds are already sums over all ranks. count() may also update states.
struct Statistics {
  int rounds = 0;
  std::size_t (*words)(const Shape& shape, int round) = nullptr;
  void (*count)(Stream&, const UnitMemory&, const OptimizerOptions&, const OptimizerStep&, int round) = nullptr;
};

/// The functions of a rule whose update directions depend on whole matrices. On each rank, `prepare` writes the rank's part of
/// the matrices to UnitMemory::directions. For each matrix, one rank then runs `work` in place, and each rank receives its part
/// of the result.
struct WholeMatrices {
  UpdateFunction prepare = nullptr;
  void (*work)(Stream&, float* matrix, std::size_t rows, std::size_t columns, float* scratch) = nullptr;
  std::size_t (*scratch)(std::size_t rows, std::size_t columns) = nullptr;  // returns a number of floats
  double (*cost)(std::size_t rows, std::size_t columns) = nullptr;          // the cost of `work`, in any unit
};

/// The memory traffic of an update, for predictions of its time: how many numbers are read and written per element of a
/// parameter (without states), and per element of each state.
struct MemoryPasses {
  int numbers = 3, per_state = 2;  // parameter and gradient read, parameter written; state read and written
};

/// How a parameter is updated. Checkpoints identify the rule by its name.
struct Rule {
  std::string_view name;
  std::vector<StateInfo> states = {};  // in the order of UnitMemory::states
  UpdateFunction update = nullptr;
  MemoryPasses passes = {};
  Statistics statistics = {};
  WholeMatrices whole = {};
  /// True if `update` only calls kernels::update_elements() with the results of target_of(), for a rule with states.
  /// Parameters, gradients and states that are all bf16 are then updated in one pass over memory.
  bool by_element = false;
  /// True for running_mean_rule(): the "gradient" is not one, so norms, clipping, scaling and averages (EMA) leave it out, and
  /// all its numbers are fp32.
  bool is_of_state = false;
};

/// The fields of OptimizerOptions that an optimizer uses.
struct OptimizerReads {
  bool betas = false, eps = false, momentum = false, nesterov = false, amsgrad = false;
};

/// An optimizer as users see it. The numbers are PyTorch's defaults, or those of the paper if PyTorch does not have the
/// optimizer.
struct Optimizer {
  std::string_view name;          // the name that users choose, and that checkpoints contain
  std::string_view same_as = "";  // the name of another optimizer with the same algorithm and states
  std::string_view about = "";    // a sentence for the help text, if the name does not explain it
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool l2_decay = false;  // true: decay is added to the gradient (L2); false: decoupled decay of the weights
  OptimizerReads reads = {};
  std::vector<const Rule*> rules = {};
  /// Returns the rule that updates a parameter. If null, the first of `rules` updates all parameters.
  const Rule& (*rule_of)(const OptimizerOptions& options, const Parameter& parameter) = nullptr;
};

/// All optimizers, first those of the library.
const std::vector<const Optimizer*>& optimizers();
/// Returns the optimizer with this name. If there is none, throws UserError with the known names.
const Optimizer& find_optimizer(std::string_view name);
/// Returns the optimizer's `same_as`, or its name if `same_as` is empty; returns unknown names unchanged. Optimizers with the
/// same algorithm can load each other's states.
std::string_view algorithm_of(std::string_view name);
/// Adds an optimizer to the table; `optimizer` and its rules must live until the program ends. Call this before any other
/// function of the library, because other threads may read the table without a lock.
void add_optimizer(const Optimizer& optimizer);

/// Returns a rule of any optimizer by its name; null if there is none.
const Rule* find_rule(std::string_view name);
/// The rule of Adam and AdamW; Muon also uses it, for all parameters except the matrices of blocks.
const Rule& adam_rule();
/// The rule of state (Parameter::momentum), whichever optimizer is chosen.
const Rule& running_mean_rule();
/// Returns the rule that updates a parameter.
const Rule& rule_of(const OptimizerOptions& options, const Parameter& parameter);

/// Returns a rank's part of a parameter in the form that kernels take.
kernels::UpdateTarget target_of(const UnitMemory& memory, const OptimizerSlice& slice, const OptimizerOptions& options,
                                const OptimizerStep& step);
/// Returns the i-th exact sum of a tensor in the words of a round; exact sums are stored before all other words. Only kernels
/// can read the value of the sum.
kernels::ExactSum& sum_of(const UnitMemory& memory, const OptimizerSlice& slice, int round, std::size_t i);

/// Returns the names of all states that these options need for a model, without duplicates.
std::vector<std::string> states_of(const OptimizerOptions& options, const std::vector<Parameter>& parameters);

/// The settings of one parameter.
struct ParameterSettings {
  double learning_rate_scale = 1, weight_decay = 0;
  double momentum = 0;  // Parameter::momentum
};
/// Throws UserError for a pattern that matches no parameter.
std::vector<ParameterSettings> settings_of(const OptimizerOptions& options, const std::vector<Parameter>& parameters);

}  // namespace fsdp
