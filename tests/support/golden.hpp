// Reads the golden runs in tests/golden/runs, with little code and without the library.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

namespace fsdp::test {

using nlohmann::json;

/// Returns the tensors of a safetensors file (8 bytes length, JSON header, data), all fp32.
inline std::map<std::string, std::vector<float>> read_tensors(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  BOOST_TEST_REQUIRE(file.good(), path);
  std::uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), sizeof(length));
  std::string header(length, ' ');
  file.read(header.data(), static_cast<std::streamsize>(length));
  std::map<std::string, std::vector<float>> tensors;
  const json entries = json::parse(header);
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    BOOST_TEST_REQUIRE(entry["dtype"] == "F32");
    const auto begin = entry["data_offsets"][0].get<std::size_t>(), end = entry["data_offsets"][1].get<std::size_t>();
    std::vector<float> values((end - begin) / sizeof(float));
    file.seekg(static_cast<std::streamoff>(8 + length + begin));
    file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(end - begin));
    tensors[name] = std::move(values);
  }
  return tensors;
}

inline json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  BOOST_TEST_REQUIRE(file.good(), path);
  return json::parse(file);
}

/// Returns the tokens of an llm.c version 1 file.
inline std::vector<std::int32_t> read_tokens(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::int32_t> header(256);
  file.read(reinterpret_cast<char*>(header.data()), 1024);
  BOOST_TEST_REQUIRE(header[0] == 20240520);
  std::vector<std::uint16_t> tokens(static_cast<std::size_t>(header[2]));
  file.read(reinterpret_cast<char*>(tokens.data()), static_cast<std::streamsize>(2 * tokens.size()));
  BOOST_TEST_REQUIRE(file.good());
  return {tokens.begin(), tokens.end()};
}

/// Returns the environment variable, which is for tests that were copied to another machine, or else `built`.
inline std::string here_or(const char* variable, const char* built) {
  const char* const moved = std::getenv(variable);
  return moved && *moved ? moved : built;
}

inline std::filesystem::path golden_folder(const std::string& name) {
  return std::filesystem::path(here_or("FSDP_TEST_DATA", FSDP_TEST_DATA)) / "runs" / name;
}

}  // namespace fsdp::test
