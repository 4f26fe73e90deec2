// Small models with sizes that do not divide evenly, states in which every element has a unique value, and their checkpoints.
#pragma once

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "checkpoint/checkpoint.hpp"
#include "comm/threads/threads.hpp"
#include "nn/parameters.hpp"
#include "plan/placement.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

namespace fsdp::test {

inline TransformerConfig gpt2_config() {
  TransformerConfig config = find_family("gpt2").defaults;
  config.vocab_size = 37;
  config.max_positions = 11;
  config.width = 12;
  config.layers = 3;
  config.heads = config.kv_heads = 3;
  config.head_size = 4;
  config.ffn_width = 29;
  return config;
}

inline TransformerConfig llama_config() {
  TransformerConfig config = find_family("llama").defaults;
  config.vocab_size = 41;
  config.max_positions = 16;
  config.width = 20;
  config.layers = 2;
  config.heads = 5;
  config.kv_heads = 1;
  config.head_size = 4;
  config.ffn_width = 27;
  return config;
}

inline const std::vector<std::string> state_names{"parameters", "exp_avg", "exp_avg_sq"};

/// Returns a value that is different for every element of every parameter of every state, not round, and in the range of fp16.
inline float element(std::size_t state, std::size_t parameter, std::size_t index, std::uint64_t update) {
  const double key = static_cast<double>(((update * 3 + state) * 64 + parameter) * 8192 + index);
  return static_cast<float>((key * 1.0000001 - 123456.7) / 8192);
}

inline std::vector<float> whole(std::size_t state, std::size_t parameter, const Shape& shape, std::uint64_t update) {
  std::vector<float> values(numel(shape));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = element(state, parameter, i, update);
  return values;
}

inline constexpr float padding = 777;  // must never be stored or loaded

/// One float vector per unit.
using UnitValues = std::vector<std::vector<float>>;

/// Makes buffers for a rank's shards of one state.
inline UnitValues room(const Layout& layout, float value, bool optimizer_state = false) {
  UnitValues values;
  for (std::size_t unit = 0; unit < layout.units().size(); ++unit)
    values.emplace_back(optimizer_state && !layout.units()[unit].trainable ? 0 : layout.shard_numel(unit), value);
  return values;
}

inline std::vector<std::span<float>> spans(UnitValues& values) { return {values.begin(), values.end()}; }

/// Returns a rank's shards of one state.
inline UnitValues shard_values(const Layout& layout, int shard, std::size_t state, std::uint64_t update, float pad) {
  UnitValues values = room(layout, pad, state > 0);
  for (std::size_t unit = 0; unit < layout.units().size(); ++unit)
    for (const Slice& slice : layout.slices(unit, shard))
      if (!values[unit].empty())
        for (std::size_t i = 0; i < slice.range.size(); ++i)
          values[unit][slice.shard_offset + i] = element(state, slice.parameter, slice.range.begin + i, update);
  return values;
}

struct Run {
  TransformerConfig config = gpt2_config();
  std::string strategy = "full";
  int world_size = 2;
  std::size_t blocks_per_unit = 1;
  std::uint64_t update = 100;
  ParameterPatterns patterns = {};
  std::filesystem::path model_folder = {};
  h5::Compression compression = h5::Compression::none;
  UserData user_data = {};
  int files = 0;  // 0: one for each rank

  MeshShape mesh() const { return mesh_shape(find_placement(strategy), world_size, 2); }
  std::vector<UnitSpec> units() const {
    return wrap_parameters(list_parameters(config).parameters, {.blocks_per_unit = blocks_per_unit}, patterns);
  }
  Layout layout() const { return Layout(list_parameters(config).parameters, units(), mesh().shard); }
  CheckpointHeader header() const {
    CheckpointHeader header;
    header.model = config;
    header.progress = {update, update * 12 * 11, {update * 12, 11, 1000, true, 42}};
    header.strategy = strategy;
    header.world_size = world_size;
    header.shards = mesh().shard;
    header.units = units();
    header.optimizer = "adamw";
    header.options_json = R"({"lr": 0.001})";
    header.model_folder = model_folder.string();
    header.user_data = std::make_shared<const UserData>(user_data);
    header.version = "test";
    return header;
  }
};

/// Saves one rank's part.
inline std::filesystem::path save(const std::filesystem::path& save_dir, const Run& run, Communicator& world) {
  const Layout layout = run.layout();
  const int shard = world.rank() % layout.shards();
  std::vector<UnitValues> values;
  std::vector<ShardState> states;
  for (std::size_t s = 0; s < state_names.size(); ++s) values.push_back(shard_values(layout, shard, s, run.update, padding));
  for (std::size_t s = 0; s < state_names.size(); ++s) states.push_back({state_names[s], spans(values[s])});
  return save_checkpoint(save_dir, run.header(), layout, states, world, run.compression, run.files);
}

/// Saves with all ranks, as threads.
inline std::filesystem::path save(const std::filesystem::path& save_dir, const Run& run) {
  std::filesystem::path folder;
  run_ranks(run.world_size, [&](Communicator& world) {
    const auto saved = save(save_dir, run, world);
    if (world.rank() == 0) folder = saved;
  });
  return folder;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Returns the sorted names of a folder's entries.
inline std::vector<std::string> list(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// Inverts one bit of the byte at `at`.
inline void flip(const std::filesystem::path& path, std::size_t at) {
  std::string bytes = read_file(path);
  BOOST_REQUIRE(at < bytes.size());
  bytes[at] = static_cast<char>(bytes[at] ^ 4);
  write_file(path, bytes);
}

}  // namespace fsdp::test
