// Compares the row kernels of all levels that this processor has. What is defined exactly (initial weights, exact sums, sums
// over rows) has the same bits on all. The rest may differ by rounding on x86-64-v2, which does not fuse a product and a sum;
// all other levels, of every processor, have the bits whose hashes are in bits.txt. Each level must also have its own code: see
// symbols.cmake.
#include "base/format.hpp"
#include "files/checksum.hpp"
#include "kernels/element_update.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/attention.hpp"
#include "kernels/rows/bodies.hpp"
#include "support.hpp"

#include <omp.h>

#include <cstdlib>
#include <fstream>
#include <map>

using namespace fsdp;
using namespace fsdp::test;
namespace k = fsdp::kernels;

namespace {

/// Calls f.operator()<level>() for each level of this processor, the lowest first.
template <class F>
void each_level(F f) {
#define FSDP_CALL(LEVEL, ...) \
  if (CpuLevel::LEVEL <= cpu_level()) f.template operator()<static_cast<int>(CpuLevel::LEVEL)>();
  FSDP_CPU_LEVELS(FSDP_CALL)
#undef FSDP_CALL
}

template <int level, class Body>
void run_at(const Body& body, std::size_t rows) {
  k::run_rows<level>(body, rows);
}

template <int level, class Rule, class State>
void run_at(const k::ElementUpdate<Rule, State>& body, std::size_t rows) {
  const k::RowFunction row = k::row_functions<k::ElementUpdate<Rule, State>>.of_level(static_cast<CpuLevel>(level));
  for (std::size_t r = 0; r < rows; ++r) row(&body, r);
}

template <int level, class Rule>
void run_at(const k::NarrowUpdate<Rule>& body, std::size_t rows) {
  const k::RowFunction row = k::row_functions<k::NarrowUpdate<Rule>>.of_level(static_cast<CpuLevel>(level));
  for (std::size_t r = 0; r < rows; ++r) row(&body, r);
}

template <int level>
constexpr bool fuses = level > 2;  // x86-64-v2 has no fused multiply-add

/// Compares the hash of a result's bits with the one in bits.txt, "NAME: HASH".
void check_bits(const std::string& name, const Floats& result) {
  static const std::map<std::string, std::string> known = [] {
    std::map<std::string, std::string> hashes;
    std::ifstream file(FSDP_BITS);
    for (std::string line; std::getline(file, line);)
      if (const std::size_t colon = line.find(": "); colon != line.npos && line[0] != '#')
        hashes[line.substr(0, colon)] = line.substr(colon + 2);
    return hashes;
  }();
  const std::string hash = checksum_text(checksum(result.data(), result.size() * sizeof(float)));
  const auto found = known.find(name);
  BOOST_TEST((found != known.end() && found->second == hash), "bits.txt has no line \"" << name << ": " << hash << '"');
}

/// Returns the name in bits.txt: a name that is used again gets a number.
std::string unique_name(const std::string& name) {
  static std::map<std::string, int> uses;
  return name + (++uses[name] > 1 ? format(" {}", uses[name]) : "");
}

/// Runs a body on every level of this processor; `make` sizes an output and gives the body that fills it.
template <class Make>
void compare(const std::string& name, std::size_t rows, double tolerance, const Make& make) {
  const std::string of_bits = unique_name(name);
  std::vector<Floats> results;
  each_level([&]<int level>() {
    Floats out;
    const auto body = make(out);
    run_at<level>(body, rows);
    results.push_back(out);
    if (fuses<level>) check_bits(of_bits, out);
  });
  for (const Floats& other : results) {
    BOOST_TEST(relative_error(other, upcast(results[0])) <= tolerance, name);
    BOOST_TEST(relative_error(other, Doubles(other.size())) > 0, name);  // the result is not all zeros
  }
}

constexpr std::size_t R = 9, C = 211;
const Floats a = random_floats(R * C, 1, 3.0f), b = random_floats(R * C, 2), gain = random_floats(C, 3),
             bias = random_floats(C, 4);
const Floats stats = random_floats(2 * R, 5);
const std::vector<std::int32_t> targets = {3, -1, 210, 0, 7, 100, 5, 5, 9};

}  // namespace

