#include "checkpoint/stored.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iterator>
#include <limits>
#include <sstream>
#include <type_traits>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "nn/parameters.hpp"
#include "text/tokenizer_files.hpp"

namespace fsdp::stored {

using nlohmann::json;

std::string step_name(std::uint64_t update) { return format("step-{:08}", update); }

std::optional<std::uint64_t> update_of_step_name(const std::string& name) {
  constexpr std::string_view prefix = "step-";
  if (!name.starts_with(prefix) || name.size() < prefix.size() + 8) return std::nullopt;
  std::uint64_t update = 0;
  const char* const end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + prefix.size(), end, update);
  if (parsed.ec != std::errc() || parsed.ptr != end || step_name(update) != name) return std::nullopt;
  return update;
}

std::string rank_file_name(int rank, int world_size) { return format("rank-{:05}-of-{:05}.h5", rank, world_size); }
std::string note_name(int rank, int world_size) { return format("rank-{:05}-of-{:05}.written", rank, world_size); }
bool is_step_file(const std::string& name) {
  const auto is_rank_file = [&] {
    int rank = 0, ranks = 0, end = 0;
    if (std::sscanf(name.c_str(), "rank-%5d-of-%5d%n", &rank, &ranks, &end) != 2) return false;
    const std::string_view kind = std::string_view(name).substr(static_cast<std::size_t>(end));
    return kind == ".h5" || kind == ".written" || kind == ".written.tmp";
  };
  return name == index_name || name == marker_name || name == std::string(marker_name) + temporary_suffix ||
         name == std::string(marker_name) + ".tmp" ||  // of older versions
         is_tokenizer_file(name) || is_rank_file();
}
std::string slice_name(const std::string& state, const std::string& parameter) { return state + "/" + parameter; }
std::string whole_name(const std::string& state, const std::string& parameter) {
  return state == parameters_state ? parameter : state + "/" + parameter;
}

std::vector<WrittenSlice> written_slices(const Layout& layout, int rank, int world_size, Extent extent) {
  std::vector<WrittenSlice> written;
  if (extent != Extent::element) {
    for (std::size_t unit = 0; unit < layout.units().size() && rank == 0; ++unit) {
      if (!layout.units()[unit].saved) continue;
      std::size_t offset = 0;
      for (const std::size_t p : layout.units()[unit].parameters) {
        if (layout.shape(p).size() < 2) continue;
        const std::size_t count = numel(state_shape(layout.shape(p), extent));
        written.push_back({unit, p, {0, count}, std::exchange(offset, offset + count)});
      }
    }
    return written;
  }
  for (std::size_t unit = 0; unit < layout.units().size(); ++unit) {
    if (!layout.units()[unit].saved) continue;
    const int shards = layout.units()[unit].shards;  // 1 for a unit that is not sharded: all ranks are replicas
    const int shard = rank % shards, replica = rank / shards, replicas = world_size / shards;
    const Range mine = share(layout.shard_numel(unit), static_cast<std::size_t>(replicas), static_cast<std::size_t>(replica));
    for (const Slice& slice : layout.slices(unit, shard)) {
      const Range part = intersect(mine, {slice.shard_offset, slice.shard_offset + slice.range.size()});
      if (part.empty()) continue;
      const std::size_t begin = slice.range.begin + (part.begin - slice.shard_offset);
      written.push_back({unit, slice.parameter, {begin, begin + part.size()}, part.begin});
    }
  }
  return written;
}

std::optional<Extent> extent_of(const UnitSpec& unit, const std::string& state) {
  if (!unit.saved) return std::nullopt;
  if (state == parameters_state) return Extent::element;
  if (state == average_state) return unit.is_averaged() ? std::optional(Extent::element) : std::nullopt;
  if (unit.trainable)
    for (const StateInfo& info : unit.rule->states)
      if (info.name == state) return info.extent;
  return std::nullopt;
}

Shape state_shape(const Shape& parameter, Extent extent) {
  Shape shape = parameter;
  if (extent == Extent::row) shape.back() = 1;
  if (extent == Extent::column) std::fill(shape.begin(), shape.end() - 1, 1);
  return shape;
}

void write_slice_attributes(h5::Node& dataset, const Shape& shape, Range range) {
  dataset.write_integers("shape", std::vector<std::uint64_t>(shape.begin(), shape.end()));
  dataset.write_integer("begin", range.begin);
  dataset.write_integer("end", range.end);
}

