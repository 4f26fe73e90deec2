// Row bodies of optimizers that work element by element, in one pass over a rank's part of a parameter. A rule is the
// arithmetic of one element. It defines the number of states, and computes the new parameter from the old one, the gradient and
// the states. ElementUpdate applies the rule to memory. It reads and writes states in fp32 or bf16, and writes a 16-bit copy of
// the new parameters if requested. NarrowUpdate applies the rule if parameters, gradients and states are all bf16. On the CPU,
// update_elements() compiles any rule. The library's rules are in this header because nvcc must see them.
#pragma once

#include <utility>

#include "base/philox.hpp"
#include "kernels/optimizers.hpp"
#include "kernels/rows/lanes.hpp"
#include "kernels/rows/narrow.hpp"
#include "kernels/rows/pointwise.hpp"

namespace fsdp::kernels {

/// Adam (Kingma and Ba 2015, Algorithm 1) with L2 or decoupled weight decay; amsgrad: Reddi et al. 2018, Algorithm 2.
template <bool amsgrad>
struct AdamRule {
  static constexpr int states = amsgrad ? 3 : 2;
  float decay, l2, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, inverse_sqrt_correction2, eps;

  FSDP_INLINE float operator()(float p, float g, float* s) const {
    g += l2 * p;
    s[0] = beta1 * s[0] + one_minus_beta1 * g;
    s[1] = beta2 * s[1] + one_minus_beta2 * g * g;
    float v = s[1];
    if constexpr (amsgrad) v = s[2] = s[2] > v ? s[2] : v;
    return p * decay - step_size * s[0] / (square_root(v) * inverse_sqrt_correction2 + eps);
  }
};

struct SgdRule {
  static constexpr int states = 0;
  float decay, l2, learning_rate;
  FSDP_INLINE float operator()(float p, float g, float*) const { return p * decay - learning_rate * (g + l2 * p); }
};

/// SGD with momentum. (of_gradient, of_momentum) is (0, 1), or (1, momentum) for Nesterov's form.
struct MomentumRule {
  static constexpr int states = 1;
  float l2, learning_rate, momentum, of_gradient, of_momentum;
  FSDP_INLINE float operator()(float p, float g, float* s) const {
    g += l2 * p;
    s[0] = momentum * s[0] + g;
    return p - learning_rate * (of_gradient * g + of_momentum * s[0]);
  }
};

/// Not an optimizer: the "parameter" is a moving average, and the "gradient" the value that it moves to.
struct AverageRule {
  static constexpr int states = 0;
  float weight;  // 1 - decay
  FSDP_INLINE float operator()(float average, float value, float*) const {
    return weight == 1.0f ? value : average + weight * (value - average);
  }
};

/// Adagrad: Duchi et al. 2011, figure 1, the diagonal form.
struct AdagradRule {
  static constexpr int states = 1;
  float l2, learning_rate, eps;
  FSDP_INLINE float operator()(float p, float g, float* s) const {
    g += l2 * p;
    s[0] += g * g;
    return p - learning_rate * g / (square_root(s[0]) + eps);
  }
};

/// Lion: Chen et al. 2023, "Symbolic discovery of optimization algorithms", Algorithm 2.
struct LionRule {
  static constexpr int states = 1;
  float decay, learning_rate, beta1, one_minus_beta1, beta2, one_minus_beta2;
  FSDP_INLINE float operator()(float p, float g, float* s) const {
    const float u = beta1 * s[0] + one_minus_beta1 * g;
    s[0] = beta2 * s[0] + one_minus_beta2 * g;
    return p * decay - (u > 0 ? learning_rate : u < 0 ? -learning_rate : 0.0f);
  }
};

/// Updates the momentum and returns the update direction, which is the Nesterov form of the momentum. ElementUpdate then writes
/// the direction to `parameter`. As in torch.optim.Muon, momentum and gradient are interpolated, not added.
struct MuonMomentumRule {
  static constexpr int states = 1;
  float momentum, one_minus_momentum;
  FSDP_INLINE float operator()(float, float g, float* s) const {
    s[0] += one_minus_momentum * (g - s[0]);
    return g + momentum * (s[0] - g);
  }
};

/// Stores the number in `parameter` as the state, or, if `add` is true, adds it to the state. Then the parameter becomes the
/// state, as it was rounded.
struct KeepRule {
  static constexpr int states = 1;
  bool add;
  FSDP_INLINE float operator()(float p, float, float* s) const { return s[0] = add ? s[0] + p : p; }
  FSDP_INLINE static float rounded(const float* s) { return s[0]; }
};

/// The memory of a rank's part of a parameter. States are stored as float, or as the bits of bf16 in std::uint16_t.
template <class State, int states>
struct ElementMemory {
  static constexpr std::size_t block = flat_block;
  float* parameter;
  State* state[states > 0 ? states : 1];
  const float* gradient;
  std::size_t n;
  const GradientNorm* norm;  // null: the gradient is finite and needs no scaling
  bool scales;               // true if the gradient must still be multiplied by norm->scale
  RoundingNoise noise;
  Halves copy;  // the 16-bit copy of the new parameters

