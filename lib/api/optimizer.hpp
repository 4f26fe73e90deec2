// The interface of a user's own optimizer that works element by element. docs/api-options.md has an example.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fsdp {

/// Some consecutive elements of one parameter, in one update. All elements are fp32, whatever types FsdpOptions names.
struct ElementwiseUpdate {
  static constexpr std::size_t most_states = 3;  // the most states of an optimizer

  std::span<float> parameters;                  // the elements, which the update changes
  std::span<const float> gradients;             // clipped, and without the loss scale of fp16
  std::array<float*, most_states> states = {};  // those of ElementwiseOptimizer::states(), as long as `parameters`
  double learning_rate = 0;                     // times the learning_rate_scale of the parameter's group
  double weight_decay = 0;                      // of the parameter's group; 0 for vectors that no group names
  std::uint64_t step = 1;                       // 1 in the first update, in which all states are zero
};

/// An optimizer. The library cuts parameters into shards and shards into pieces, so the result for an element may depend only
/// on this element and on the other fields of ElementwiseUpdate. For the same gradients, it then has the same bits for every
/// strategy, number of ranks and number of threads. Numbers such as betas are members of the derived class. The library keeps,
/// shards, saves and loads the states. The optimizer runs on CPUs only.
class ElementwiseOptimizer {
 public:
  virtual ~ElementwiseOptimizer() = default;
  /// The name, for FsdpOptions::optimizer and in checkpoints: lower-case letters, digits and "_".
  virtual std::string name() const = 0;
  /// The names of at most three states per element, in checkpoints. All states are zero at first.
  virtual std::vector<std::string> states() const { return {}; }
  /// The weight decay of matrices if FsdpOptions::weight_decay is empty.
  virtual double weight_decay() const { return 0; }
  /// Updates parameters and states. Several threads call this function at the same time. If it throws, the job ends.
  virtual void update(const ElementwiseUpdate& elements) const = 0;
};

/// Makes the optimizer known by its name to this process. Call it on all ranks, before any other function that uses the
/// optimizer's name or reads its checkpoints. Throws UserError if the name is taken or not valid. Not collective.
void add_optimizer(std::shared_ptr<const ElementwiseOptimizer> optimizer);

}  // namespace fsdp
