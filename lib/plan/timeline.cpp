#include "plan/timeline.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.hpp"
#include "base/format.hpp"
#include "plan/kind.hpp"
#include "plan/schedule.hpp"
#include "plan/traffic.hpp"

namespace fsdp {

namespace {

/// The part of a unit's name that differs between units: "3" of "transformer.h.3", "root".
std::string short_name(const Unit& unit) {
  const std::size_t digit = unit.name.find_first_of("0123456789");
  return digit == std::string::npos ? unit.name : unit.name.substr(digit);
}

}  // namespace

std::string drawn_label(const Operation& op, const Layout& layout) {
  return op.kind->letter + (op.block >= 0  ? format("{}", op.block)
                            : op.unit >= 0 ? short_name(layout.units()[static_cast<std::size_t>(op.unit)])
                                           : "");
}

double drawn_time(const Operation& op, const Layout& layout, std::size_t block_numel) {
  constexpr double brief = 0.5;  // three columns, the minimum for a label
  switch (op.kind->drawing) {
    case Drawing::not_at_all:
      return 0;
    case Drawing::briefly:
      return brief;
    case Drawing::as_forward:
      return 1;
    case Drawing::as_backward:
      return 2;
    case Drawing::as_transfer:
      break;
  }
  // The length of a collective follows from the bytes that its ranks exchange, and that of a load or unload from the bytes of
  // this rank.
  std::size_t bytes = op.bytes();
  if (const auto use = collective_of(op)) {
    if (op.unit < 0) return 0;  // only a few numbers are sent
    bytes = use->moved_bytes(static_cast<std::size_t>(layout.units()[static_cast<std::size_t>(op.unit)].shards));
  }
  return std::max(brief, static_cast<double>(bytes) / static_cast<double>(block_numel * size_of(DType::f32)));
}

std::string draw_timeline(const std::vector<Operation>& operations, const Layout& layout, std::size_t block_numel,
                          std::size_t columns) {
  int blocks = 1, micro_batches = 1;
  for (const Operation& op : operations)
    blocks = std::max(blocks, op.block + 1), micro_batches = std::max(micro_batches, op.micro_batch + 1);
  const auto has = [&](const Kind& kind) {
    return std::any_of(operations.begin(), operations.end(), [&](const Operation& op) { return op.kind == &kind; });
  };
  const std::size_t forward = format("[B{}]", blocks - 1).size();

  std::vector<Task> tasks;  // lengths in columns
  for (const Operation& op : operations) {
    const double time = drawn_time(op, layout, block_numel);
    const double width = time > 0 ? std::max(3.0, std::round(static_cast<double>(forward) * time)) : 0;
    tasks.push_back({.queue = static_cast<int>(op.stream), .length = width, .waits = op.waits});
  }
  const std::vector<TaskTime> times = schedule(tasks);
  std::array<std::string, stream_count> rows;
  std::vector<std::size_t> cuts;                 // where computations begin
  std::array<std::size_t, 2> left_out = {0, 0};  // first and last column of the micro-batches that are not drawn
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const Operation& op = operations[i];
    const auto begin = static_cast<std::size_t>(times[i].begin), width = static_cast<std::size_t>(tasks[i].length);
    if (op.kind == &kinds::read_batch && op.micro_batch == 2) left_out[0] = begin;
    if (op.kind == &kinds::read_batch && op.micro_batch + 1 == micro_batches) left_out[1] = begin;
    if (op.stream == StreamId::compute) cuts.push_back(begin);
    std::string& row = rows[static_cast<std::size_t>(op.stream)];
    row.resize(begin, ' ');
    if (width > 0) row += format("[{:<{}}]", drawn_label(op, layout).substr(0, width - 2), width - 2);
  }
  std::size_t total = 0;
  for (const std::string& row : rows) total = std::max(total, row.size());
  for (std::string& row : rows) row.resize(total, ' ');
  cuts.push_back(total);

  std::string text = format(
      "timeline of one update; streams run at the same time. Widths follow a rule, not measurements: the forward pass of a\n"
      "block takes {} columns, its backward pass {}; embedding, head and norm take {} each, the optimizer of a unit 3;\n"
      "gathering or reducing {} parameters (those of a block) takes {}. F forward, f forward again, B backward,\n"
      "E embedding, H head and loss, N gradient norm, O optimizer, G all-gather, R reduce-scatter, A all-reduce\n{}{}",
      forward, 2 * forward, forward, format_count(static_cast<double>(block_numel)), forward,
      has(kinds::statistics)       ? "S sums over a unit's whole tensors\n"
      : has(kinds::whole_matrices) ? "D matrices from which updates are computed, W the work on these whole matrices\n"
                                   : "",
      has(kinds::load) ? "L copies from the host, U copies back\n" : "");
  std::vector<StreamId> order = {StreamId::gather, StreamId::compute, StreamId::reduce};
  if (has(kinds::load) || has(kinds::unload)) order.insert(order.begin(), StreamId::load), order.push_back(StreamId::unload);
  const auto draw = [&](std::size_t begin, const std::size_t end) {
    while (begin < end) {  // one band of lines after another, cut where a computation begins
      std::size_t next = std::min(end, begin + columns - 9);
      if (next < end) {
        const std::size_t cut = *std::prev(std::upper_bound(cuts.begin(), cuts.end(), next));
        if (cut > begin) next = cut;
      }
      text += '\n';
      for (const StreamId stream : order) {
        const auto s = static_cast<std::size_t>(stream);
        const std::string line = format("{:<9}{}", name_of(stream), std::string_view(rows[s]).substr(begin, next - begin));
        text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
      }
      begin = next;
    }
  };
  if (micro_batches <= 3) return draw(0, total), text;
  draw(0, left_out[0]);
  text += format("\n(micro-batches 2 to {} are like micro-batch 1)\n", micro_batches - 2);
  draw(left_out[1], total);
  return text;
}

}  // namespace fsdp