  template <std::size_t>
  using StateOf = State;

  /// Returns false if the update is skipped.
  FSDP_INLINE bool applies() const { return !norm || norm->finite; }
  FSDP_INLINE float gradient_scale() const { return norm && scales ? static_cast<float>(norm->scale) : 1.0f; }

  /// The number of elements of the first block that are before this part. With bf16 states, the blocks are those of the whole
  /// parameter, because random bits are drawn for whole blocks.
  FSDP_INLINE std::size_t lead() const { return sizeof(State) == 2 ? noise.first_element % block : 0; }
  /// The elements of row b: [begin(b), end(b)).
  FSDP_INLINE std::size_t begin(std::size_t b) const { return b == 0 ? 0 : b * block - lead(); }
  FSDP_INLINE std::size_t end(std::size_t b) const {
    const std::size_t next = (b + 1) * block - lead();
    return next < n ? next : n;
  }

  FSDP_INLINE static float value_of(State state) {
    if constexpr (sizeof(State) == 4)
      return state;
    else
      return element_parts::float_of(static_cast<std::uint32_t>(state) << 16);
  }
  /// State k of the elements of row b, for reading. value_of() converts each number to float.
  FSDP_INLINE const State* state_of_row(int k, std::size_t b) const { return state[k] + begin(b); }

  /// Calls f(s, x...) for each element of row b, where x... are the elements of `arrays`. Each array is as long as the part. s
  /// has the element's states and receives the new states. If these are then rounded to bf16, f.rounded(s, x...) is called with
  /// the rounded ones, if f has this function.
  template <class Lanes, class F, Array... A>
  FSDP_INLINE void each(Lanes lanes, std::size_t b, F f, A... arrays) const {
    const std::size_t first = begin(b);
    if constexpr (sizeof(State) == 4)
      each_exact(lanes, b, f, std::make_index_sequence<states>{}, arrays + first...);
    else if (end(b) - first == block)
      each_rounded<true>(lanes, b, f, arrays + first...);
    else
      each_rounded<false>(lanes, b, f, arrays + first...);
  }

  /// Calls f for one element. This is not a lambda, because nvcc 12.4 does not compile lambdas with two packs of parameters.
  template <class F, std::size_t... k>
  struct ExactElement {
    F f;
    template <class... X>
    FSDP_INLINE void operator()(StateOf<k>&... state_k, X&... x) const {
      float s[] = {state_k..., 0.0f};
      f(s, x...);
      ((state_k = s[k]), ...);
    }
  };
  template <class Lanes, class F, std::size_t... k, Array... A>
  FSDP_INLINE void each_exact(Lanes lanes, std::size_t b, F f, std::index_sequence<k...>, A... arrays) const {
    const std::size_t first = begin(b);
    lanes.each(end(b) - first, ExactElement<F, k...>{f}, state[k] + first..., arrays...);
  }

  /// Philox counter j of a block gives the random bits of the four elements j, j + quarter, j + 2 * quarter and j + 3 *
  /// quarter: one word per element, with 16 bits for each of two states. Adjacent lanes process adjacent elements, one at a
  /// time: if a lane processed 16 bytes of an array at once, it would have to keep the random bits of several counters.
  template <bool whole, class Lanes, class F, Array... A>
  FSDP_INLINE void each_rounded(Lanes lanes, std::size_t b, F f, A... arrays) const {
    constexpr std::size_t quarter = block / 4;
    constexpr bool hears = requires(const float* s, A... x) { f.rounded(s, x[0]...); };
    const ElementMemory m = *this;
    const std::size_t row = begin(b), before = lead(), first_counter = (noise.first_element / block + b) * quarter;
    lanes.each(quarter, [=](std::size_t j) FSDP_LANE {
      const std::uint64_t counter = first_counter + j;
      const auto low = static_cast<std::uint32_t>(counter), high = static_cast<std::uint32_t>(counter >> 32);
      const std::array<std::uint32_t, 4> words = philox({low, high, 0, 0}, {m.noise.key[0], m.noise.key[1]});
      std::array<std::uint32_t, 4> more{};
      if constexpr (states > 2) more = philox({low, high, 1, 0}, {m.noise.key[0], m.noise.key[1]});
      FSDP_UNROLL
      for (std::size_t w = 0; w < 4; ++w) {
        const std::size_t at = b * block + w * quarter + j;  // from the start of the part's first block
        if (!whole && (at < before || at >= before + m.n)) continue;
        const std::size_t i = at - before;
        float s[states];
        FSDP_UNROLL
        for (int k = 0; k < states; ++k) s[k] = value_of(m.state[k][i]);
        f(s, arrays[i - row]...);
        FSDP_UNROLL
        for (int k = 0; k < states; ++k) {
          const std::uint32_t word = k < 2 ? words[w] : more[w];
          m.state[k][i] = round_to_bf16(s[k], k % 2 == 0 ? word & 0xffffu : word >> 16);
          s[k] = value_of(m.state[k][i]);
        }
        if constexpr (hears) f.rounded(s, arrays[i - row]...);
      }
    });
  }

