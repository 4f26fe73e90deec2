// From the pointers of UpdateTarget to the bodies of rows/optimizer.hpp. Private to kernels/.
#pragma once

#include "base/error.hpp"
#include "kernels/launch.hpp"
#include "kernels/optimizers.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

/// Factors of one update, in single precision at last.
inline float single(double x) { return static_cast<float>(x); }

template <class State, int states>
ElementMemory<State, states> memory_of(const UpdateTarget& target) {
  ElementMemory<State, states> memory{.parameter = target.parameter,
                                      .state = {},
                                      .gradient = target.gradient,
                                      .n = target.n,
                                      .gradient_scale = single(target.gradient_scale),
                                      .noise = target.noise,
                                      .copy = target.copy,
                                      .copy_type = target.copy_type};
  for (int k = 0; k < states; ++k) memory.state[k] = reinterpret_cast<State*>(target.state[static_cast<std::size_t>(k)]);
  return memory;
}

/// How many "rows" cover the elements: see ElementMemory.
template <class State, int states>
std::size_t rows_of(const ElementMemory<State, states>& memory) {
  const std::size_t lead = sizeof(State) == 2 ? memory.noise.first_element % memory.block : 0;
  return memory.n == 0 ? 0 : (lead + memory.n + memory.block - 1) / memory.block;
}

/// Calls f with a number of the type in which states are stored.
template <class F>
void with_state_type(DType type, F&& f) {
  expect(type != DType::f16, "states are fp32 or bf16");
  if (type == DType::bf16)
    f(std::uint16_t{});
  else
    f(float{});
}

template <class Rule>
void update_elements(Stream& stream, const UpdateTarget& target, const Rule& rule) {
  const auto run = [&]<class State>(State) {
    const ElementUpdate<Rule, State> body{rule, memory_of<State, Rule::states>(target)};
    launch(stream, body, rows_of(body.memory));
  };
  if constexpr (Rule::states > 0)
    with_state_type(target.state_type, run);
  else
    run(float{});
}

}  // namespace fsdp::kernels
