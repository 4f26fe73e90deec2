// Element-wise optimizers, compared with their algorithms in double, and the rounding of states in bf16.
#include <bit>
#include <functional>

#include "kernels/support.hpp"
#include "optim/optimizer.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr double rate = 1e-2, wd = 0.1, b1 = 0.9, b2 = 0.999, mu = 0.8;

/// An optimizer, and a reference in double.
struct Algorithm {
  const char* name;
  OptimizerOptions options;
  std::function<double(double p, double g, double* s, int t)> reference;  // the new p
};

std::vector<Algorithm> algorithms() {
  const auto adam = [](const Optimizer& kind, bool amsgrad) {
    const double l2 = &kind == &adam_optimizer() ? wd : 0, decoupled = wd - l2;
    return Algorithm{amsgrad  ? "amsgrad"
                     : l2 > 0 ? "adam"
                              : "adamw",
                     {.kind = &kind, .beta1 = b1, .beta2 = b2, .eps = 1e-8, .amsgrad = amsgrad},
                     [=](double p, double g, double* s, int t) {
                       g += l2 * p;
                       s[0] = b1 * s[0] + (1 - b1) * g;
                       s[1] = b2 * s[1] + (1 - b2) * g * g;
                       if (amsgrad) s[2] = std::max(s[2], s[1]);
                       const double root = std::sqrt((amsgrad ? s[2] : s[1]) / (1 - std::pow(b2, t)));
                       return p * (1 - rate * decoupled) - rate / (1 - std::pow(b1, t)) * s[0] / (root + 1e-8);
                     }};
  };
  const auto sgd = [](double momentum, bool nesterov) {
    return Algorithm{nesterov       ? "nesterov"
                     : momentum > 0 ? "momentum"
                                    : "sgd",
                     {.kind = &sgd_optimizer(), .momentum = momentum, .nesterov = nesterov},
                     [=](double p, double g, double* s, int) {
                       g += wd * p;
                       if (momentum == 0) return p - rate * g;
                       s[0] = momentum * s[0] + g;
                       return p - rate * (nesterov ? g + momentum * s[0] : s[0]);
                     }};
  };
  return {adam(adamw_optimizer(), false),
          adam(adam_optimizer(), false),
          adam(adamw_optimizer(), true),
          sgd(0, false),
          sgd(mu, false),
          sgd(mu, true),
          {"adagrad",
           {.kind = &adagrad_optimizer(), .eps = 1e-10},
           [](double p, double g, double* s, int) {
             g += wd * p;
             s[0] += g * g;
             return p - rate * g / (std::sqrt(s[0]) + 1e-10);
           }},
          {"lion", {.kind = &lion_optimizer(), .beta1 = b1, .beta2 = b2}, [](double p, double g, double* s, int) {
             const double u = b1 * s[0] + (1 - b1) * g;
             s[0] = b2 * s[0] + (1 - b2) * g;
             return p * (1 - rate * wd) - rate * (u > 0 ? 1 : u < 0 ? -1 : 0);
           }}};
}

const Rule& rule_for(const OptimizerOptions& options) { return rule_of(options, Parameter{}); }

/// Runs update t on the elements [begin, begin + n) of parameter 3; `states` has the beginning of each state's part.
void update(Stream& stream, const OptimizerOptions& options, float* p, const float* g, std::vector<std::byte*> states,
            std::size_t begin, std::size_t n, std::uint64_t t, double learning_rate = rate, double weight_decay = wd,
            double gradient_scale = 1) {
  const UnitTensor tensor = {.numel = begin + n};
  const OptimizerSlice slice = {
      .parameter = 3, .range = {begin, begin + n}, .offset = 0, .tensor = 0, .weight_decay = weight_decay};
  UnitMemory memory = {.tensors = {&tensor, 1}, .slices = {&slice, 1}, .parameters = p, .gradients = g};
  std::copy(states.begin(), states.end(), memory.states.begin());
  const kernels::GradientNorm norm{.scale = gradient_scale};
  rule_for(options).update(stream, memory, options, {.number = t, .learning_rate = learning_rate, .norm = &norm});
}

template <class T>
std::vector<std::byte*> parts(std::vector<std::vector<T>>& states, std::size_t begin = 0) {
  std::vector<std::byte*> all;
  for (auto& state : states) all.push_back(reinterpret_cast<std::byte*>(state.data() + begin));
  return all;
}

std::uint16_t upper(float x) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16); }
float widened(std::uint16_t x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }

}  // namespace

