// The operations that copy a whole offloaded buffer to its slot on the device, and back. Their count is in 4-byte words.
#include "run/operations/running.hpp"

namespace fsdp {

namespace {

using enum OperandName;
using enum Effect;

constexpr OperandSpec of_load[] = {{stored, reads}, {slot, overwrites}};
constexpr OperandSpec of_unload[] = {{slot, reads}, {stored, overwrites}};

Cost of_what_it_moves(const Operation&, const Costing&) { return {}; }
Amount of_buffer(const Query& q) {
  const Location* const kept = q.op.find(stored);
  return {.count = kept ? q.plan.buffers[static_cast<std::size_t>(kept->buffer)].bytes / size_of(DType::f32) : 0};
}

}  // namespace

namespace kinds {

constinit const Kind load = {.name = "load",
                             .part = UpdatePart::transfer,
                             .subject = Subject::unit,
                             .operands = of_load,
                             .run = [](const Running& r) { r.stream.copy(r.at(slot), r.at(stored), r.op.bytes()); },
                             .cost = of_what_it_moves,
                             .amount = of_buffer,
                             .drawing = Drawing::as_transfer,
                             .letter = 'L'};

constinit const Kind unload = {.name = "unload",
                               .part = UpdatePart::transfer,
                               .subject = Subject::unit,
                               .operands = of_unload,
                               .run = [](const Running& r) { r.stream.copy(r.at(stored), r.at(slot), r.op.bytes()); },
                               .cost = of_what_it_moves,
                               .amount = of_buffer,
                               .drawing = Drawing::as_transfer,
                               .letter = 'U'};

}  // namespace kinds

}  // namespace fsdp
