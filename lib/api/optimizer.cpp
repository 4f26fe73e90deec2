#include "api/optimizer.hpp"

#include <algorithm>
#include <exception>
#include <mutex>
#include <string_view>
#include <utility>

#include "api/own_optimizer.hpp"
#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "device/cpu/processor.hpp"
#include "optim/optimizer.hpp"
#include "run/shard_state.hpp"

namespace fsdp {

namespace {

static_assert(ElementwiseUpdate::most_states == kernels::most_states);
constexpr std::size_t elements_at_once = 1024;  // as in the blocks of random bits for bf16 states

/// The rows of the library's tables that describe a user's optimizer.
struct OwnOptimizer {
  std::shared_ptr<const ElementwiseOptimizer> user;
  std::string name;
  std::vector<std::string> states;
  Rule rule;
  Optimizer row;
};

std::vector<std::unique_ptr<OwnOptimizer>>& own_optimizers() {
  static std::vector<std::unique_ptr<OwnOptimizer>> all;
  return all;
}

const OwnOptimizer* find_own(const Optimizer& optimizer) {
  for (const auto& own : own_optimizers())
    if (&own->row == &optimizer) return own.get();
  return nullptr;
}

using NoiseOfStates = std::array<kernels::RoundingNoise, kernels::most_states>;  // for the rounding to bf16

/// Updates elements [begin, begin + n) of a slice, with n <= elements_at_once.
void update_piece(Stream& stream, const OwnOptimizer& own, const kernels::UpdateTarget& target, const NoiseOfStates& noise,
                  ElementwiseUpdate elements, std::size_t begin, std::size_t n) {
  const FlushDenormals flush;  // as in the library's optimizers
  const float scale = target.norm ? static_cast<float>(target.norm->scale) : 1.0f;
  std::array<float, elements_at_once> gradients;
  for (std::size_t i = 0; i < n; ++i) gradients[i] = target.gradient[begin + i] * scale;
  elements.parameters = {target.parameter + begin, n};
  elements.gradients = std::span(gradients).first(n);
  const bool is_wide = target.state_type == DType::f32;
  std::array<std::array<float, elements_at_once>, kernels::most_states> wide;  // copies of bf16 states
  for (std::size_t k = 0; k < own.states.size(); ++k) {
    std::byte* const there = target.state[k] + begin * size_of(target.state_type);
    elements.states[k] = is_wide ? reinterpret_cast<float*>(there) : wide[k].data();
    if (!is_wide) std::copy_n(reinterpret_cast<const bf16*>(there), n, wide[k].data());
  }
  own.user->update(elements);
  for (std::size_t k = 0; k < own.states.size() && !is_wide; ++k) {
    kernels::RoundingNoise of_piece = noise[k];
    of_piece.first_element += begin;
    kernels::round_at_random(stream, reinterpret_cast<bf16*>(target.state[k]) + begin, wide[k].data(), n, of_piece,
                             kernels::Write::overwrite);
  }
  if (const Halves copy = target.copy.from(begin); copy.data)
    with_element(copy.type, [&]<class E>() {
      std::transform(elements.parameters.begin(), elements.parameters.end(), reinterpret_cast<E*>(copy.data),
                     [](float x) { return E(x); });
    });
}

void update_by_user(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step) {
  const OwnOptimizer& own = *find_own(*options.kind);
  if (step.norm && !step.norm->finite) return;  // the update is skipped
  std::exception_ptr error;
  std::mutex guard;
  for (const OptimizerSlice& slice : memory.slices) {
    const kernels::UpdateTarget target = target_of(memory, slice, options, step);
    ElementwiseUpdate elements;
    elements.learning_rate = step.learning_rate * slice.learning_rate_scale;
    elements.weight_decay = slice.weight_decay;
    elements.step = static_cast<std::uint64_t>(step.number_of(memory.tensors[slice.tensor]));
    NoiseOfStates noise;
    for (std::size_t k = 0; k < noise.size(); ++k)
      noise[k] = kernels::rounding_noise(RandomSite::optimizer_state, options.seed, step.number, slice.parameter,
                                         slice.range.begin, static_cast<std::uint32_t>(k));
    const std::size_t pieces = (target.n + elements_at_once - 1) / elements_at_once;
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (std::size_t i = 0; i < pieces; ++i) try {
        const std::size_t begin = i * elements_at_once;
        update_piece(stream, own, target, noise, elements, begin, std::min(elements_at_once, target.n - begin));
      } catch (...) {  // exceptions must not leave the parallel region
        const std::lock_guard lock(guard);
        if (!error) error = std::current_exception();
      }
  }
  if (error) std::rethrow_exception(error);
}

void require_name(std::string_view what, const std::string& name) {
  const auto is_ok = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  if (name.empty() || !std::all_of(name.begin(), name.end(), is_ok))
    throw UserError(
        format("{} has the name \"{}\" (it must consist of lower-case letters, digits and \"_\"); choose another one", what,
               excerpt(name)));
}

}  // namespace

bool is_own_optimizer(const Optimizer& optimizer) { return find_own(optimizer) != nullptr; }

void add_optimizer(std::shared_ptr<const ElementwiseOptimizer> optimizer) {
  if (!optimizer) throw UserError("add_optimizer() is given a null pointer (there is no optimizer); give one");
  auto own = std::make_unique<OwnOptimizer>();
  own->name = optimizer->name(), own->states = optimizer->states();
  require_name("an optimizer", own->name);
  const auto is_taken = [&](const Optimizer* one) { return one->name == own->name; };
  if (std::any_of(optimizers().begin(), optimizers().end(), is_taken) || find_rule(own->name))
    throw UserError(format(
        "there is an optimizer \"{}\" already (names identify optimizers in checkpoints); choose another name", own->name));
  if (own->states.size() > kernels::most_states)
    throw UserError(format("optimizer {} has {} states (the most are {}); keep fewer", own->name, own->states.size(),
                           kernels::most_states));
  for (std::size_t k = 0; k < own->states.size(); ++k) {
    const std::string& state = own->states[k];
    require_name(format("a state of optimizer {}", own->name), state);
    const bool is_twice = std::find(own->states.begin(), own->states.begin() + static_cast<std::ptrdiff_t>(k), state) !=
                          own->states.begin() + static_cast<std::ptrdiff_t>(k);
    if (is_twice || state == parameters_state || state == average_state)
      throw UserError(
          format("optimizer {} has a state \"{}\" (checkpoints have another state of this name); choose another one", own->name,
                 state));
    own->rule.states.push_back({state});
  }
  const double decay = optimizer->weight_decay();
  if (!(decay >= 0))
    throw UserError(format("optimizer {} has weight_decay() {} (it must be at least 0); correct it", own->name, decay));
  own->rule.name = own->name, own->rule.update = update_by_user;
  own->row.name = own->name, own->row.weight_decay = decay, own->row.rules = {&own->rule};
  own->user = std::move(optimizer);
  const Optimizer& row = own->row;
  own_optimizers().push_back(std::move(own));  // first, because the row must not outlive it
  add_optimizer(row);
}

}  // namespace fsdp