BOOST_AUTO_TEST_CASE(within_rounding) {
  const double tolerance = 1e-6;
  compare("layer norm", R, tolerance, [](Floats& out) {
    out.resize(R * C + 2 * R);
    return k::LayerNormForward<float>{out.data(), out.data() + R * C, a.data(), gain.data(), bias.data(), C, 1e-5f};
  });
  compare("layer norm backward", 2, tolerance, [](Floats& out) {
    out.resize(R * C + 4 * C);
    return k::LayerNormBackward<float>{out.data(), out.data() + R * C, b.data(), a.data(), stats.data(), gain.data(), R, C, 2,
                                       false};
  });
  compare("rms norm", R, tolerance, [](Floats& out) {
    out.resize(R * C + R);
    return k::RmsNormForward<float>{out.data(), out.data() + R * C, a.data(), gain.data(), C, 1e-5f};
  });
  compare("rms norm backward", 2, tolerance, [](Floats& out) {
    out.resize(R * C + 2 * C);
    return k::RmsNormBackward<float>{out.data(), out.data() + R * C, b.data(), a.data(), stats.data(), gain.data(), R, C, 2,
                                     false};
  });
  compare("head norm", 3 * R, tolerance, [](Floats& out) {  // 3 heads of 65 in rows of C
    out = a;
    out.resize(R * C + 3 * R * 65 + 3 * R);
    return k::HeadNormForward<float>{out.data(), out.data() + R * C, out.data() + R * C + 3 * R * 65, gain.data(), 3, 65, C,
                                     1e-5f};
  });
  compare("head norm backward", 2, tolerance, [](Floats& out) {
    out = b;
    out.resize(R * C + 2 * 65);
    return k::HeadNormBackward<float>{out.data(), out.data() + R * C, a.data(), stats.data(), gain.data(), R, 2, 65, C, 2};
  });
  compare("relu", R, 0, [](Floats& out) {
    out = a;
    out.resize(2 * R * C);
    return k::BiasActivation<k::ReluActivation, float>{out.data() + R * C, out.data(), bias.data(), C};
  });
  compare("relu backward", 1, 0, [](Floats& out) {
    out.resize(R * C);
    return k::ActivationBackward<k::ReluActivation, float>{out.data(), b.data(), a.data(), R * C};
  });
  compare("gelu", 1, tolerance, [](Floats& out) {
    out.resize(R * C);
    return k::ActivationBackward<k::GeluActivation<k::Gelu::tanh>, float>{out.data(), b.data(), a.data(), R * C};
  });
  compare("gelu erf", 1, tolerance, [](Floats& out) {
    out.resize(R * C);
    return k::ActivationBackward<k::GeluActivation<k::Gelu::erf>, float>{out.data(), b.data(), a.data(), R * C};
  });
  compare("sigmoid backward", 1, tolerance, [](Floats& out) {
    out.resize(R * C);
    return k::ActivationBackward<k::SigmoidActivation, float>{out.data(), b.data(), a.data(), R * C};
  });
  compare("multiply", 1, tolerance, [](Floats& out) {
    out = b;
    return k::Multiply<float>{out.data(), b.data(), a.data(), R * C, true};
  });
  compare("swiglu", 1, tolerance, [](Floats& out) {
    out.resize(2 * R * C);
    return k::SwigluBackward<float>{out.data(), out.data() + R * C, b.data(), a.data(), b.data(), R * C};
  });
  compare("cross entropy", R, tolerance, [](Floats& out) {
    out.resize(5 * R);
    return k::CrossEntropy<float>{
        out.data(), reinterpret_cast<k::SoftmaxStats*>(out.data() + R), a.data(), targets.data(), 0, C, C, true};
  });
  compare("logit gradient", R, tolerance, [](Floats& out) {
    out = a;
    static const std::vector<k::SoftmaxStats> softmax(R, {3.0f, 40.0f, 0.0f});
    return k::LogitGradient<float>{out.data(), softmax.data(), targets.data(), 0, C, C, 1.0f};
  });
  compare("softmax of scores", R, tolerance, [](Floats& out) {
    out = a;
    out.resize(2 * R * C);
    return k::ScoreSoftmax<float>{out.data() + R * C, out.data(), {R, C, C - 4, b.data(), 1}, 0.7f};
  });
  compare("softmax of scores backward", R, tolerance, [](Floats& out) {
    out.resize(R * C);
    return k::ScoreSoftmaxBackward<float>{out.data(), b.data(), a.data(), C, 0.7f};
  });
  compare("logit gradient, terms", R, tolerance, [](Floats& out) {
    out = a;
    static const std::vector<k::SoftmaxStats> softmax(R, {3.0f, 40.0f, 0.0f});
    static Floats loss(R);
    return k::LossTermsGradient<float>{loss.data(), out.data(), softmax.data(), targets.data(), 0,     C,
                                       C,           1.0f,       0.1f,           0.1f / C,       1e-2f, true};
  });
}