namespace {

json units_to_json(const std::vector<UnitSpec>& units) {
  json all = json::array();
  for (const UnitSpec& unit : units)
    all.push_back({{"name", unit.name},
                   {"parameters", unit.parameters},
                   {"trainable", unit.trainable},
                   {"sharded", unit.sharded},
                   {"rule", unit.rule->name}});
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (!units[u].saved) all[u]["saved"] = false;
    if (units[u].quantized) all[u]["quantized"] = true;
  }
  return all;
}

/// Returns an empty list if the JSON is not valid for a model with this number of parameters.
std::vector<UnitSpec> units_from_json(const json& all, std::size_t parameters) {
  std::vector<UnitSpec> units;
  std::vector<int> seen(parameters);
  try {  // nlohmann checks every access
    for (const json& one : all) {
      const Rule* rule = find_rule(one.at("rule").get_ref<const std::string&>());
      if (!rule) return {};
      units.push_back({one.at("name"), one.at("parameters"), one.at("trainable"), one.at("sharded"), rule,
                       one.value("saved", true), one.value("quantized", false)});
      for (const std::size_t p : units.back().parameters) ++seen.at(p);
    }
  } catch (const std::exception&) {
    return {};
  }
  for (const int count : seen)
    if (count != 1) return {};
  return units;
}

}  // namespace

namespace {

/// Calls each(key, number) for the numbers of a state that is stored as a JSON object in an attribute.
template <class Each>
void each_number(auto& state, const Each& each) {
  using State = std::remove_cvref_t<decltype(state)>;
  if constexpr (std::is_same_v<State, LossScalerState>) {
    each("scale", state.scale);
    each("updates", state.updates);
    each("last_overflow", state.last_overflow);
    each("last_change", state.last_change);
    each("overflows", state.overflows);
    each("in_a_row", state.in_a_row);
  } else if constexpr (std::is_same_v<State, SpikeFilterState>) {
    each("updates", state.updates);
    each("loss_mean", state.loss.mean);
    each("loss_variance", state.loss.variance);
    each("norm_mean", state.norm.mean);
    each("norm_variance", state.norm.variance);
  } else {
    static_assert(std::is_same_v<State, Validations>);
    each("update", state.update);
    each("loss", state.loss);
    each("best_update", state.best_update);
    each("best_loss", state.best_loss);
    each("since_best", state.since_best);
  }
}

template <class State>
void write_numbers(h5::Node& node, const char* attribute, const std::optional<State>& state) {
  if (!state) return;
  json numbers;
  each_number(*state, [&](const char* key, auto number) { numbers[key] = number; });
  node.write_text(attribute, json_text(numbers));
}

/// `what` names the state in messages.
template <class State>
void read_numbers(const h5::Node& node, const char* attribute, const char* what, std::optional<State>& state) {
  if (!node.has_attribute(attribute)) return;
  const json numbers = parse_json(node.read_text(attribute));
  each_number(state.emplace(), [&](const char* key, auto& number) {
    const json found = numbers.is_object() ? numbers.value(key, json()) : json();
    using Number = std::remove_reference_t<decltype(number)>;
    if (std::is_unsigned_v<Number>   ? !found.is_number_unsigned()
        : std::is_integral_v<Number> ? !found.is_number_integer()
                                     : !found.is_number())
      throw UserError(format("the checkpoint's {} cannot be read ('{}' is missing); use another checkpoint", what, key));
    found.get_to(number);
  });
}

/// Reads an object with a value of one type for each of some parameters.
template <class Value>
void read_by_parameter(const h5::Node& node, const char* attribute, std::map<std::string, Value>& values) {
  if (!node.has_attribute(attribute)) return;
  const json all = parse_json(node.read_text(attribute));
  for (const auto& [name, value] : all.items()) {
    if (!all.is_object() || value.type() != json(Value()).type())
      throw UserError(format("the checkpoint's attribute {} cannot be read; use another checkpoint", attribute));
    values[name] = value.template get<Value>();
  }
}

/// The attributes with checksums of the data; those that are 0 are not written.
constexpr std::pair<const char*, std::uint64_t DataPosition::*> data_sums[] = {
    {"data_text_sum", &DataPosition::text_sum},
    {"data_sample_sum", &DataPosition::sample_sum},
    {"data_documents_sum", &DataPosition::documents_sum},
    {"data_mask_sum", &DataPosition::mask_sum},
    {"data_token_sum", &DataPosition::token_sum}};

}  // namespace