  /// Writes the 16-bit copy of row b. Called after an update of the row, while the row's parameters are still in the
  /// first-level cache.
  template <class Lanes>
  FSDP_INLINE void write_copy(Lanes lanes, std::size_t b) const {
    if (!copy.data) return;
    lanes.sync();
    write_halves(lanes, copy, begin(b), parameter + begin(b), end(b) - begin(b));
  }
};

/// A rule may depend on numbers that kernels have computed in device memory, unknown to the host. It then has a function
/// resolve(), called once per row, which returns the rule with these numbers.
template <class Rule>
FSDP_INLINE auto with_device_numbers(const Rule& rule) {
  if constexpr (requires { rule.resolve(); })
    return rule.resolve();
  else
    return rule;
}

/// Updates one element. rounded() is called when the states have been rounded.
template <class Rule>
struct UpdateElement {
  Rule rule;
  float scale;  // of the gradient
  FSDP_INLINE void operator()(float* s, float& p, float g) const { p = rule(p, g * scale, s); }
  FSDP_INLINE void rounded(const float* s, float& p, float) const {
    if constexpr (requires { Rule::rounded(s); }) p = Rule::rounded(s);
  }
};
template <class Rule>
UpdateElement(Rule, float) -> UpdateElement<Rule>;

template <class Rule, class State>
struct ElementUpdate {
  // Denormals count as 0: the states of an unused embedding row decay into denormals, which make arithmetic ten times as slow.
  static constexpr bool flush_denormals = true;
  Rule rule;
  ElementMemory<State, Rule::states> memory;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    if (!memory.applies()) return;
    const ElementMemory<State, Rule::states> m = memory;
    m.each(lanes, b, UpdateElement{with_device_numbers(rule), m.gradient_scale()}, m.parameter, m.gradient);
    memory.write_copy(lanes, b);
  }
};