BOOST_AUTO_TEST_CASE(layers_and_losses_within_rounding) {
  const double tolerance = 1e-6;
  const auto activation = [&]<class Activation>(const char* name, Activation) {
    compare(name, R, tolerance, [](Floats& out) {
      out = a;
      out.resize(2 * R * C);
      return k::BiasActivation<Activation, float>{out.data() + R * C, out.data(), bias.data(), C};
    });
    compare(name, 1, tolerance, [](Floats& out) {
      out.resize(R * C);
      return k::ActivationBackward<Activation, float>{out.data(), b.data(), a.data(), R * C};
    });
  };
  activation("silu", k::SiluActivation{});
  activation("tanh", k::TanhActivation{});
  for (const k::SoftmaxForm form : {k::SoftmaxForm::probabilities, k::SoftmaxForm::logarithms}) {
    compare("softmax", R, tolerance, [=](Floats& out) {
      out.resize(R * C);
      return k::SoftmaxForward<float>{out.data(), a.data(), C, form};
    });
    compare("softmax backward", R, tolerance, [=](Floats& out) {
      out.resize(R * C);
      return k::SoftmaxBackward<float>{out.data(), b.data(), a.data(), C, form};
    });
  }
  constexpr std::size_t half = C / 2;  // columns of rows of C
  compare("swiglu of columns", R, tolerance, [](Floats& out) {
    out.resize(R * half);
    return k::SwigluRowsForward<float>{{out.data(), half}, {a.data(), C}, {a.data() + half, C}, half};
  });
  compare("swiglu of columns backward", R, tolerance, [](Floats& out) {
    out.resize(R * C);
    return k::SwigluRowsBackward<float>{{out.data(), C}, {out.data() + half, C}, {b.data(), half},
                                        {a.data(), C},   {a.data() + half, C},   half};
  });
  compare("positions", R, 0, [](Floats& out) {
    out.resize(R * C);
    return k::AddPositions<float>{out.data(), a.data(), b.data(), 4, C};
  });
  compare("transpose", R, 0, [](Floats& out) {
    out.resize(R * 210);
    return k::TransposeRows<float>{out.data(), a.data(), 14, 15};
  });
  const auto rows_in = [](Floats& out) {
    out.resize(R + R * C);
    return k::LossRows<float>{out.data(), out.data() + R, a.data(), b.data(), R, C, 0.5f};
  };
  compare("squared error", R, tolerance, [&](Floats& out) { return k::ErrorLoss<k::SquaredError, float>{rows_in(out), {}}; });
  compare("absolute error", R, tolerance, [&](Floats& out) { return k::ErrorLoss<k::AbsoluteError, float>{rows_in(out), {}}; });
  compare("huber", R, tolerance, [&](Floats& out) { return k::ErrorLoss<k::HuberError, float>{rows_in(out), {0.75f, 2}}; });
  for (const float* const weights : {static_cast<const float*>(nullptr), gain.data()})
    compare("binary cross entropy", R, tolerance, [&](Floats& out) {
      return k::BinaryCrossEntropy<float>{rows_in(out), weights};
    });
  for (const bool backward : {false, true})
    compare("weights of classes", R, tolerance, [=](Floats& out) {
      out = a;
      out.resize(R * C + R, 1);
      static const std::vector<k::SoftmaxStats> softmax(R, {3.0f, 40.0f, 0.5f});
      return k::WeighClasses<float>{out.data() + R * C, out.data(), softmax.data(), targets.data(), gain.data(), C, 1.0f, 0.1f,
                                    0.1f / C,           1e-2f,      backward};
    });
}