void write_progress(h5::Node& node, const Progress& progress) {
  node.write_integer("update", progress.update);
  node.write_integer("tokens", progress.tokens);
  node.write_integer("optimizer_began", progress.optimizer_began);
  write_numbers(node, "loss_scaler", progress.loss_scaler);
  write_numbers(node, "spikes", progress.spikes);
  if (!progress.states_began.empty()) node.write_text("states_began", json_text(json(progress.states_began)));
  if (!progress.frozen.empty()) node.write_text("frozen", json_text(json(progress.frozen)));
  if (progress.schedule_end != 0) node.write_integer("schedule_end", progress.schedule_end);
  node.write_integer("sequences", progress.data.sequences);
  node.write_integer("tokens_per_sample", progress.data.tokens_per_sample);
  node.write_integer("data_tokens", progress.data.data_tokens);
  node.write_integer("shuffled", progress.data.shuffled);
  node.write_integer("seed", progress.data.seed);
  if (!progress.data.order.empty()) node.write_text("data_order", progress.data.order);
  for (const auto& [name, sum] : data_sums)
    if (progress.data.*sum != 0) node.write_integer(name, progress.data.*sum);
  if (progress.valid_sum != 0) node.write_integer("valid_data_sum", progress.valid_sum);
  write_numbers(node, "validations", progress.validations);
}

Progress read_progress(const h5::Node& node) {
  const auto optional = [&](const char* name) { return node.has_attribute(name) ? node.read_integer(name) : 0; };
  Progress progress = {
      .update = node.read_integer("update"),
      .tokens = node.read_integer("tokens"),
      .data = {node.read_integer("sequences"), node.read_integer("tokens_per_sample"), node.read_integer("data_tokens"),
               node.read_integer("shuffled") != 0, node.read_integer("seed")},
      .optimizer_began = node.read_integer("optimizer_began"),
      .valid_sum = optional("valid_data_sum"),
      .schedule_end = optional("schedule_end")};
  if (node.has_attribute("data_order")) progress.data.order = node.read_text("data_order");
  for (const auto& [name, sum] : data_sums) progress.data.*sum = optional(name);
  read_numbers(node, "loss_scaler", "loss scale", progress.loss_scaler);
  read_numbers(node, "spikes", "statistics of loss and norm", progress.spikes);
  read_numbers(node, "validations", "losses of validations", progress.validations);
  read_by_parameter(node, "states_began", progress.states_began);
  read_by_parameter(node, "frozen", progress.frozen);
  return progress;
}

namespace {

constexpr std::size_t bytes_at_once = std::size_t{1} << 20;

std::string user_data_name(const std::string& name) { return slice_name(user_data_group, name); }

}  // namespace

void write_user_data(h5::File& file, const UserData& data) {
  std::vector<std::uint32_t> piece;
  for (const auto& [name, bytes] : data) {
    h5::Integers dataset = file.create_integers(user_data_name(name), 1, h5::Compression::none);
    for (std::size_t at = 0; at < bytes.size(); at += bytes_at_once) {
      const std::string_view part = std::string_view(bytes).substr(at, bytes_at_once);
      piece.assign(part.size(), 0);
      std::transform(part.begin(), part.end(), piece.begin(), [](char byte) { return static_cast<unsigned char>(byte); });
      dataset.append(piece);
    }
  }
}

std::map<std::string, std::size_t> user_data_sizes(const h5::File& file) {
  std::map<std::string, std::size_t> sizes;
  if (!file.has(user_data_group)) return sizes;
  for (const std::string& name : file.dataset_names(user_data_group))
    sizes[name] = numel(file.integers(user_data_name(name)).shape());
  return sizes;
}

std::string read_user_data(const h5::File& file, const std::string& name) {
  const h5::Integers dataset = file.integers(user_data_name(name));
  const std::size_t size = numel(dataset.shape());
  if (size > most_user_bytes)
    throw UserError(format("{} has {} bytes (data of a program have at most {}); use another checkpoint", user_data_name(name),
                           size, most_user_bytes));
  dataset.require_whole();
  std::string bytes(size, '\0');
  std::vector<std::int64_t> piece(std::min(bytes.size(), bytes_at_once));
  for (std::size_t at = 0; at < bytes.size(); at += bytes_at_once) {
    const Range range{at, std::min(bytes.size(), at + bytes_at_once)};
    dataset.read(range, piece.data());
    std::transform(piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(range.size()),
                   bytes.begin() + static_cast<std::ptrdiff_t>(at), [](std::int64_t byte) { return static_cast<char>(byte); });
  }
  return bytes;
}

