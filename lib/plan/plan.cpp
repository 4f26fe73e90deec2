#include "plan/plan.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "plan/kind.hpp"

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

std::size_t Plan::bytes_on_disk() const {
  std::size_t bytes = 0;
  for (const SpaceUse& use : spaces)
    if (use.space->tier == Tier::disk) bytes += use.bytes;
  return bytes;
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
    if (buffer.space->tier != Tier::device && !buffer.is_offloaded()) bytes += buffer.bytes;
  return bytes;
}

std::string_view name_of(BufferRole role) {
  static constexpr std::array<std::string_view, role_count> names = {
      "parameters",  "gradients", "optimizer state", "gathered parameters", "unreduced gradients",
      "activations", "scratch",   "batch, tables",   "key-value cache",     "offload slots"};
  return names[static_cast<std::size_t>(role)];
}

namespace {

constexpr std::array<std::string_view, 9> part_names = {"gather",    "forward",  "again",    "backward", "reduce",
                                                        "optimizer", "transfer", "rounding", "other"};

}  // namespace

std::string_view name_of(UpdatePart part) { return part_names[static_cast<std::size_t>(part)]; }

std::optional<UpdatePart> part_named(std::string_view name) {
  const auto found = std::find(part_names.begin(), part_names.end(), name);
  if (found == part_names.end()) return std::nullopt;
  return static_cast<UpdatePart>(found - part_names.begin());
}

std::string_view name_of(StreamId stream) {
  static constexpr std::array<std::string_view, stream_count> names = {"compute", "gather", "reduce", "load", "unload"};
  return names[static_cast<std::size_t>(stream)];
}

namespace {

/// The title of the first or last stage of a user's model: "forward stem", "loss and its gradient", "loss, forward".
std::string name_end(std::string title, const std::string& stage) {
  for (const auto& [word, name] : {std::pair<std::string_view, std::string>("embedding", stage),
                                   {"head and loss, ", stage + ", "},
                                   {"head and loss", stage + " and its gradient"}})
    if (const std::size_t at = title.find(word); at != std::string::npos) return title.replace(at, word.size(), name);
  return title;
}

}  // namespace

std::string title_of(const Operation& op, const Layout& layout) {
  std::string title(op.kind->name);
  const std::vector<std::string>& names = layout.stage_names();
  const bool is_end = op.kind->subject == Subject::first_stage || op.kind->subject == Subject::head;
  if (op.block >= 0)
    title += names.empty() ? format(" block {}", op.block) : " " + names[static_cast<std::size_t>(op.block) + 1];
  else if (is_end && !names.empty())
    title = name_end(title, op.kind->subject == Subject::head ? names.back() : names.front());
  else if (op.unit >= 0)
    title += " " + layout.units()[static_cast<std::size_t>(op.unit)].name;
  if (op.round > 0) title += ", once more";
  if (op.reduce_dtype != DType::f32) title += format(" in {}", name_of(op.reduce_dtype));
  if (op.accumulate) title += ", add";
  return title;
}

