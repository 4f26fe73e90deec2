// Whole models against PyTorch: loss and all gradients of the first update of the runs in tests/golden/runs.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "nn/model_run.hpp"
#include "support/golden.hpp"

using namespace fsdp;
using nlohmann::json;
using namespace fsdp::test;

namespace {

struct Golden {
  explicit Golden(const std::string& name)
      : folder(golden_folder(name)), run(read_config(folder)), record(read_json(folder / "run.json")) {
    const auto initial = read_tensors(folder / "model.safetensors");
    BOOST_TEST(initial.size() == run.weights.size());
    for (std::size_t p = 0; p < run.weights.size(); ++p) {
      const std::vector<float>& values = initial.at(run.model.parameters()[p].name);
      BOOST_TEST_REQUIRE(values.size() == run.weights[p].size());
      run.weights[p] = values;
    }
    T = record["tokens_per_sample"];
    const std::vector<std::int32_t> stream = read_tokens(folder / "train.bin");
    tokens.assign(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(kSequences * T));
    targets.assign(stream.begin() + 1, stream.begin() + 1 + static_cast<std::ptrdiff_t>(kSequences * T));
  }

  /// Returns the loss of the update in micro-batches of `sequences`, and computes the gradients.
  double update(std::size_t sequences, test::Keep keep = test::Keep::all) {
    const float scale = 1 / static_cast<float>(kSequences * T);
    double loss = 0;
    for (std::size_t k = 0; k < kSequences; k += sequences) {
      const BatchShape shape{std::min(sequences, kSequences - k), T};
      run.dropout.first_sequence = k;
      loss += run.loss_and_gradients(&tokens[k * T], &targets[k * T], shape, scale,
                                     k == 0 ? kernels::Write::overwrite : kernels::Write::add, keep);
    }
    return loss / static_cast<double>(kSequences * T);
  }

  static constexpr std::size_t kSequences = 12;
  std::filesystem::path folder;
  test::ModelRun run;
  json record;
  std::size_t T;
  std::vector<std::int32_t> tokens, targets;
};

const char* const kNames[] = {"gpt2-tied", "llama-gqa", "llama3-tied"};

}  // namespace

// The documented tolerance is 1e-5 + 1e-4 |g| per element. The real difference, including PyTorch's rounding, is a 150th of it,
// and this test requires a 50th.
BOOST_DATA_TEST_CASE(first_update_agrees_with_pytorch, boost::unit_test::data::make(kNames), name) {
  Golden golden(name);
  const double loss = golden.update(Golden::kSequences);
  const json& first = golden.record["steps"][0];
  BOOST_TEST(loss == first["loss"].get<double>(), boost::test_tools::tolerance(2e-7));
  const auto expected = read_tensors(golden.folder / "grads.safetensors");
  double squares = 0, worst = 0;
  for (std::size_t p = 0; p < golden.run.gradients.size(); ++p) {
    const std::string& parameter = golden.run.model.parameters()[p].name;
    const std::vector<float>&reference = expected.at(parameter), &gradient = golden.run.gradients[p];
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const double difference = std::abs(double{gradient[i]} - reference[i]),
                   tolerance = 2e-7 + 2e-6 * std::abs(double{reference[i]});
      worst = std::max(worst, difference / tolerance);
      wrong += !(difference <= tolerance);
      squares += double{gradient[i]} * gradient[i];
    }
    BOOST_TEST(wrong == 0u, parameter << ": " << wrong << " elements differ");
  }
  BOOST_TEST_MESSAGE(name << ": loss " << loss - first["loss"].get<double>() << ", worst gradient " << worst
                          << " of the tolerance, norm " << std::sqrt(squares) / first["gnorm"].get<double>() - 1);
  BOOST_TEST(std::sqrt(squares) == first["gnorm"].get<double>(), boost::test_tools::tolerance(1e-6));
}

// 12 sequences at once, or 5 + 5 + 2 with accumulated gradients. Dropout masks are the same.
BOOST_DATA_TEST_CASE(micro_batches_add_up, boost::unit_test::data::make(kNames) * boost::unit_test::data::make({0.0f, 0.2f}),
                     name, rate) {
  Golden whole(name), parts(name);
  whole.run.dropout = parts.run.dropout = {.residual = rate, .attention = rate, .seed = 3, .update = 7};
  const double loss = whole.update(Golden::kSequences);
  BOOST_TEST(parts.update(5) == loss, boost::test_tools::tolerance(1e-7));
  double worst = 0;
  for (std::size_t p = 0; p < whole.run.gradients.size(); ++p)
    for (std::size_t i = 0; i < whole.run.gradients[p].size(); ++i)
      worst = std::max(worst, std::abs(double{whole.run.gradients[p][i]} - parts.run.gradients[p][i]));
  BOOST_TEST_MESSAGE(name << ": largest difference " << worst);
  BOOST_TEST(worst < 1e-6);
}

BOOST_DATA_TEST_CASE(recomputed_blocks_give_the_same_bits,
                     boost::unit_test::data::make(kNames) * boost::unit_test::data::make({0.0f, 0.2f}), name, rate) {
  Golden kept(name), recomputed(name), refilled(name);
  kept.run.dropout = recomputed.run.dropout = refilled.run.dropout = {.residual = rate, .attention = rate};
  const double loss = kept.update(Golden::kSequences);
  BOOST_TEST(recomputed.update(Golden::kSequences, Keep::inputs) == loss);
  BOOST_TEST(refilled.update(Golden::kSequences, Keep::selected) == loss);
  for (std::size_t p = 0; p < kept.run.gradients.size(); ++p) {
    BOOST_TEST((kept.run.gradients[p] == recomputed.run.gradients[p]), kept.run.model.parameters()[p].name);
    BOOST_TEST((kept.run.gradients[p] == refilled.run.gradients[p]), kept.run.model.parameters()[p].name);
  }
}

BOOST_DATA_TEST_CASE(config_json_survives_in_both_spellings, boost::unit_test::data::make(kNames), name) {
  const std::filesystem::path folder = std::filesystem::path(FSDP_TEST_DATA) / "runs" / name;
  json theirs = read_json(folder / "config.json");
  const TransformerConfig config = config_from_json(theirs);
  const json ours = config_to_json(config);
  BOOST_CHECK(config_from_json(ours) == config);
  for (const auto& [key, value] : ours.items())
    if (theirs.contains(key)) BOOST_TEST(value == theirs[key], key << ": " << value << " instead of " << theirs[key]);
  if (theirs.contains("rope_parameters")) {  // as transformers 4 would have written it
    json old = theirs["rope_parameters"];
    theirs.erase("rope_parameters");
    theirs["rope_theta"] = old["rope_theta"];
    old.erase("rope_theta");
    theirs["rope_scaling"] = old["rope_type"] == "default" ? json() : old;
    BOOST_CHECK(config_from_json(theirs) == config);
  }
}