/// ElementUpdate for a part whose parameter and gradient are bf16, too, in one pass over memory. The bits are those of three
/// passes: a conversion to fp32, ElementUpdate, and stochastic rounding of the new parameter by KeepRule.
template <class Rule>
struct NarrowUpdate {
  static constexpr bool flush_denormals = true;  // as in ElementUpdate
  static constexpr int states = Rule::states;
  using Memory = ElementMemory<std::uint16_t, states>;
  Rule rule;
  Memory memory;  // `parameter`, `gradient` and `copy` are not used
  std::uint16_t* parameter;
  const std::uint16_t* gradient;
  std::uint32_t parameter_key[2];  // of the noise that rounds parameters

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    if (!memory.applies()) return;
    const bool whole = memory.end(b) - memory.begin(b) == Memory::block;
#if defined(FSDP_GPU)
    if (whole && is_aligned(b))
      in_packs(lanes, b, std::make_index_sequence<states>{});
    else
      one_by_one<false>(lanes, b);
#else
    if (whole)
      one_by_one<true>(lanes, b);
    else
      one_by_one<false>(lanes, b);
#endif
  }

 private:
  static constexpr std::size_t quarter = Memory::block / 4;

  /// 16 random bits for each state and for the parameter, of the elements j, j + quarter, j + 2 * quarter and j + 3 * quarter
  /// of a block. ElementMemory::each_rounded() draws the same bits.
  struct Noise {
    std::array<std::uint32_t, 4> pair[(states + 1) / 2], of_parameter;

    FSDP_INLINE std::uint32_t of_state(int k, std::size_t w) const {
      return k % 2 == 0 ? pair[k / 2][w] & 0xffffu : pair[k / 2][w] >> 16;
    }
  };
  FSDP_INLINE Noise noise_of(std::uint64_t counter) const {
    const auto low = static_cast<std::uint32_t>(counter), high = static_cast<std::uint32_t>(counter >> 32);
    Noise noise;
    FSDP_UNROLL
    for (std::uint32_t p = 0; p < (states + 1) / 2; ++p)
      noise.pair[p] = philox({low, high, p, 0}, {memory.noise.key[0], memory.noise.key[1]});
    noise.of_parameter = philox({low, high, 0, 0}, {parameter_key[0], parameter_key[1]});
    return noise;
  }
  FSDP_INLINE std::uint64_t first_counter(std::size_t b) const {
    return (memory.noise.first_element / Memory::block + b) * quarter;
  }

  /// Updates the numbers of one element: s has its states.
  template <class AnyRule>
  FSDP_INLINE static void update(const AnyRule& rule, float scale, std::uint16_t& p, std::uint16_t g, float* s,
                                 std::uint32_t noise) {
    p = round_result_to_bf16(rule(Memory::value_of(p), Memory::value_of(g) * scale, s), noise);
  }

  /// Adjacent lanes process adjacent elements, one at a time.
  template <bool whole, class Lanes>
  FSDP_INLINE void one_by_one(Lanes lanes, std::size_t b) const {
    const NarrowUpdate k = *this;
    const auto by = with_device_numbers(rule);
    const float scale = memory.gradient_scale();
    const std::size_t before = memory.lead(), counters = first_counter(b);
    lanes.each(quarter, [=](std::size_t j) FSDP_LANE {
      const Noise noise = k.noise_of(counters + j);
      FSDP_UNROLL
      for (std::size_t w = 0; w < 4; ++w) {
        const std::size_t at = b * Memory::block + w * quarter + j;  // from the start of the part's first block
        if (!whole && (at < before || at >= before + k.memory.n)) continue;
        const std::size_t i = at - before;
        float s[states];
        FSDP_UNROLL
        for (int m = 0; m < states; ++m) s[m] = Memory::value_of(k.memory.state[m][i]);
        update(by, scale, k.parameter[i], k.gradient[i], s, noise.of_parameter[w] & 0xffffu);
        FSDP_UNROLL
        for (int m = 0; m < states; ++m) k.memory.state[m][i] = round_result_to_bf16(s[m], noise.of_state(m, w));
      }
    });
  }

  static constexpr std::size_t adjacent = 8;  // elements of a pack: 16 bytes

 public:
  static constexpr unsigned cuda_threads = quarter / adjacent;

 private:
#if defined(FSDP_GPU)
  FSDP_INLINE static bool is_aligned(const std::uint16_t* array) {
    return reinterpret_cast<std::uintptr_t>(array) % (adjacent * sizeof(*array)) == 0;
  }
  FSDP_INLINE bool is_aligned(std::size_t b) const {
    bool all = is_aligned(parameter + memory.begin(b)) && is_aligned(gradient + memory.begin(b));
    FSDP_UNROLL
    for (int m = 0; m < states; ++m) all = all && is_aligned(memory.state[m] + memory.begin(b));
    return all;
  }

  /// A lane processes packs of adjacent elements, one of each quarter of the block.
  template <class Lanes, std::size_t... m>
  FSDP_INLINE void in_packs(Lanes lanes, std::size_t b, std::index_sequence<m...>) const {
    const NarrowUpdate k = *this;
    const auto by = with_device_numbers(rule);
    const float scale = memory.gradient_scale();
    const std::size_t begin = memory.begin(b), counters = first_counter(b);
    lanes.each(quarter / adjacent, [=](std::size_t j) FSDP_LANE {
      Noise noise[adjacent];
      FSDP_UNROLL
      for (std::size_t e = 0; e < adjacent; ++e) noise[e] = k.noise_of(counters + adjacent * j + e);
      FSDP_UNROLL
      for (std::size_t w = 0; w < 4; ++w) {
        const std::size_t i = begin + w * quarter + adjacent * j;
        Pack<std::uint16_t*, adjacent> p(k.parameter + i), state[] = {Pack<std::uint16_t*, adjacent>(k.memory.state[m] + i)...};
        Pack<const std::uint16_t*, adjacent> g(k.gradient + i);
        FSDP_UNROLL
        for (std::size_t e = 0; e < adjacent; ++e) {
          float s[] = {Memory::value_of(state[m][e])...};
          update(by, scale, p[e], g[e], s, noise[e].of_parameter[w] & 0xffffu);
          ((state[m][e] = round_result_to_bf16(s[m], noise[e].of_state(m, w))), ...);
        }
        p.store();
        (state[m].store(), ...);
      }
    });
  }
#endif
};

}  // namespace fsdp::kernels
