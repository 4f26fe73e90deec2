// The operations that copy a whole offloaded buffer to its slot on the device, and back. Their count is in 4-byte words.
#include "run/operations/running.hpp"

namespace fsdp {

namespace {

using enum OperandName;
using enum Effect;

constexpr OperandSpec of_load[] = {{stored, reads}, {slot, overwrites}};
constexpr OperandSpec of_unload[] = {{slot, reads}, {stored, overwrites}};

Amount of_buffer(const Query& q) {
  const Location* const kept = q.op.find(stored);
  return {.count = kept ? q.plan.buffers[static_cast<std::size_t>(kept->buffer)].bytes / size_of(DType::f32) : 0};
}

constexpr Kind row(std::string_view name, std::span<const OperandSpec> operands, void run(const Running&), char letter) {
  return {.name = name,
          .part = UpdatePart::transfer,
          .subject = Subject::owner,
          .operands = operands,
          .run = run,
          .cost = nullptr,
          .amount = of_buffer,
          .drawing = Drawing::as_transfer,
          .letter = letter};
}

}  // namespace

namespace kinds {

constinit const Kind load = row(
    "load", of_load,
    [](const Running& r) {
      const Location& from = r.op.at(stored);
      r.rank.storage_of(from).read(r.stream, r.rank.begin_of(from), r.at(slot), r.op.bytes());
    },
    'L');
constinit const Kind unload = row(
    "unload", of_unload,
    [](const Running& r) {
      const Location& to = r.op.at(stored);
      r.rank.storage_of(to).write(r.stream, r.rank.begin_of(to), r.at(slot), r.op.bytes());
    },
    'U');

}  // namespace kinds

}  // namespace fsdp
