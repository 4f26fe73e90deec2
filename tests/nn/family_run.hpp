// Random small models of a family, trained without sharding and compared with transformers: see tests/golden/families.
#pragma once

#include <cmath>
#include <map>
#include <set>

#include "families.hpp"
#include "nn/model_run.hpp"

namespace fsdp::test {

/// The adapters of a case, from the arguments of PEFT's LoraConfig.
inline Lora lora_of(const nlohmann::json& one) {
  const nlohmann::json config = one.value("lora", nlohmann::json::object());
  Lora lora = {.rank = config.value("r", std::size_t{0}),
               .alpha = config.value("lora_alpha", 8.0),
               .rank_stabilized = config.value("use_rslora", false),
               .targets = config.value("target_modules", std::vector<std::string>())};
  for (const auto& [key, numbers] : {std::pair("rank_pattern", &lora.ranks), std::pair("alpha_pattern", &lora.alphas)})
    for (const auto& [name, number] : config.value(key, std::map<std::string, double>())) numbers->emplace_back(name, number);
  return lora;
}

/// Runs plain gradient descent of all parameters or, if the case has some, of adapters. Returns the largest relative difference
/// of loss and gradient norm from the reference. If piece_rows is not 0, blocks compute their MLP in pieces of at most this
/// many rows.
inline double compare_with_transformers(const nlohmann::json& one, double rate, std::size_t piece_rows) {
  const TransformerConfig config = with_lora(config_from_json(one["config"]), lora_of(one));
  const std::size_t B = one["B"], T = one["T"];
  const bool in_pieces = piece_rows > 0 && piece_rows < B * T;
  ModelRun run(config, T, make_host_stream(), in_pieces ? with_pieces_of(piece_rows) : kernels::traits_of_cpu());
  for (std::size_t p = 0; p < run.weights.size(); ++p) run.weights[p] = formula_values(run.model.parameters()[p]);
  for (std::size_t p = 0; p < run.weights.size() && config.lora.rank > 0; ++p)
    run.trainable.push_back(run.model.parameters()[p].is_adapter);
  const std::vector<std::int32_t> tokens = formula_tokens(config.vocab_size, one["steps"].size() * B * T + 1);
  double worst = 0;
  for (std::size_t u = 0; u < one["steps"].size(); ++u) {
    const std::int32_t* inputs = &tokens[u * B * T];
    const double loss = run.loss_and_gradients(inputs, inputs + 1, {B, T}, 1 / static_cast<float>(B * T),
                                               kernels::Write::overwrite, in_pieces ? Keep::attention : Keep::all) /
                        static_cast<double>(B * T);
    double squares = 0;
    for (std::size_t p = 0; p < run.weights.size(); ++p)
      for (std::size_t i = 0; i < run.weights[p].size() && !run.frozen(p); ++i) {
        squares += double{run.gradients[p][i]} * run.gradients[p][i];
        run.weights[p][i] -= static_cast<float>(rate) * run.gradients[p][i];
      }
    const nlohmann::json& step = one["steps"][u];
    const double of_loss = loss / step["loss"].get<double>() - 1,
                 of_norm = std::sqrt(squares) / step["gnorm"].get<double>() - 1;
    worst = std::max({worst, std::abs(of_loss), std::abs(of_norm)});
    BOOST_TEST(std::abs(of_loss) < 1e-5, one["config"].dump() << ": loss of update " << u << ": " << of_loss);
    BOOST_TEST(std::abs(of_norm) < 1e-5, one["config"].dump() << ": norm of update " << u << ": " << of_norm);
  }
  return worst;
}

/// Compares all cases of a family. Returns their number.
inline int compare_with_transformers(const std::string& family, std::size_t piece_rows = 0) {
  const nlohmann::json references = family_references();
  int cases = 0;
  double worst = 0;
  std::set<std::string> seen;  // properties that some, but not all, random shapes must have
  for (const nlohmann::json& one : references["cases"]) {
    const nlohmann::json& config = one["config"];
    if (config["model_type"] != family) continue;
    worst = std::max(worst, compare_with_transformers(one, references["rate"], piece_rows));
    ++cases;
    seen.insert(config["tie_word_embeddings"] ? "tied" : "untied");
    if (config.contains("num_key_value_heads") && config["num_key_value_heads"] < config["num_attention_heads"])
      seen.insert("grouped");
  }
  BOOST_TEST_MESSAGE(family << ": apart at most " << worst);
  BOOST_TEST(seen.size() == (find_family(family).grouped_queries ? 3u : 2u));
  return cases;
}

}  // namespace fsdp::test
