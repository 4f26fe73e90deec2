#include "layers/tower.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "layers/place.hpp"

namespace fsdp {

namespace {

/// Throws UserError if an example has too many numbers for sizes in bytes.
void require_small(const std::string& input, std::size_t rows, std::size_t width) {
  constexpr std::size_t most = std::size_t{1} << 30;
  if (width > most || rows * width > most)
    throw UserError(format("input '{}': an example has {} rows of {} numbers (it has 2^30 numbers at most); make it smaller",
                           input, rows, as_given(width)));
}

}  // namespace

InputKind numbers(std::size_t columns) {
  require_size("numbers", "columns", columns);
  return {.columns = columns};
}

InputKind tokens(std::size_t columns, std::size_t vocabulary) {
  require_size("tokens", "columns", columns);
  if (vocabulary > 0) require_size("tokens", "vocabulary", vocabulary);
  return {columns, true, vocabulary};
}

Tower::Tower(std::string input, InputKind kind, std::size_t length)
    : input_{std::move(input), kind, length}, rows_(length), width_(kind.columns) {
  if (input_.name.empty()) throw UserError("an input of Tower() has no name (a batch has it by its name); give one");
  require_size("Tower", "columns", kind.columns), require_size("Tower", "length", length);
  require_small(input_.name, rows_, width_);
}

Tower& Tower::add(std::string name, LayerPtr layer) {
  const auto fail = [&](const std::string& problem) {
    throw UserError(format("layer '{}' of the tower of input '{}' {}", name, input_.name, problem));
  };
  if (!layer) fail("is a null pointer (there is no layer); give one");
  if (name.empty()) fail("has no name (names of parameters need it); give one");
  const bool is_first = parts_.empty() && input_.kind.integers;
  if (layer->takes_tokens() != is_first)
    fail(is_first ? "takes no tokens (the input is integers); begin with a layer that takes them, such as embedding()"
                  : "takes tokens (only the first layer of a tower for tokens() can); give it such an input");
  if (is_first && layer->inputs() != width_)
    fail(format("takes {} integers per row (the input has {}); make them equal", layer->inputs(), width_));
  if (layer->inputs() != width_)
    fail(format("takes {} numbers per row (the rows before it have {}); make them equal, or call fold() before",
                layer->inputs(), width_));
  for (auto& [each, one] : without_repeats({{name, layer}})) {
    const auto has_its_name = [&, &mine = each](const Part& part) { return part.name == mine; };
    if (std::any_of(parts_.begin(), parts_.end(), has_its_name))
      fail("has a name that is used twice (each layer has its own); choose another name");
    require_small(input_.name, rows_, one->outputs());
    width_ = one->outputs();
    parts_.push_back({each, std::move(one), rows_});
  }
  return *this;
}

Tower& Tower::fold() {
  width_ *= std::exchange(rows_, 1);
  return *this;
}

}  // namespace fsdp