namespace {

/// An operation in the table of operations.
struct ListedRow {
  const Operation* op;
  std::size_t number;
  std::array<std::string, 6> cells;
  std::string pattern;       // the text without its numbers
  std::vector<int> numbers;  // of blocks and slots
};

ListedRow row_of(const Operation& op, std::size_t number, std::string title, std::string reads, std::string writes) {
  ListedRow row = {&op, number, {}, {}, {}};
  row.cells = {format("{}", number), std::string(name_of(op.stream)),       std::move(title), std::move(reads),
               std::move(writes),    format("{}", fmt::join(op.waits, " "))};
  bool in_number = false;
  for (std::size_t c = 1; c < 5; ++c)
    for (const char letter : row.cells[c] + "\n") {
      const bool digit = letter >= '0' && letter <= '9';
      if (digit && !in_number) row.numbers.push_back(0);
      if (digit) row.numbers.back() = 10 * row.numbers.back() + (letter - '0');
      if (!digit || !in_number) row.pattern += digit ? '#' : letter;
      in_number = digit;
    }
  return row;
}

/// Returns true if row `b` does for another block what row `a` does: each number is the same or differs by `step`. If `step` is
/// 0, sets it.
bool repeats(const ListedRow& a, const ListedRow& b, int& step) {
  if (a.op->micro_batch != b.op->micro_batch || a.pattern != b.pattern || a.op->waits.size() != b.op->waits.size())
    return false;
  for (std::size_t i = 0; i < a.numbers.size(); ++i) {
    const int difference = b.numbers[i] - a.numbers[i];
    if (difference != 0 && step == 0) step = difference;
    if (difference != 0 && difference != step) return false;
  }
  for (std::size_t i = 0; i < a.op->waits.size(); ++i)
    if (b.number - static_cast<std::size_t>(b.op->waits[i]) != a.number - static_cast<std::size_t>(a.op->waits[i]))
      return false;
  return true;
}

struct Repetition {
  std::size_t period = 0, rows = 0;  // `period` rows, and the rows after them that repeat these rows
};

/// Finds the longest repetition of rows that begins at row `first`. It counts only if the rows are repeated at least three
/// times, and are at least four in all.
Repetition find_repetition(const std::vector<ListedRow>& rows, std::size_t first) {
  constexpr std::size_t most = 64;
  Repetition best;
  for (std::size_t period = 1; period <= most && first + 4 * period <= rows.size(); ++period) {
    std::size_t end = first + period;
    int step = 0;
    while (end < rows.size() && repeats(rows[end - period], rows[end], step)) ++end;
    const std::size_t repeated = (end - first) / period * period - period;
    if (step != 0 && repeated >= std::max<std::size_t>(3 * period, 4) && repeated > best.rows) best = {period, repeated};
  }
  return best;
}

/// "(operations 11 to 100 are like 5 to 10, for blocks 2 to 31)". `first` is the first row of the repetition.
std::string describe_repetition(const std::vector<ListedRow>& rows, std::size_t first, const Repetition& repetition) {
  const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(first + repetition.period),
             end = begin + static_cast<std::ptrdiff_t>(repetition.rows);
  std::vector<int> computed, named;  // blocks that are computed; without any, those in the titles
  for (auto row = begin; row != end; ++row) {
    if (row->op->block >= 0) computed.push_back(row->op->block);
    if (!row->numbers.empty()) named.push_back(row->numbers.front());
  }
  const std::vector<int>& blocks = computed.empty() ? named : computed;
  return format("  (operations {} to {} are like {}{}, for blocks {} to {})\n", begin->number, std::prev(end)->number,
                rows[first].number, repetition.period == 1 ? "" : format(" to {}", rows[first + repetition.period - 1].number),
                blocks.front(), blocks.back());
}

}  // namespace

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
  std::vector<ListedRow> rows;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const Operation& op = operations[i];
    if (last > 2 && op.micro_batch > 1 && op.micro_batch < last) continue;
    rows.push_back(row_of(op, i, title_of(op, layout), names(reads_of(op)), names(writes_of(op))));
  }
  const std::array<std::string, 6> titles = {"#", "stream", "operation", "reads", "writes", "waits"};
  std::array<std::size_t, 6> widths{};
  for (std::size_t c = 0; c < titles.size(); ++c) {
    widths[c] = titles[c].size();
    for (const ListedRow& row : rows) widths[c] = std::max(widths[c], row.cells[c].size());
  }
  const auto line = [&](const std::array<std::string, 6>& cells) {
    std::string text = format("{:>{}}", cells[0], widths[0] + 2);
    for (std::size_t c = 1; c < cells.size(); ++c) text += format("  {:<{}}", cells[c], widths[c]);
    return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  };
  std::string text = line(titles);
  int micro_batch = -1;
  for (std::size_t i = 0; i < rows.size();) {
    if (last > 0 && rows[i].op->micro_batch != std::exchange(micro_batch, rows[i].op->micro_batch)) {
      if (last > 2 && micro_batch == last)
        text += format("  (micro-batches 2 to {} are like micro-batch 1{})\n", last - 1,
                       plan.sums_in_a_tree ? "; sums of 2, 4, 8, ... of them are added up" : "");
      text += format("  micro-batch {}\n", micro_batch);
    }
    const Repetition repetition = find_repetition(rows, i);
    const std::size_t shown = std::max<std::size_t>(repetition.period, 1);
    for (std::size_t k = i; k < i + shown; ++k) text += line(rows[k].cells);
    if (repetition.rows > 0) text += describe_repetition(rows, i, repetition);
    i += shown + repetition.rows;
  }
  return text;
}

std::array<const std::vector<Operation>*, 5> lists_of(const Plan& plan) {
  return {&plan.update, &plan.evaluation, &plan.input_gradients, &plan.decoding, &plan.publish};
}

std::uint64_t collective_fingerprint(const Plan& plan) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a, 64 bits
  const auto mix = [&](std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) hash = (hash ^ (value >> (8 * byte) & 0xff)) * 1099511628211u;
  };
  for (const auto* list : lists_of(plan)) {
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
    if (!buffer.transient && buffer.space->tier == Tier::device)
      bytes[static_cast<std::size_t>(buffer.role)] += buffer.bytes, fixed += buffer.bytes;
  bytes[static_cast<std::size_t>(BufferRole::activations)] += plan.peak_bytes - fixed;
  return bytes;
}

std::array<std::size_t, role_count> offloaded_by_role(const Plan& plan, Tier tier) {
  std::array<std::size_t, role_count> bytes{};
  for (const PlanBuffer& buffer : plan.buffers)
    if (buffer.is_offloaded() && buffer.space->tier == tier) bytes[static_cast<std::size_t>(buffer.role)] += buffer.bytes;
  return bytes;
}

std::string describe_memory(const Plan& plan) {
  std::string text;
  const auto add = [&](std::string_view name, std::size_t bytes) {
    text += format("  {:<22} {:>10}\n", name, format_bytes(static_cast<double>(bytes)));
  };
  const auto bytes = memory_by_role(plan);
  for (std::size_t role = 0; role < role_count; ++role)
    if ((static_cast<BufferRole>(role) != BufferRole::loaded && static_cast<BufferRole>(role) != BufferRole::cache) ||
        bytes[role] > 0)
      add(name_of(static_cast<BufferRole>(role)), bytes[role]);
  add("peak per rank", plan.peak_bytes);
  for (const auto& [tier, heading, sum] : {std::tuple{Tier::host, "offloaded to the host's memory", "on the host per rank"},
                                           {Tier::disk, "in a file on the disk of the node", "on the disk per rank"}}) {
    const auto here = offloaded_by_role(plan, tier);
    const std::size_t total =
        tier == Tier::disk ? plan.bytes_on_disk() : std::accumulate(here.begin(), here.end(), std::size_t{0});
    if (total == 0) continue;
    text += format("  {}:\n", heading);
    for (std::size_t role = 0; role < role_count; ++role)
      if (here[role] > 0) add(name_of(static_cast<BufferRole>(role)), here[role]);
    add(sum, total);
  }
  return text;
}

}  // namespace fsdp
