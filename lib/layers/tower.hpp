// A model with several inputs: each has a tower, a chain of layers. Sequential::towers() takes them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "layers/composition.hpp"
#include "layers/layer.hpp"
#include "nn/named_input.hpp"

namespace fsdp {

/// An input of `columns` numbers per row, or of `columns` integers: tokens, or other indices. A batch is refused if an
/// integer is not below `vocabulary` (0: no limit) and below the layer's vocabulary. Throws UserError if a size is not from 1
/// to 2^30.
InputKind numbers(std::size_t columns);
InputKind tokens(std::size_t columns = 1, std::size_t vocabulary = 0);

/// The layers for one input of a batch, which has `length` rows for each example: a batch of B examples is [B length, columns],
/// example after example. The layers of a tower run with T = length. Not collective.
class Tower {
 public:
  /// Throws UserError if the name is empty, or if an example does not have 1 to 2^30 numbers.
  Tower(std::string input, InputKind kind, std::size_t length = 1);
  /// Adds a layer after those that were added before. Each is one of the model's layers, as in Sequential::add(), with the name
  /// TOWER.NAME. If the input is integers, the first layer must take tokens, and its inputs() are the columns. Throws UserError
  /// if sizes do not fit, or if a name is used twice.
  Tower& add(std::string name, LayerPtr layer);
  /// Makes one row of the rows of an example, which has all their numbers in the same order. Later layers have T = 1.
  Tower& fold();

 private:
  friend class Chain;
  friend class Sequential;
  struct Part {
    std::string name;
    LayerPtr layer;
    std::size_t rows;  // of an example
  };

  NamedInput input_;
  std::vector<Part> parts_;
  std::size_t rows_, width_;  // after the last layer
};

/// The towers of a model and their names, in order.
using NamedTowers = std::vector<std::pair<std::string, Tower>>;

}  // namespace fsdp
