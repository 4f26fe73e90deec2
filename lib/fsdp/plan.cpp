#include "fsdp/plan.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "base/error.hpp"
#include "base/format.hpp"
#include "fsdp/kind.hpp"

namespace fsdp {

const Location& Operation::at(OperandName name) const {
  const Location* const place = find(name);
  expect(place != nullptr, "the operation has an operand of this name");
  return *place;
}

Effect effect_on(const Operation& op, std::size_t i) {
  for (const OperandSpec& spec : op.kind->operands)
    if (spec.name == op.operands[i].name) return spec.effect;
  throw InternalError(format("{} has an operand that its kind does not list", op.kind->name));
}

std::vector<Location> reads_of(const Operation& op) {
  std::vector<Location> places;
  for (std::size_t i = 0; i < op.operands.size(); ++i)
    if (needs_content(op, effect_on(op, i))) places.push_back(op.operands[i].place);
  return places;
}

std::vector<Location> writes_of(const Operation& op) {
  std::vector<Location> places;
  for (std::size_t i = 0; i < op.operands.size(); ++i)
    if (writes(effect_on(op, i))) places.push_back(op.operands[i].place);
  return places;
}

std::size_t Plan::bytes_in(const Space& space) const {
  for (const SpaceUse& use : spaces)
    if (use.space == &space) return use.bytes;
  return 0;
}

std::size_t Plan::offloaded_bytes() const {
  std::size_t bytes = 0;
  for (const PlanBuffer& buffer : buffers)
    if (buffer.is_offloaded()) bytes += buffer.bytes;
  return bytes;
}

std::size_t Plan::batch_bytes() const {
  std::size_t bytes = 0;
  for (const PlanBuffer& buffer : buffers)
    if (!buffer.space->on_device && !buffer.is_offloaded()) bytes += buffer.bytes;
  return bytes;
}

std::string_view name_of(BufferRole role) {
  static constexpr std::array<std::string_view, role_count> names = {
      "parameters",  "gradients", "optimizer state", "gathered parameters", "unreduced gradients",
      "activations", "scratch",   "batch, tables",   "key-value cache",     "loaded from host"};
  return names[static_cast<std::size_t>(role)];
}

std::size_t sums_at_once(std::size_t micro_batches, bool joins_at_once) {
  // The largest number of ones in the binary form of a number from 0 to `last`.
  const auto most_ones = [](std::size_t last) {
    const auto digits = static_cast<std::size_t>(std::bit_width(last));
    return std::has_single_bit(last + 1) || last == 0 ? digits : digits - 1;
  };
  const std::size_t last = micro_batches - 1;
  return 1 + (joins_at_once ? most_ones(last / 2) : most_ones(last));
}

std::string_view name_of(StreamId stream) {
  static constexpr std::array<std::string_view, stream_count> names = {"compute", "gather", "reduce", "load", "unload"};
  return names[static_cast<std::size_t>(stream)];
}

std::string title_of(const Operation& op, const Layout& layout) {
  std::string title(op.kind->name);
  if (op.block >= 0)
    title += format(" block {}", op.block);
  else if (op.unit >= 0)
    title += " " + layout.units()[static_cast<std::size_t>(op.unit)].name;
  if (op.round > 0) title += ", once more";
  if (op.reduce_dtype != DType::f32) title += format(" in {}", name_of(op.reduce_dtype));
  if (op.accumulate) title += ", add";
  return title;
}

std::string describe_operations(const Plan& plan, const std::vector<Operation>& operations, const Layout& layout) {
  const auto names = [&](const std::vector<Location>& places) {
    std::string text;
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (i == 2 && places.size() > 6) return text + format(" ... {}", places.size());
      text += format("{}{}", text.empty() ? "" : " ", plan.buffers[static_cast<std::size_t>(places[i].buffer)].name);
    }
    return text;
  };
  const int last = operations.empty() ? 0 : operations.back().micro_batch;
  using Row = std::array<std::string, 6>;
  std::vector<Row> rows = {{"#", "stream", "operation", "reads", "writes", "waits"}};
  std::vector<int> micro_batches = {-1};  // of each row
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const Operation& op = operations[i];
    if (last > 2 && op.micro_batch > 1 && op.micro_batch < last) continue;
    rows.push_back({format("{}", i), std::string(name_of(op.stream)), title_of(op, layout), names(reads_of(op)),
                    names(writes_of(op)), format("{}", fmt::join(op.waits, " "))});
    micro_batches.push_back(op.micro_batch);
  }
  std::array<std::size_t, 6> widths{};
  for (const Row& row : rows)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string text;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i > 0 && last > 0 && micro_batches[i] != micro_batches[i - 1]) {
      if (last > 2 && micro_batches[i] == last)
        text += format("  (micro-batches 2 to {} are like micro-batch 1{})\n", last - 1,
                       plan.sums_in_a_tree ? "; sums of 2, 4, 8, ... of them are added up" : "");
      text += format("  micro-batch {}\n", micro_batches[i]);
    }
    std::string line = format("{:>{}}", rows[i][0], widths[0] + 2);
    for (std::size_t c = 1; c < 6; ++c) line += format("  {:<{}}", rows[i][c], widths[c]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::uint64_t collective_fingerprint(const Plan& plan) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a, 64 bits
  const auto mix = [&](std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) hash = (hash ^ (value >> (8 * byte) & 0xff)) * 1099511628211u;
  };
  for (const auto* list : {&plan.update, &plan.evaluation, &plan.decoding, &plan.publish}) {
    for (const Operation& op : *list)
      if (is_collective(op)) {
        for (const char letter : op.kind->name) mix(static_cast<std::uint64_t>(letter));
        mix(static_cast<std::uint64_t>(op.unit));
        mix(static_cast<std::uint64_t>(op.group));
        mix(static_cast<std::uint64_t>(op.type));
        mix(static_cast<std::uint64_t>(op.reduce_dtype));
        mix(op.count);
      }
    mix(list->size());
  }
  return hash;
}

