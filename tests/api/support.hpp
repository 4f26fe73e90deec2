// What several tests of the API need.
#pragma once

#include "mpi_main.hpp"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <fsdp/fsdp.hpp>

namespace fsdp::test {

/// A new folder in the folder `test`, which all ranks use.
inline std::filesystem::path new_folder(const std::filesystem::path& test, const std::string& name) {
  const std::filesystem::path folder = test / (name + std::to_string(world().size()));
  if (world().rank() == 0) std::filesystem::remove_all(folder), std::filesystem::create_directories(folder);
  world().barrier();
  return folder;
}

using Parameters = std::map<std::string, std::vector<float>>;
/// All parameters, on rank 0.
inline Parameters parameters_of(FullyShardedDataParallel& model) {
  Parameters all;
  model.for_each_parameter([&](const std::string& name, const Shape&, std::span<const float> values) {
    all[name] = {values.begin(), values.end()};
  });
  return all;
}

/// Numbers that fp32 has exactly, as in golden/layers/exact.py.
inline std::vector<float> exact(std::size_t n, std::size_t seed) {
  std::vector<float> all;
  for (std::size_t i = 0; i < n; ++i) all.push_back((static_cast<float>((i * 7919 + seed * 104729) % 1009) - 504) / 512);
  return all;
}
/// The options of a run that is compared with golden/layers: SGD with momentum, and `rows` rows of each micro-batch on all
/// ranks together.
inline FsdpOptions golden_options(const Job& job, std::size_t rows, std::size_t micro_batches, const std::string& strategy) {
  return {.batch_size = rows / static_cast<std::size_t>(job.size()),
          .gradient_accumulation_steps = micro_batches,
          .sharding_strategy = strategy,
          .shard_group_size = strategy.find("HYBRID") == std::string::npos ? 0
                              : job.size() % 2 == 0                        ? 2
                                                                           : 1,
          .optimizer = "sgd",
          .momentum = 0.9};
}

/// Requires that call() throws an Error whose message contains `text`.
template <class Error = UserError, class Call>
void refused(const std::string& text, const Call& call) {
  BOOST_CHECK_EXCEPTION(call(), Error, [&](const Error& error) {
    const bool is_said = std::string(error.what()).find(text) != std::string::npos;
    BOOST_TEST(is_said, "'" << text << "' is missing in: " << error.what());
    return is_said;
  });
}

}  // namespace fsdp::test