void write_states(h5::Node& node, const std::vector<std::string>& states) {
  node.write_text("states", format("{}", fmt::join(states, " ")));
}

std::vector<std::string> read_states(const h5::Node& node) {
  std::istringstream states(node.read_text("states"));
  return {std::istream_iterator<std::string>(states), {}};
}

void check_version(std::uint64_t found, const std::string& name) {
  if (found != version)
    throw UserError(
        format("{} has format version {} (this program reads version {}); use the fsdp that wrote it, or a newer one; the file "
               "is unchanged",
               name, found, version));
}

void check_kind(const h5::Node& node, const std::string& name, const std::string& kind) {
  const std::string found = node.has_attribute("format") ? node.read_text("format") : "";
  if (found != kind)
    throw UserError(format("{} has the wrong format (it is \"{}\", not \"{}\"); check the path", name, found, kind));
  check_version(node.read_integer("format_version"), name);
}

void write_index_attributes(h5::Node& node, const Index& index) {
  const CheckpointHeader& header = index.header;
  node.write_text("format", index_kind);
  node.write_integer("format_version", version);
  node.write_integer("save_id", index.save_id);
  node.write_text("version", header.version);
  write_progress(node, header.progress);
  node.write_text("strategy", header.strategy);
  node.write_integer("world_size", static_cast<std::uint64_t>(header.world_size));
  node.write_integer("shards", static_cast<std::uint64_t>(header.shards));
  if (header.ranks != header.world_size) node.write_integer("ranks", static_cast<std::uint64_t>(header.ranks));
  node.write_text("units", json_text(units_to_json(header.units)));
  node.write_integer("flat_alignment", flat_alignment);
  node.write_text("optimizer", header.optimizer);
  write_states(node, index.states);
  node.write_text("config", json_text(header.model.to_json(), 2));
  node.write_text("options", header.options_json);
  if (!header.arithmetic.empty()) node.write_text("arithmetic", header.arithmetic);
  if (!header.attention.empty()) node.write_text("attention", header.attention);
  if (!header.gemm_algorithms.empty()) node.write_text("gemm_algorithms", header.gemm_algorithms);
  if (!header.model_folder.empty()) node.write_text("model_folder", header.model_folder);
  if (!header.first_start.empty()) node.write_text("first_start", header.first_start);
  if (header.base) {
    node.write_text("base_model", header.base->path);
    node.write_integer("base_xxh3", header.base->sum);
  }
}

Index read_index_attributes(const h5::Node& node, const std::string& name) {
  check_kind(node, name, index_kind);
  Index index;
  index.save_id = node.read_integer("save_id");
  CheckpointHeader& header = index.header;
  header.version = node.read_text("version");
  header.progress = read_progress(node);
  header.strategy = node.read_text("strategy");
  const std::uint64_t world_size = node.read_integer("world_size"), shards = node.read_integer("shards");
  if (world_size < 1 || world_size > 99999999 || shards < 1 || world_size % shards != 0 ||
      node.read_integer("flat_alignment") != flat_alignment)
    throw UserError(
        format("{} describes an impossible layout ({} ranks, {} shards); use another checkpoint", name, world_size, shards));
  header.world_size = static_cast<int>(world_size);
  header.shards = static_cast<int>(shards);
  const std::uint64_t ranks = node.has_attribute("ranks") ? node.read_integer("ranks") : world_size;
  header.ranks = static_cast<int>(std::min<std::uint64_t>(ranks, std::numeric_limits<int>::max()));
  header.optimizer = node.read_text("optimizer");
  header.options_json = node.read_text("options");
  if (node.has_attribute("arithmetic")) header.arithmetic = node.read_text("arithmetic");
  if (node.has_attribute("attention")) header.attention = node.read_text("attention");
  if (node.has_attribute("gemm_algorithms")) header.gemm_algorithms = node.read_text("gemm_algorithms");
  if (node.has_attribute("model_folder")) header.model_folder = node.read_text("model_folder");
  if (node.has_attribute("first_start")) header.first_start = node.read_text("first_start");
  if (node.has_attribute("base_model")) header.base = {node.read_text("base_model"), node.read_integer("base_xxh3")};
  const json config = parse_json(node.read_text("config"));
  if (config.is_discarded())
    throw UserError(format("the model configuration in {} is damaged (it is not JSON); use another checkpoint", name));
  header.model = StoredModel::read(config, name);
  header.units = units_from_json(parse_json(node.read_text("units")), header.model.parameters().size());
  if (header.units.empty())
    throw UserError(format(
        "{} is damaged (the units that it describes do not contain every parameter exactly once); use another checkpoint",
        name));
  const bool lacks_base =
      std::any_of(header.units.begin(), header.units.end(), [](const UnitSpec& unit) { return !unit.saved; });
  const bool has_adapters = header.model.is_transformer() && header.model.transformer(name).lora.rank > 0;
  if (header.base.has_value() != has_adapters || (lacks_base && !has_adapters))
    throw UserError(
        format("{} is damaged (its adapters and its base model contradict each other); use another checkpoint", name));
  index.states = read_states(node);
  return index;
}