std::array<std::size_t, role_count> memory_by_role(const Plan& plan) {
  std::array<std::size_t, role_count> bytes{};
  std::size_t fixed = 0;
  for (const PlanBuffer& buffer : plan.buffers)
    if (!buffer.transient && buffer.space->on_device)
      bytes[static_cast<std::size_t>(buffer.role)] += buffer.bytes, fixed += buffer.bytes;
  bytes[static_cast<std::size_t>(BufferRole::activations)] += plan.peak_bytes - fixed;
  return bytes;
}

std::array<std::size_t, role_count> offloaded_by_role(const Plan& plan) {
  std::array<std::size_t, role_count> bytes{};
  for (const PlanBuffer& buffer : plan.buffers)
    if (buffer.is_offloaded()) bytes[static_cast<std::size_t>(buffer.role)] += buffer.bytes;
  return bytes;
}

std::string describe_memory(const Plan& plan) {
  std::string text;
  const auto add = [&](std::string_view name, std::size_t bytes) {
    text += format("  {:<22} {:>10}\n", name, format_bytes(static_cast<double>(bytes)));
  };
  const auto bytes = memory_by_role(plan), on_host = offloaded_by_role(plan);
  for (std::size_t role = 0; role < role_count; ++role)
    if ((static_cast<BufferRole>(role) != BufferRole::loaded && static_cast<BufferRole>(role) != BufferRole::cache) ||
        bytes[role] > 0)
      add(name_of(static_cast<BufferRole>(role)), bytes[role]);
  add("peak per rank", plan.peak_bytes);
  if (plan.offloaded_bytes() == 0) return text;
  text += "  offloaded to the host's memory:\n";
  for (std::size_t role = 0; role < role_count; ++role)
    if (on_host[role] > 0) add(name_of(static_cast<BufferRole>(role)), on_host[role]);
  add("on the host per rank", plan.offloaded_bytes());
  return text;
}

}  // namespace fsdp