BOOST_AUTO_TEST_CASE(attention_within_rounding) {
  const k::AttentionShape shape{1, 70, 2, 1, 24, 48, 24};
  const k::DropoutMask mask = k::dropout_mask(0.1f, 1, 2, 3, 4, shape.T);
  const Floats q = random_floats(70 * 48, 1), key = random_floats(70 * 24, 2), value = random_floats(70 * 24, 3),
               d_out = random_floats(70 * 48, 4);
  const std::size_t per_thread = k::attention_scratch_of_thread(shape.T, shape.D);
  std::vector<Floats> results;
  omp_set_num_threads(1);
  each_level([&]<int level>() {
    Floats scratch(per_thread), lse(2 * 70), all(4 * 70 * 48);  // out, dq, dk and dv
    float *out = all.data(), *dq = out + 70 * 48, *dk = dq + 70 * 48, *dv = dk + 70 * 24;
    k::run_attention<level>(k::AttentionForward<float>{out, lse.data(), q.data(), key.data(), value.data(), shape, mask}, 2,
                            scratch.data(), per_thread);
    k::run_attention<level>(
        k::AttentionBackward<float>{dq, dk, dv, d_out.data(), out, lse.data(), q.data(), key.data(), value.data(), shape, mask},
        1, scratch.data(), per_thread);
    results.push_back(all);
    if (fuses<level>) check_bits("attention", all);
  });
  for (const Floats& other : results) BOOST_TEST(relative_error(other, upcast(results[0])) < 1e-6);
  BOOST_TEST(relative_error(results[0], Doubles(results[0].size())) > 0);
}

