// Master weights and gradients in bf16 with stochastic rounding: golden runs stay near those in fp32, strategies have the same
// bits, and rounding is unbiased.
#include <bit>
#include <cmath>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "kernels/optimizers.hpp"
#include "run/golden_run.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

Case all_in_bf16(int ranks) {
  return {.ranks = ranks, .state_type = DType::bf16, .precision = DType::bf16, .master = DType::bf16, .gradient = DType::bf16};
}

json run_with(const std::string& optimizer) { return read_json(golden_folder("optimizers.json"))[optimizer]; }

bool is_bf16(float value) { return (std::bit_cast<std::uint32_t>(value) & 0xffffu) == 0; }

double furthest(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

}  // namespace

BOOST_AUTO_TEST_CASE(rounding_at_random_keeps_the_expected_value) {
  const auto stream = make_host_stream();
  constexpr std::size_t n = 10007, times = 400;
  const float value = 1.0f + 0x1p-9f;  // a quarter of the way from 1 to the next bf16 number
  std::size_t up = 0;
  for (std::uint32_t time = 0; time < times; ++time) {
    std::vector<float> wide(n, value);
    std::vector<bf16> kept(n);
    kernels::round_at_random(*stream, kept.data(), wide.data(), n,
                             kernels::rounding_noise(RandomSite::master_weights, 7, 3, 2, 11, time), kernels::Write::overwrite);
    for (std::size_t i = 0; i < n; ++i) {
      BOOST_TEST_REQUIRE((wide[i] == 1.0f || wide[i] == 1.0f + 0x1p-7f));
      BOOST_TEST_REQUIRE(wide[i] == static_cast<float>(kept[i]));
      up += wide[i] > 1.0f ? 1 : 0;
    }
  }
  const double share = static_cast<double>(up) / (n * times), deviation = std::sqrt(0.25 * 0.75 / (n * times));
  BOOST_TEST(std::abs(share - 0.25) < 4 * deviation);
}

BOOST_AUTO_TEST_CASE(rounding_goes_by_the_place_in_the_parameter) {
  const auto stream = make_host_stream();
  constexpr std::size_t n = 9001;
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = std::sin(static_cast<float>(i)) * 1e-3f;
  const auto round = [&](const std::vector<std::size_t>& cuts, kernels::Write write) {
    std::vector<float> wide = values;
    std::vector<bf16> kept(n, bf16(0.5f));
    for (std::size_t c = 0; c + 1 < cuts.size(); ++c)
      kernels::round_at_random(*stream, kept.data() + cuts[c], wide.data() + cuts[c], cuts[c + 1] - cuts[c],
                               kernels::rounding_noise(RandomSite::gradient_sums, 1, 2, 3, cuts[c]), write);
    return wide;
  };
  for (const kernels::Write write : {kernels::Write::overwrite, kernels::Write::add}) {
    const auto whole = round({0, n}, write);
    BOOST_TEST((whole == round({0, 1, 4095, 4097, 8192, n}, write)));
    for (std::size_t i = 0; i < n; ++i) {
      const float exact = values[i] + (write == kernels::Write::add ? 0.5f : 0.0f);
      BOOST_TEST_REQUIRE(std::abs(whole[i] - exact) <= std::abs(exact) * 0x1p-7f);
      BOOST_TEST_REQUIRE(is_bf16(whole[i]));
    }
  }
}

BOOST_AUTO_TEST_CASE(what_bf16_holds_stays) {
  const auto stream = make_host_stream();
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> wide = {1.0f, -0.0f, 3.140625f, 0x1.fep127f, -0x1.fep127f, infinity, -infinity, 0x1p-126f}, before = wide;
  std::vector<bf16> kept(wide.size());
  for (std::uint32_t time = 0; time < 50; ++time) {
    kernels::round_at_random(*stream, kept.data(), wide.data(), wide.size(),
                             kernels::rounding_noise(RandomSite::master_weights, 1, 1, 1, 0, time), kernels::Write::overwrite);
    BOOST_TEST(wide == before, boost::test_tools::per_element());
  }
}

