#include "fsdp-report/plan_file.hpp"

#include <algorithm>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/json.hpp"

namespace fsdp {

namespace {

constexpr std::size_t longest_plan = std::size_t{512} << 20;
constexpr std::uint64_t largest = std::uint64_t{1} << 63;
constexpr std::array<const char*, 3> states = {"parameters", "gradients", "optimizer_state"};

/// A value of the file and where it is, such as "plan.units.3".
struct Value {
  const nlohmann::json& json;
  const std::filesystem::path& file;
  std::string where;

  [[noreturn]] void fail(std::string_view why) const {
    throw UserError(
        format("'{}' holds no plan that can be drawn ({} {}); make it with `explained-plan`", file.string(), where, why));
  }
  void need(bool ok, std::string_view why) const {
    if (!ok) fail(why);
  }
  Value operator[](const char* key) const {
    need(json.is_object(), "is no object");
    const auto found = json.find(key);
    if (found == json.end()) Value{json, file, where.empty() ? key : where + "." + key}.fail("is missing");
    return {*found, file, where.empty() ? key : where + "." + key};
  }
  /// Calls each(item) for every item of a list.
  template <class Each>
  void items(const Each& each) const {
    need(json.is_array(), "is no list");
    for (std::size_t i = 0; i < json.size(); ++i) each(Value{json[i], file, format("{}.{}", where, i)});
  }
  std::string text() const {
    need(json.is_string(), "is no text");
    return json.get<std::string>();
  }
  bool flag() const {
    need(json.is_boolean(), "is neither true nor false");
    return json.get<bool>();
  }
  std::uint64_t count(std::uint64_t least = 0, std::uint64_t most = largest) const {
    need(json.is_number_unsigned() && json.get<std::uint64_t>() >= least && json.get<std::uint64_t>() <= most,
         format("is no whole number from {} to {}", least, most));
    return json.get<std::uint64_t>();
  }
  UpdatePart part() const {
    const std::optional<UpdatePart> named = part_named(text());
    need(named.has_value(), "is no part of an update");
    return *named;
  }
  /// A list of numbers below `bound`.
  std::vector<std::size_t> indices(std::size_t bound) const {
    std::vector<std::size_t> all;
    items([&](const Value& item) {
      all.push_back(item.count());
      item.need(all.back() < bound, "is an index beyond the end of its list");
    });
    return all;
  }
};

PlanFile::Strategy strategy_of(const Value& row) {
  PlanFile::Strategy strategy{
      .name = row["strategy"].text(), .shard = row["shard"].count(1), .replicate = row["replicate"].count(1)};
  const Value memory = row["keeping"]["memory"], traffic = row["keeping"]["traffic"];
  for (std::size_t s = 0; s < states.size(); ++s) {
    strategy.sharded[s] = row["sharded"][states[s]].flag();
    strategy.bytes[s] = memory[states[s]].count();
  }
  for (const std::size_t s : {0, 1}) strategy.kept_whole[s] = row["kept_whole"][states[s]].flag();
  strategy.slot_bytes = memory["gathered_parameters"].count(0, largest - 1) + memory["unreduced_gradients"].count();
  strategy.within_node = traffic["within_node"].count();
  strategy.between_nodes = traffic["between_nodes"].count();
  strategy.out_of_node = traffic["out_of_node"].count();
  return strategy;
}

PlanFile::Unit unit_of(const Value& row) {
  PlanFile::Unit unit{.name = row["name"].text(),
                      .shards = row["shards"].count(1),
                      .elements = row["elements"].count(1),
                      .padded = row["padded"].count(1),
                      .of_a_rank = row["of_a_rank"].count(1),
                      .parameter_bytes = row["parameter_bytes"].count(),
                      .fp32_copy_bytes = row["fp32_copy_bytes"].count(),
                      .gradient_bytes = row["gradient_bytes"].count(),
                      .optimizer_state_bytes = row["optimizer_state_bytes"].count(),
                      .tensors = {},
                      .parts = {}};
  row.need(unit.elements <= unit.padded && unit.of_a_rank == unit.padded / unit.shards && unit.padded % unit.shards == 0,
           "has shards that do not add up to it");
  std::uint64_t end = 0;
  row["tensors"].items([&](const Value& item) {
    PlanFile::Tensor tensor{item["name"].text(), {}, item["offset"].count(), item["elements"].count(1)};
    item["shape"].items([&](const Value& extent) { tensor.shape.push_back(extent.count()); });
    item.need(tensor.offset >= end && tensor.elements <= unit.padded && tensor.offset <= unit.padded - tensor.elements,
              "is not within its unit, after the tensor before it");
    end = tensor.offset + tensor.elements;
    unit.tensors.push_back(std::move(tensor));
  });
  row["shard_slices"].items([&](const Value& shard) {
    unit.parts.emplace_back();
    shard.items([&](const Value& slice) {
      unit.parts.back().push_back({slice["tensor"].text(), slice["begin"].count(), slice["end"].count()});
    });
  });
  row["shard_slices"].need(unit.parts.size() == unit.shards, "has not one list for each shard");
  return unit;
}

PlanFile::Operation operation_of(const Value& row, const PlanFile& plan) {
  PlanFile::Operation op{.title = row["title"].text(),
                         .kind = row["kind"].text(),
                         .label = row["label"].text(),
                         .stream = row["stream"].text(),
                         .part = row["part"].part(),
                         .reads = row["reads"].indices(plan.buffers.size()),
                         .writes = row["writes"].indices(plan.buffers.size()),
                         .waits = row["waits"].indices(plan.operations.size()),
                         .activations = row["activations"].count()};
  if (const Value unit = row["unit"]; unit.json != -1) op.unit = static_cast<int>(unit.count(0, plan.units.size() - 1));
  const Value time = row["drawn_time"];
  time.need(time.json.is_number() && time.json.get<double>() >= 0 && time.json.get<double>() < 1e9, "is no length");
  op.drawn_time = time.json.get<double>();
  if (row.json.contains("moved_bytes")) op.moved_bytes = row["moved_bytes"].count();
  return op;
}

}  // namespace

const PlanFile::Strategy& PlanFile::chosen() const {
  const auto found =
      std::find_if(strategies.begin(), strategies.end(), [&](const Strategy& row) { return row.name == strategy; });
  expect(found != strategies.end(), "read_plan_file() has checked it");
  return *found;
}

PlanFile read_plan_file(const std::filesystem::path& path) {
  const nlohmann::json json = read_json_file(path, longest_plan);
  if (json.is_discarded())
    throw UserError(format("'{}' is no JSON (it is cut off, or another file); make it with `explained-plan`", path.string()));
  const Value whole{json, path, ""};
  if (!json.is_object() || !json.contains("plan") || !json["plan"].is_object())
    throw UserError(
        format("'{}' has no plan (a figure needs each operation of an update); make it with `explained-plan`", path.string()));
  PlanFile plan;
  plan.path = path;
  plan.nodes = whole["nodes"].count(1, 1 << 30);
  plan.ranks_per_node = whole["ranks_per_node"].count(1, 1 << 30);
  whole["strategies"].items([&](const Value& row) { plan.strategies.push_back(strategy_of(row)); });
  plan.strategy = whole["plan"]["strategy"].text();
  whole["plan"]["strategy"].need(std::any_of(plan.strategies.begin(), plan.strategies.end(),
                                             [&](const PlanFile::Strategy& row) { return row.name == plan.strategy; }),
                                 "is not one of the strategies");
  whole["plan"]["units"].items([&](const Value& row) { plan.units.push_back(unit_of(row)); });
  whole["plan"]["units"].need(!plan.units.empty(), "is empty");
  whole["plan"]["buffers"].items([&](const Value& row) {
    plan.buffers.push_back(
        {row["name"].text(), row["role"].text(), row["bytes"].count(), row["on_host"].flag(), row["whole_run"].flag()});
  });
  whole["plan"]["operations"].items([&](const Value& row) { plan.operations.push_back(operation_of(row, plan)); });
  whole["plan"]["operations"].need(!plan.operations.empty(), "is empty");
  return plan;
}

}  // namespace fsdp
