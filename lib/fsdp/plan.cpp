#include "fsdp/plan.hpp"

#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

std::string_view name_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::read_batch:
      return "read batch";
    case OperationKind::all_gather:
      return "all-gather";
    case OperationKind::release:
      return "release";
    case OperationKind::embedding_forward:
      return "forward embedding";
    case OperationKind::block_forward:
      return "forward";
    case OperationKind::head:
      return "head and loss";
    case OperationKind::head_loss:
      return "head and loss, forward";
    case OperationKind::recompute:
      return "recompute";
    case OperationKind::refill:
      return "refill";
    case OperationKind::block_backward:
      return "backward";
    case OperationKind::embedding_backward:
      return "backward embedding";
    case OperationKind::clear:
      return "clear gradient";
    case OperationKind::reduce_scatter:
      return "reduce-scatter";
    case OperationKind::all_reduce:
      return "all-reduce";
    case OperationKind::add_squares:
      return "squares";
    case OperationKind::gradient_norm:
      return "gradient norm";
    case OperationKind::statistics:
      return "statistics";
    case OperationKind::reduce_statistics:
      return "reduce statistics";
    case OperationKind::directions:
      return "directions";
    case OperationKind::gather_directions:
      return "gather directions";
    case OperationKind::whole_matrices:
      return "whole matrices";
    case OperationKind::scatter_directions:
      return "scatter directions";
    case OperationKind::sum_directions:
      return "sum directions";
    case OperationKind::optimizer:
      return "optimizer";
    case OperationKind::round:
      return "round";
  }
  fail_expectation("unknown kind of operation", std::source_location::current());
}

std::string_view name_of(BufferRole role) {
  static constexpr std::array<std::string_view, role_count> names = {
      "parameters",          "gradients",   "optimizer state", "gathered parameters",
      "unreduced gradients", "activations", "scratch",         "batch, tables"};
  return names[static_cast<std::size_t>(role)];
}

ModelSizes model_sizes(const Transformer& model, BatchShape shape, DType type) {
  return {model.blocks(),
          shape.rows() * model.config().width * size_of(type),
          model.saved_numel(shape, type) * sizeof(float),
          model.kept_numel(shape, type) * sizeof(float),
          model.scratch_numel(shape, type) * sizeof(float),
          shape.rows() * sizeof(std::int32_t),
          model.table_numel(shape.T) * sizeof(float),
          model.parameters_by_stage()};
}

std::string_view name_of(StreamId stream) {
  static constexpr std::array<std::string_view, stream_count> names = {"compute", "gather", "reduce"};
  return names[static_cast<std::size_t>(stream)];
}

bool is_collective(OperationKind kind) {
  switch (kind) {
    case OperationKind::all_gather:
    case OperationKind::reduce_scatter:
    case OperationKind::all_reduce:
    case OperationKind::gradient_norm:
    case OperationKind::reduce_statistics:
    case OperationKind::gather_directions:
    case OperationKind::scatter_directions:
    case OperationKind::sum_directions:
      return true;
    case OperationKind::read_batch:
    case OperationKind::release:
    case OperationKind::embedding_forward:
    case OperationKind::block_forward:
    case OperationKind::head:
    case OperationKind::head_loss:
    case OperationKind::recompute:
    case OperationKind::refill:
    case OperationKind::block_backward:
    case OperationKind::embedding_backward:
    case OperationKind::clear:
    case OperationKind::add_squares:
    case OperationKind::statistics:
    case OperationKind::directions:
    case OperationKind::whole_matrices:
    case OperationKind::optimizer:
    case OperationKind::round:
      break;
  }
  return false;
}

std::string title_of(const Operation& op, const Layout& layout) {
  std::string title(name_of(op.kind));
  if (op.block >= 0)
    title += format(" block {}", op.block);
  else if (op.unit >= 0)
    title += " " + layout.units()[static_cast<std::size_t>(op.unit)].name;
  if (op.round > 0) title += ", once more";
  if (op.travel != DType::f32) title += format(" in {}", name_of(op.travel));
  if (op.accumulate) title += ", add";
  return title;
}

std::string describe_operations(const Plan& plan, const std::vector<Operation>& operations, const Layout& layout) {
  const auto names = [&](const std::vector<BufferId>& ids) {
    std::string text;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i == 2 && ids.size() > 6) return text + format(" ... {}", ids.size());
      text += format("{}{}", text.empty() ? "" : " ", plan.buffers[static_cast<std::size_t>(ids[i])].name);
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
    rows.push_back({format("{}", i), std::string(name_of(op.stream)), title_of(op, layout), names(op.reads), names(op.writes),
                    format("{}", fmt::join(op.waits, " "))});
    micro_batches.push_back(op.micro_batch);
  }
  std::array<std::size_t, 6> widths{};
  for (const Row& row : rows)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string text;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i > 0 && last > 0 && micro_batches[i] != micro_batches[i - 1]) {
      if (last > 2 && micro_batches[i] == last) text += format("  (micro-batches 2 to {} are as 1)\n", last - 1);
      text += format("  micro-batch {}\n", micro_batches[i]);
    }
    std::string line = format("{:>{}}", rows[i][0], widths[0] + 2);
    for (std::size_t c = 1; c < 6; ++c) line += format("  {:<{}}", rows[i][c], widths[c]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::array<std::size_t, role_count> memory_by_role(const Plan& plan) {
  std::array<std::size_t, role_count> bytes{};
  std::size_t fixed = 0;
  for (const PlanBuffer& buffer : plan.buffers)
    if (!buffer.transient) bytes[static_cast<std::size_t>(buffer.role)] += buffer.bytes, fixed += buffer.bytes;
  bytes[static_cast<std::size_t>(BufferRole::activations)] += plan.peak_bytes - fixed;
  return bytes;
}

std::string describe_memory(const Plan& plan) {
  const auto bytes = memory_by_role(plan);
  std::string text;
  for (std::size_t role = 0; role < role_count; ++role)
    text += format("  {:<22} {:>10}\n", name_of(static_cast<BufferRole>(role)), format_bytes(static_cast<double>(bytes[role])));
  return text + format("  {:<22} {:>10}\n", "peak per rank", format_bytes(static_cast<double>(plan.peak_bytes)));
}

}  // namespace fsdp