BOOST_DATA_TEST_CASE(strategies_have_the_same_bits, boost::unit_test::data::make({"adam", "lamb", "adafactor", "muon"}),
                     optimizer) {
  for (const int ranks : {1, 2, 3, 4}) {
    Case one = all_in_bf16(ranks);
    one.run = run_with(optimizer);
    const History full = train_golden("gpt2-tied", one);
    for (const auto& tensors : {full.final_weights, full.first_gradients})
      for (const auto& tensor : tensors) BOOST_TEST_REQUIRE(std::all_of(tensor.begin(), tensor.end(), is_bf16));
    for (const std::string& strategy : strategies) {
      Case other = one;
      other.strategy = strategy, other.group = group_for(ranks);
      other.threads = ranks % 2 == 0 ? Threads::communication : ranks == 3 ? Threads::each_stream : Threads::one;
      BOOST_CHECK_MESSAGE(full == train_golden("gpt2-tied", other), optimizer << ", " << ranks << " ranks, " << strategy);
    }
  }
}

// With clipping of values, here to a limit that no value reaches, parameters and gradients are converted to fp32 for the
// update. Bits do not depend on this, nor if the update's number is not the number of updates of the states.
BOOST_DATA_TEST_CASE(an_update_in_one_pass_has_the_bits_of_three,
                     boost::unit_test::data::make({"adam", "adam-amsgrad", "sgd-momentum", "adagrad", "lion"}), optimizer) {
  for (const int ranks : {1, 2, 4})
    for (const std::uint64_t state_began : {0, 1})
      for (const std::string strategy : {"full", "optim", "none"}) {
        Case one = all_in_bf16(ranks);
        one.run = run_with(optimizer);
        one.run["updates"] = 3;
        one.strategy = strategy, one.state_began = state_began;
        Case three = one;
        three.plan.clip_values = true, three.clip_value = 1e30;
        BOOST_CHECK_MESSAGE(train_golden("gpt2-tied", one) == train_golden("gpt2-tied", three),
                            optimizer << ", " << ranks << " ranks, " << strategy << ", states since " << state_began);
      }
}

BOOST_AUTO_TEST_CASE(runs_stay_near_those_in_fp32) {
  for (const char* const name : {"gpt2-tied", "llama-gqa"})
    for (const std::size_t micro_batches : {1, 2}) {
      Case wide{.ranks = 2, .micro_batches = micro_batches, .precision = DType::bf16}, narrow = all_in_bf16(2);
      narrow.micro_batches = micro_batches;
      const History a = train_golden(name, wide);
      for (const std::string strategy : {"full", "grad-op", "none"}) {
        narrow.strategy = strategy;
        const History b = train_golden(name, narrow);
        const double loss = furthest(a.losses, b.losses);
        BOOST_TEST_MESSAGE(name << ", " << micro_batches << " micro-batches, " << strategy << ": losses " << loss << " apart");
        BOOST_TEST(loss > 0);
        BOOST_TEST(loss < 0.02);
      }
    }
}

/// Uses steps of a thousandth of a unit in the last place of bf16: with rounding to nearest no weight would ever change.
BOOST_AUTO_TEST_CASE(small_updates_add_up) {
  Case narrow = all_in_bf16(2);
  narrow.run = run_with("sgd");
  narrow.run["weight_decay"] = 0.0;
  for (auto& step : narrow.run["steps"]) step["lr"] = 1e-4;
  Case wide = narrow;
  wide.master = wide.gradient = DType::f32;
  const auto initial = read_tensors(golden_folder("gpt2-tied") / "model.safetensors");
  const History a = train_golden("gpt2-tied", wide), b = train_golden("gpt2-tied", narrow);
  const auto parameters = list_parameters(read_config(golden_folder("gpt2-tied"))).parameters;
  std::size_t changed = 0;
  double along = 0, moved = 0;  // the distance that b moved in a's direction, and the distance that a moved
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const auto& start = initial.at(parameters[p].name);
    for (std::size_t i = 0; i < start.size(); ++i) {
      const double step = static_cast<double>(a.final_weights[p][i]) - start[i];
      const double rounded = static_cast<double>(b.final_weights[p][i]) - static_cast<float>(bf16(start[i]));
      along += step * rounded, moved += step * step;
      if (rounded != 0) ++changed;
    }
  }
  BOOST_TEST_MESSAGE(changed << " weights changed; they went " << along / moved << " of the way");
  BOOST_TEST(changed > 100u);
  BOOST_TEST(std::abs(along / moved - 1) < 0.5);
}
