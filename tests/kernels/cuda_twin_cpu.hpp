// The CPU's side of optimizers' rules, which g++ compiles for each level (kernels/element_update.hpp); nvcc cannot.
#pragma once

#include <cstddef>

#include "device/device.hpp"
#include "kernels/rows/optimizer.hpp"

namespace fsdp::kernels {

template <class Rule, class State>
void update_on_cpu(Stream& stream, const ElementUpdate<Rule, State>& body, std::size_t rows);

template <class Rule>
void update_on_cpu(Stream& stream, const NarrowUpdate<Rule>& body, std::size_t rows);

}  // namespace fsdp::kernels
