// update_elements() applies a rule to each element of a parameter, as vector code on all threads. A rule is a plain struct as
// in kernels/rows/optimizer.hpp. The source file that calls update_elements() compiles the rule's loop for each CpuLevel, and
// the loop for this processor runs. So an optimizer's arithmetic can be in its own file, also outside the library.
//
// Compile such a file with -O3 -fopenmp-simd -fno-math-errno -fno-trapping-math, or the loop may not become vector code, and
// with -ffp-contract=off, so that all levels give the same bits.
#pragma once

#include <typeinfo>

#include "base/error.hpp"
#include "device/cpu/processor.hpp"
#include "kernels/optimizers.hpp"
#include "kernels/rows/optimizer.hpp"

namespace fsdp::kernels {

/// Rounds a factor of an update to single precision, after it was computed in double.
inline float single(double x) { return static_cast<float>(x); }

template <class State, int states>
ElementMemory<State, states> memory_of(const UpdateTarget& target) {
  ElementMemory<State, states> memory{.parameter = target.parameter,
                                      .state = {},
                                      .gradient = target.gradient,
                                      .n = target.n,
                                      .norm = target.norm,
                                      .scales = target.scales,
                                      .noise = target.noise,
                                      .copy = target.copy};
  for (int k = 0; k < states; ++k) memory.state[k] = reinterpret_cast<State*>(target.state[static_cast<std::size_t>(k)]);
  return memory;
}

/// The number of "rows", or blocks, into which ElementMemory divides the elements.
template <class State, int states>
std::size_t rows_of(const ElementMemory<State, states>& memory) {
  const std::size_t lead = sizeof(State) == 2 ? memory.noise.first_element % memory.block : 0;
  return memory.n == 0 ? 0 : (lead + memory.n + memory.block - 1) / memory.block;
}

/// Calls f with a value of the type in which states are stored: std::uint16_t for bf16, else float.
template <class F>
void with_state_type(DType type, F&& f) {
  expect(type != DType::f16, "optimizer states must be fp32 or bf16");
  if (type == DType::bf16)
    f(std::uint16_t{});
  else
    f(float{});
}

/// Runs one row of a body, compiled for one CpuLevel. The functions that it calls must be inlined: a function that is not
/// inlined is not compiled for the level, and the linker may merge it with another definition.
using RowFunction = void (*)(const void* body, std::size_t row);

#define FSDP_ROW_FUNCTION(LEVEL, ATTRIBUTES)                                               \
  template <class Body>                                                                    \
  ATTRIBUTES void row_##LEVEL(const void* body, std::size_t row) {                         \
    (*static_cast<const Body*>(body))(CpuLanes<static_cast<int>(CpuLevel::LEVEL)>{}, row); \
  }
FSDP_CPU_LEVELS(FSDP_ROW_FUNCTION)
#undef FSDP_ROW_FUNCTION

struct RowFunctions {
  RowFunction (*of_level)(CpuLevel level);
  const std::type_info& type;  // the body's type, by which another device finds its own function
};
template <class Body>
RowFunction row_function(CpuLevel level) {
  switch (level) {
#define FSDP_CASE(LEVEL, ...) \
  case CpuLevel::LEVEL:       \
    return row_##LEVEL<Body>;
    FSDP_CPU_LEVELS(FSDP_CASE)
#undef FSDP_CASE
  }
  return nullptr;
}
template <class Body>
inline const RowFunctions row_functions = {row_function<Body>, typeid(Body)};

/// Calls the function for this processor's level for each row in [0, rows). One thread runs a row, and denormal numbers count
/// as 0. On a GPU, calls libfsdp_cuda's function for the body's type, and throws UserError if there is none.
void launch_rows(Stream& stream, const RowFunctions& functions, const void* body, std::size_t rows);

/// For each element: parameter = rule(parameter, gradient scaled as `target` defines, states).
template <class Rule>
void update_elements(Stream& stream, const UpdateTarget& target, const Rule& rule) {
  static_assert(Rule::states <= static_cast<int>(most_states));
  if constexpr (Rule::states > 0)
    if (target.kept_parameter) {
      expect(target.state_type == DType::bf16, "an update of bf16 parameters must have bf16 states");
      const NarrowUpdate<Rule> body{rule,
                                    memory_of<std::uint16_t, Rule::states>(target),
                                    reinterpret_cast<std::uint16_t*>(target.kept_parameter),
                                    reinterpret_cast<const std::uint16_t*>(target.kept_gradient),
                                    {target.parameter_noise.key[0], target.parameter_noise.key[1]}};
      return launch_rows(stream, row_functions<NarrowUpdate<Rule>>, &body, rows_of(body.memory));
    }
  const auto run = [&]<class State>(State) {
    const ElementUpdate<Rule, State> body{rule, memory_of<State, Rule::states>(target)};
    launch_rows(stream, row_functions<ElementUpdate<Rule, State>>, &body, rows_of(body.memory));
  };
  if constexpr (Rule::states > 0)
    with_state_type(target.state_type, run);
  else
    run(float{});
}

}  // namespace fsdp::kernels
