#include "comm/communicator.hpp"

#include <algorithm>
#include <vector>

#include "base/narrow.hpp"

namespace fsdp {

void Collectives::all_reduce(Stream& stream, void* data, std::size_t count, DType type, DType travel) {
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

void Group::max(std::span<std::size_t> values) {
  const auto mine = static_cast<std::size_t>(rank()) * values.size();
  std::vector<std::int64_t> all(static_cast<std::size_t>(size()) * values.size());
  for (std::size_t i = 0; i < values.size(); ++i) all[mine + i] = narrow<std::int64_t>(values[i]);
  sum(all);
  for (std::size_t k = 0; k < all.size(); ++k) {
    std::size_t& most = values[k % values.size()];
    most = std::max(most, static_cast<std::size_t>(all[k]));
  }
}

}  // namespace fsdp
