#include "tensor/shape.hpp"

#include <functional>
#include <numeric>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

std::size_t numel(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
}

std::string to_string(const Shape& shape) { return format("[{}]", fmt::join(shape, ", ")); }

std::vector<Hyperslab> hyperslabs(const Shape& shape, Range range) {
  expect(range.begin <= range.end && range.end <= numel(shape), "a flat range must be inside its tensor");
  std::vector<Hyperslab> boxes;
  for (std::size_t at = range.begin; at < range.end;) {
    // The largest box that starts at `at`. The box contains all indices of the dimensions from `dim` on. The volume of these
    // dimensions, `inner`, must divide `at` and fit into the rest of the range.
    std::size_t inner = 1, dim = shape.size();
    while (dim > 1 && at % (inner * shape[dim - 1]) == 0 && inner * shape[dim - 1] <= range.end - at) inner *= shape[--dim];
    // Along dimension dim - 1, the box has as many volumes of `inner` elements as fit into the rest of the dimension and of the
    // range.
    Hyperslab box{Shape(shape.size(), 0), Shape(shape.size(), 1), at - range.begin};
    std::size_t rest = at;
    for (std::size_t d = shape.size(); d-- > 0;) {
      box.start[d] = rest % shape[d];
      rest /= shape[d];
      if (d >= dim) box.count[d] = shape[d];
    }
    const std::size_t left_in_dim = shape[dim - 1] - box.start[dim - 1];
    box.count[dim - 1] = std::min(left_in_dim, (range.end - at) / inner);
    at += box.count[dim - 1] * inner;
    boxes.push_back(std::move(box));
  }
  return boxes;
}

}  // namespace fsdp
