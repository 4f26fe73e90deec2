#include "nn/model.hpp"

namespace fsdp {

std::string names_of(std::span<const NamedInput> inputs) {
  std::string names;
  for (const NamedInput& input : inputs) names += (names.empty() ? "" : ", ") + input.name;
  return names;
}

const Stage& Model::stage(std::size_t index) const {
  if (index == 0) return *first;
  return index <= blocks.size() ? static_cast<const Stage&>(*blocks[index - 1]) : *loss;
}

std::vector<std::vector<std::size_t>> Model::parameters_by_stage() const {
  std::vector<std::vector<std::size_t>> all;
  for (std::size_t i = 0; i < blocks.size() + 2; ++i) all.push_back(stage(i).reads);
  return all;
}

}  // namespace fsdp
