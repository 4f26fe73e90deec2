// What a model reads from a batch, if it reads several inputs.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace fsdp {

/// What a row of an input has. numbers() and tokens() in layers/tower.hpp make one.
struct InputKind {
  std::size_t columns = 1;  // numbers per row
  bool integers = false;    // tokens or other indices; false: fp32 numbers
  std::size_t limit = 0;    // a batch is refused if one of its integers is not from 0 to limit - 1; 0: not checked
};

/// An input of a batch.
struct NamedInput {
  std::string name;        // "" for that of a model without towers
  InputKind kind;          // of its rows
  std::size_t length = 1;  // rows for each example

  std::size_t numbers() const { return length * kind.columns; }  // of an example
};

/// "pixels, words"
std::string names_of(std::span<const NamedInput> inputs);

}  // namespace fsdp