BOOST_AUTO_TEST_CASE(to_the_bit) {
  compare("normal numbers", 2, 0, [](Floats& out) {
    out.resize(1999);
    return k::NormalFill{out.data(), 1999, 5, 1, 2, 0.0f, 0.02f};
  });
  compare("uniform numbers", 2, 0, [](Floats& out) {
    out.resize(1999);
    return k::UniformFill{out.data(), 1999, 5, 1, 2, 0.0f, 0.02f};
  });
  const k::DropoutMask mask = k::dropout_mask(0.2f, 1, 2, 3, 4, 4);
  compare("dropout", R, 0, [&](Floats& out) {
    out.resize(R * C);
    return k::DropoutBody<float>{out.data(), a.data(), C, mask};
  });
  compare("noise", R, 0, [&](Floats& out) {
    out = a;
    return k::AddNoise<float>{out.data(), C, k::embedding_noise(5, 1, 2, 3, 4, C)};
  });
  compare("add residual, dropout", R, 0, [&](Floats& out) {
    out.resize(R * C);
    return k::AddResidual<float>{out.data(), a.data(), b.data(), bias.data(), C, mask};
  });
  compare("rotary table", R, 0, [](Floats& out) {
    out.resize(R * 40);
    k::RotaryFrequencies frequencies = {{}, 20};
    for (std::size_t i = 0; i < 20; ++i) frequencies.value[i] = gain[i];
    return k::RotaryTable<float>{out.data(), frequencies};
  });
  compare("column sums", 2, 0, [](Floats& out) {
    out.resize(2 * C);
    return k::ColumnSum<float>{out.data(), a.data(), R, C, C, 2};
  });
  // The rounding of bf16 states, and sums of squares by row and by column.
  const auto halves = [](Floats& out, std::size_t at) { return reinterpret_cast<std::uint16_t*>(out.data() + at); };
  compare("momentum in bf16", 1, 0, [&](Floats& out) {
    out.assign(R * C + (R * C + 1) / 2, 0);
    return k::ElementUpdate<k::MomentumRule, std::uint16_t>{
        {0, 0.5f, 0.5f, 0, 1},
        {out.data(), {halves(out, R * C)}, a.data(), R * C, nullptr, true, {{3, 4}, 0}, nullptr, DType::bf16}};
  });
  compare("copy in 16 bits", 1, 0, [&](Floats& out) {
    out = a;
    out.resize(R * C + (R * C + 1) / 2);
    return k::ElementUpdate<k::SgdRule, float>{
        {1, 0, 0.5f}, {out.data(), {}, b.data(), R * C, nullptr, true, {}, halves(out, R * C), DType::bf16}};
  });
  std::vector<std::vector<std::int64_t>> words;
  std::vector<double> values;
  each_level([&]<int level>() {
    words.emplace_back(2 * (R + C));
    const k::GradientNorm norm{.norm = 64};
    k::run_rows<level>(k::RowSquares{&norm, {0, R * C, C}, 0, a.data(), words.back().data()}, R);
    k::run_rows<level>(k::ColumnSquares{&norm, {0, R * C, C}, 0, R, a.data(), words.back().data() + 2 * R}, 1);
    k::ExactSum sum;
    k::run_rows<level>(k::Squares{&sum, a.data(), R * C, k::Squares::block},
                       (R * C + k::Squares::block - 1) / k::Squares::block);
    sum.normalize();
    values.push_back(sum.value());
  });
  for (const auto& other : words) BOOST_TEST((other == words[0] && other[2 * R] > 0));
  for (const double value : values) BOOST_TEST(value == values[0]);
  check_bits("exact sum", {static_cast<float>(values[0]), static_cast<float>(words[0][2 * R])});
}

#if defined(__x86_64__) && !defined(__clang__) && __GNUC__ >= 12
BOOST_AUTO_TEST_CASE(the_level_is_what_the_compiler_says_of_this_processor) {
  BOOST_TEST_REQUIRE(!std::getenv("FSDP_CPU_LEVEL"));
  const int expected = __builtin_cpu_supports("x86-64-v4") ? 4 : __builtin_cpu_supports("x86-64-v3") ? 3 : 2;
  BOOST_TEST(static_cast<int>(cpu_level()) == expected);
}
#endif