BOOST_AUTO_TEST_CASE(ten_steps_of_each) {
  CpuStream stream;
  const std::size_t n = 9001;
  for (const Algorithm& algorithm : algorithms()) {
    const Floats start = random_floats(n, 1);
    Floats p = start;
    Doubles P = upcast(start);
    std::vector<Floats> s(rule_for(algorithm.options).states.size(), Floats(n));
    std::vector<Doubles> S(s.size(), Doubles(n));
    for (int t = 1; t <= 10; ++t) {
      const Floats g = random_floats(n, static_cast<std::uint32_t>(100 + t), 0.1f);
      update(stream, algorithm.options, p.data(), g.data(), parts(s), 0, n, static_cast<std::uint64_t>(t), rate, wd, 0.5);
      for (std::size_t i = 0; i < n; ++i) {
        double state[3] = {};
        for (std::size_t k = 0; k < S.size(); ++k) state[k] = S[k][i];
        P[i] = algorithm.reference(P[i], 0.5 * static_cast<double>(g[i]), state, t);
        for (std::size_t k = 0; k < S.size(); ++k) S[k][i] = state[k];
      }
    }
    // fp32 rounding of ten updates, each at most one unit in the last place of a parameter near 1. These numbers have no nearly
    // zero momentum, whose sign would be random for lion.
    BOOST_TEST(relative_error(p, P) < 1e-6, algorithm.name);
    for (std::size_t k = 0; k < s.size(); ++k) BOOST_TEST(relative_error(s[k], S[k]) < 1e-6, algorithm.name);
  }
}

BOOST_AUTO_TEST_CASE(denormals_are_flushed_inside_and_the_mode_is_restored) {
  CpuStream stream;
  const std::size_t n = 5000;
  Floats p(n, 1.0f), g(n);
  std::vector<Floats> s(2, Floats(n, 1e-38f));
  update(stream, {.beta2 = 0.99}, p.data(), g.data(), parts(s), 0, n, 1, 1e-3, 0);
  BOOST_TEST(s[0][0] == 0.0f);
  BOOST_TEST(s[1][n - 1] == 0.0f);
  volatile float tiny = 1e-38f;
  BOOST_TEST(tiny * 0.1f > 0.0f);
}

BOOST_AUTO_TEST_CASE(states_in_bf16_are_rounded_at_random_and_right_on_average) {
  CpuStream stream;
  const std::size_t n = 1 << 16;
  Floats p(n), g(n, 1.0f);
  std::vector<std::vector<std::uint16_t>> states(1, std::vector<std::uint16_t>(n, upper(1.0f)));
  std::vector<std::uint16_t>& m = states[0];
  const OptimizerOptions options = {
      .kind = &lion_optimizer(), .beta1 = 0.9, .beta2 = 0.999, .state_type = DType::bf16, .seed = 1};
  // 1 becomes 1.001, which is 0.128 of the way to the next bf16 number.
  update(stream, options, p.data(), g.data(), parts(states), 0, n, 2, 0, 0);
  std::fill(g.begin(), g.end(), 2.0f);
  std::fill(m.begin(), m.end(), upper(1.0f));
  update(stream, options, p.data(), g.data(), parts(states), 0, n, 2, 0, 0);
  double mean = 0;
  for (const std::uint16_t x : m) {
    BOOST_TEST_REQUIRE((x == upper(1.0f) || x == upper(1.0f) + 1));
    mean += static_cast<double>(widened(x)) / n;
  }
  BOOST_TEST(std::abs(mean - 1.001) < 6 * 0.0078125 * 0.334 / std::sqrt(n));  // six standard deviations
}

BOOST_AUTO_TEST_CASE(no_cut_changes_a_bit_of_a_bf16_state) {
  CpuStream stream;
  const std::size_t n = 20000;
  const Floats g = random_floats(n, 4);
  const auto run = [&](const std::vector<std::size_t>& cuts, std::uint64_t number, bool amsgrad) {
    const OptimizerOptions options = {
        .beta1 = b1, .beta2 = b2, .eps = 1e-8, .amsgrad = amsgrad, .state_type = DType::bf16, .seed = 7};
    Floats p = random_floats(n, 5);
    std::vector<std::vector<std::uint16_t>> s(3, std::vector<std::uint16_t>(n, upper(0.37f)));
    for (std::size_t c = 0; c + 1 < cuts.size(); ++c)
      update(stream, options, p.data() + cuts[c], g.data() + cuts[c], parts(s, cuts[c]), cuts[c], cuts[c + 1] - cuts[c],
             number);
    std::vector<float> all = p;
    for (const auto& state : s)
      for (const std::uint16_t x : state) all.push_back(widened(x));
    return all;
  };
  for (const bool amsgrad : {false, true}) {
    const Floats whole = run({0, n}, 9, amsgrad);
    BOOST_CHECK((whole == run({0, 16, 4096, 4112, 9008, 9024, n}, 9, amsgrad)));
    BOOST_CHECK((whole == run({0, 1, 5000, 5001, n}, 9, amsgrad)));
    BOOST_CHECK((whole != run({0, n}, 10, amsgrad)));
  }
}

BOOST_AUTO_TEST_CASE(names_lead_to_rows) {
  for (const Optimizer* row : optimizers()) {
    BOOST_TEST(&find_optimizer(row->name) == row);
    for (const Rule* rule : row->rules) BOOST_TEST(find_rule(rule->name) == rule);
    if (!row->same_as.empty()) BOOST_TEST(find_optimizer(row->same_as).rules == row->rules);
  }
  BOOST_TEST(find_rule("rmsprop") == nullptr);
  CHECK_CONTAINS(message_of([] { find_optimizer("rmsprop"); }),
                 "no optimizer \"rmsprop\" (known are adamw, cpu_adam, adam, sgd");
}
