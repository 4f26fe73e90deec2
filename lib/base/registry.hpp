// A table of constants that have names (optimizers, formats of files, backends). Programs can add rows of their own.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

/// `name` is the member of Row with the name that users give. The rows must live as long as the registry.
template <class Row, auto name = &Row::name>
class Registry {
 public:
  /// `unknown` begins the message of find() for a name that no row has; "{}" in it stands for the name.
  Registry(std::initializer_list<const Row*> rows, std::string unknown = "") : rows_(rows), unknown_(std::move(unknown)) {}

  const std::vector<const Row*>& rows() const { return rows_; }

  /// The row with this name; null if there is none.
  const Row* look_up(std::string_view wanted) const {
    const auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Row* one) { return one->*name == wanted; });
    return row == rows_.end() ? nullptr : *row;
  }
  /// Throws UserError with a list of the known names if there is none.
  const Row& find(std::string_view wanted) const {
    if (const Row* const row = look_up(wanted)) return *row;
    std::vector<std::string_view> known;
    for (const Row* row : rows_) known.push_back(row->*name);
    throw UserError(format(fmt::runtime(unknown_ + " (known are {}); choose one of these"), wanted, fmt::join(known, ", ")));
  }
  void add(const Row& row) {
    expect(!look_up(row.*name), "the name of an added row is new");
    rows_.push_back(&row);
  }

 private:
  std::vector<const Row*> rows_;
  std::string unknown_;
};

}  // namespace fsdp