// The update in one pass has the bits of three passes, at every place of a part in its parameter.
BOOST_AUTO_TEST_CASE(updates_in_one_pass_have_the_bits_of_three) {
  using Half = std::uint16_t;
  constexpr std::size_t most = 2 * k::flat_block + 5;
  const Floats values = random_floats(5 * most, 6);
  const k::GradientNorm norm = {.norm = 3, .scale = 0.25, .finite = 1};
  const k::GradientNorm skipped = {.norm = 3, .scale = 0.25, .finite = 0};
  constexpr std::size_t lengths[] = {1, 7, 16, 1000, 4095, 4096, 4097, 8191, most};
  const auto compare_at = [&]<int level, class Rule>(const Rule& rule, std::size_t first, std::size_t n,
                                                     const k::GradientNorm& by) {
    const std::size_t rows = (first % k::flat_block + n + k::flat_block - 1) / k::flat_block;
    std::vector<Half> narrow(5 * most), kept;  // parameter, gradient, three states
    for (std::size_t i = 0; i < narrow.size(); ++i) narrow[i] = bf16(i < 3 * most ? values[i] : std::abs(values[i])).bits;
    // Infinities, a NaN, the largest finite numbers and, among states, a signaling NaN.
    constexpr Half special[] = {0x7f80, 0xff80, 0xffc1, 0x7f7f, 0xff7f, 0x7f81};
    for (std::size_t i = 1; i < most; i += 50) narrow[i] = special[i / 50 % 5], narrow[2 * most + i] = special[i / 50 % 6];
    kept = narrow;
    Floats wide(2 * most);
    for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = element_parts::float_of(std::uint32_t{kept[i]} << 16);
    const k::RoundingNoise of_states = k::rounding_noise(RandomSite::optimizer_state, 1, 2, 3, first);
    const k::RoundingNoise of_parameter = k::rounding_noise(RandomSite::master_weights, 1, 5, 3, first);
    const auto states_in = [=](std::vector<Half>& of, std::size_t s) -> std::byte* {
      return reinterpret_cast<std::byte*>(of.data() + (2 + s) * most);
    };
    const auto target_in = [&](std::vector<Half>& of) -> k::UpdateTarget {
      return k::UpdateTarget{.parameter = wide.data(),
                             .state = {states_in(of, 0), states_in(of, 1), states_in(of, 2)},
                             .gradient = wide.data() + most,
                             .n = n,
                             .norm = &by,
                             .noise = of_states};
    };
    run_at<level>(k::ElementUpdate<Rule, Half>{rule, k::memory_of<Half, Rule::states>(target_in(kept))}, rows);
    const auto rounded = k::memory_of<Half, 1>({.parameter = wide.data(),
                                                .state = {reinterpret_cast<std::byte*>(kept.data())},
                                                .gradient = wide.data(),
                                                .n = n,
                                                .noise = of_parameter});
    run_at<level>(k::ElementUpdate<k::KeepRule, Half>{{false}, rounded}, rows);
    const std::vector<Half> before = narrow;
    run_at<level>(k::NarrowUpdate<Rule>{rule,
                                        k::memory_of<Half, Rule::states>(target_in(narrow)),
                                        narrow.data(),
                                        narrow.data() + most,
                                        {of_parameter.key[0], of_parameter.key[1]}},
                  rows);
    BOOST_TEST_REQUIRE((narrow == kept), "level " << level << ", " << n << " elements from " << first);
    BOOST_TEST_REQUIRE((narrow == before) == !by.finite);
  };
  const auto compare_rule = [&](const auto& rule, std::size_t step) {
    each_level([&]<int level>() {
      std::size_t i = 0;
      for (std::size_t first = 0; first <= k::flat_block; first += step)
        compare_at.template operator()<level>(rule, 3 * k::flat_block + first, lengths[i++ % std::size(lengths)], norm);
      compare_at.template operator()<level>(rule, 5, 5000, skipped);
    });
  };
  compare_rule(k::AdamRule<false>{0.99f, 0, 0.9f, 0.1f, 0.99f, 0.01f, 0.01f, 1.1f, 1e-8f}, 1);
  compare_rule(k::AdamRule<true>{1, 0.1f, 0.9f, 0.1f, 0.99f, 0.01f, 0.01f, 1.1f, 1e-8f}, 89);
  compare_rule(k::MomentumRule{0.1f, 0.1f, 0.9f, 1, 0.9f}, 89);
  compare_rule(k::AdagradRule{0.1f, 0.1f, 1e-8f}, 89);
  compare_rule(k::LionRule{0.99f, 0.01f, 0.9f, 0.1f, 0.99f, 0.01f}, 89);
}