std::string marker_text(const Marker& marker) {
  nlohmann::ordered_json text;
  text["format"] = index_kind;
  text["format_version"] = version;
  text["update"] = marker.update;
  text["save_id"] = checksum_text(marker.save_id);
  text["files"] = nlohmann::ordered_json::array();
  for (const Marker::File& file : marker.files)
    text["files"].push_back({{"name", file.name}, {"bytes", file.sum.bytes}, {"xxh3_64", checksum_text(file.sum.checksum)}});
  text["norms"] = marker.norms;
  return seal_json(text);
}

namespace {

/// Reads the marker without further checks. Throws std::exception for any error in it.
Marker parse_marker(const json& text) {
  const auto hexadecimal = [](const json& value) { return std::stoull(value.get<std::string>(), nullptr, 16); };
  Marker marker;
  marker.update = text.at("update");
  marker.save_id = hexadecimal(text.at("save_id"));
  for (const json& file : text.at("files"))
    marker.files.push_back({file.at("name"), {file.at("bytes"), hexadecimal(file.at("xxh3_64"))}});
  for (const auto& [name, norm] : text.at("norms").items())  // null stands for NaN, which JSON does not have
    marker.norms[name] = norm.is_null() ? std::numeric_limits<double>::quiet_NaN() : norm.get<double>();
  return marker;
}

}  // namespace

Marker read_complete(const std::filesystem::path& folder) {
  const auto text_of = [&](const std::string& why) {
    return format("{} is not a complete checkpoint ({}); use another step", folder.string(), why);
  };
  const auto fail = [&](const std::string& why) { throw DamagedError(text_of(why)); };  // the checkpoint was complete once
  const std::filesystem::path path = folder / marker_name;
  if (const PathKind kind = kind_of(folder); kind != PathKind::folder)
    throw RunError(text_of(kind == PathKind::missing ? "there is no such folder" : "it is not a folder"));
  if (kind_of(path) == PathKind::missing) throw RunError(text_of(format("it has no {}, which is written last", marker_name)));
  const std::string text = read_text_file(path);
  const json parsed = parse_json(text);
  if (!parsed.is_object() || !parsed.contains("format_version") || !parsed["format_version"].is_number_unsigned())
    fail(format("its {} is damaged", marker_name));
  check_version(parsed["format_version"], path.string());  // before the checksum, which another version may compute differently
  const Seal seal = check_seal(text);
  if (seal == Seal::broken) fail(format("its {} is damaged: its checksum does not match", marker_name));
  if (seal == Seal::none) fail(format("its {} is damaged: it has no checksum", marker_name));
  Marker marker;
  try {
    marker = parse_marker(parsed);
  } catch (const std::exception&) {  // thrown by nlohmann's accesses and by stoull
    fail(format("its {} is damaged", marker_name));
  }
  const bool has_index = !marker.files.empty() && marker.files.back().name == index_name;
  if (!has_index) fail(format("its {} does not name {}", marker_name, index_name));
  const int ranks = static_cast<int>(marker.files.size()) - 1;
  for (int i = 0; i <= ranks; ++i) {
    const Marker::File& file = marker.files[static_cast<std::size_t>(i)];
    if (i < ranks && file.name != rank_file_name(i, ranks))
      fail(format("its {} names the unexpected file {}", marker_name, excerpt(file.name)));
    const auto bytes = size_of_file(folder / file.name);
    if (!bytes) fail(format("{} is missing", file.name));
    if (*bytes != file.sum.bytes) fail(format("{} has {} bytes, but {} were written", file.name, *bytes, file.sum.bytes));
  }
  if (const auto named = update_of_step_name(folder.filename().string()); named && *named != marker.update)
    throw UserError(
        format("{} holds the step of update {} (the folder was renamed, or has replaced another one); name it {} again",
               folder.string(), marker.update, step_name(marker.update)));
  return marker;
}

}  // namespace fsdp::stored
