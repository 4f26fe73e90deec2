// The models of tests/golden/families. Formulas define their weights and tokens: see README.md there.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "nn/parameters.hpp"

namespace fsdp::test {

inline std::uint32_t mixed(std::uint32_t h) {
  h = (h ^ h >> 16) * 0x85EBCA6Bu;
  h = (h ^ h >> 13) * 0xC2B2AE35u;
  return h ^ h >> 16;
}

inline std::vector<float> formula_values(const Parameter& parameter) {
  std::uint32_t seed = 2166136261u;
  for (const char c : parameter.name) seed = (seed ^ static_cast<unsigned char>(c)) * 16777619u;
  const float mean = parameter.init.kind == Init::Kind::constant ? parameter.init.value : 0;  // 1 for gains
  std::vector<float> values(numel(parameter.shape));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto number = static_cast<std::int32_t>(mixed(static_cast<std::uint32_t>(i) * 2654435761u + seed) >> 8) - (1 << 23);
    values[i] = static_cast<float>(number) / static_cast<float>(1 << 25) + mean;
  }
  return values;
}

inline std::vector<std::int32_t> formula_tokens(std::size_t vocabulary, std::size_t count) {
  std::vector<std::int32_t> tokens;
  for (std::uint32_t i = 0; i < count; ++i) tokens.push_back(static_cast<std::int32_t>(mixed(i + 1) % vocabulary));
  return tokens;
}

/// {"rate", "cases": [{"config", "B", "T", "steps"}]}
inline nlohmann::json family_references() {
  std::ifstream file(std::filesystem::path(FSDP_TEST_DATA) / "families" / "references.json");
  BOOST_TEST_REQUIRE(file.good());
  return nlohmann::json::parse(file);
}

/// Returns the first case of a family that two ranks can train.
inline nlohmann::json family_case(const std::string& model_type) {
  const nlohmann::json references = family_references();
  for (const nlohmann::json& one : references["cases"])
    if (one["config"]["model_type"] == model_type && one["B"].get<int>() % 2 == 0) return one;
  BOOST_FAIL("no case of " << model_type);
  return {};
}

/// Writes these tokens to a file in llm.c's version 1 format.
inline void write_formula_tokens(const std::filesystem::path& path, std::size_t vocabulary, std::size_t count) {
  std::vector<std::int32_t> header(256);
  header[0] = 20240520, header[1] = 1, header[2] = static_cast<std::int32_t>(count);
  const std::vector<std::int32_t> tokens = formula_tokens(vocabulary, count);
  const std::vector<std::uint16_t> narrow(tokens.begin(), tokens.end());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(header.data()), 1024);
  file.write(reinterpret_cast<const char*>(narrow.data()), static_cast<std::streamsize>(2 * count));
  BOOST_TEST_REQUIRE(file.good());
}

/// Writes a Hugging Face folder with this config.json, and the weights of the formula in model.safetensors.
inline void write_formula_model(const std::filesystem::path& folder, const nlohmann::json& config) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config.dump(1);
  nlohmann::json header;
  std::vector<float> data;
  for (const Parameter& parameter : list_parameters(config_from_json(config)).parameters) {
    const std::vector<float> values = formula_values(parameter);
    header[parameter.name] = {{"dtype", "F32"},
                              {"shape", parameter.shape},
                              {"data_offsets", {data.size() * sizeof(float), (data.size() + values.size()) * sizeof(float)}}};
    data.insert(data.end(), values.begin(), values.end());
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::ofstream file(folder / "model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << text;
  file.write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(data.size() * sizeof(float)));
  BOOST_TEST_REQUIRE(file.good());
}

}  // namespace fsdp::test
