#include "comm/communicator.hpp"

namespace fsdp {

void Communicator::all_reduce(Stream& stream, void* data, std::size_t count, DType type, DType travel) {
  switch (type) {
    case DType::f32:
      return all_reduce(stream, static_cast<float*>(data), count, travel);
    case DType::f64:
      return all_reduce(stream, static_cast<double*>(data), count);
    case DType::i64:
      return all_reduce(stream, static_cast<std::int64_t*>(data), count);
    case DType::bf16:
    case DType::f16:
      break;
  }
  fail_expectation("16-bit numbers are added up as fp32", std::source_location::current());
}

bool all_agree(Communicator& comm, Stream& stream, bool mine) {
  std::int64_t dissenters = mine ? 0 : 1;
  comm.all_reduce(stream, &dissenters, 1);
  return dissenters == 0;
}

}  // namespace fsdp
