#include "api/tensor.hpp"

#include "base/error.hpp"

namespace fsdp {

namespace {
Tensor moved_by(Tensor tensor, std::size_t elements) {
  if (tensor.data) tensor.data = static_cast<std::byte*>(tensor.data) + elements * size_of(tensor.type);
  return tensor;
}
}  // namespace

float* Tensor::floats() const {
  expect(type == DType::f32 && is_dense(), "a dense tensor in fp32 is read as floats");
  return static_cast<float*>(data);
}

float* Tensor::row(std::size_t r) const {
  expect(data != nullptr && type == DType::f32 && r < rows, "a tensor in fp32 has this row");
  return static_cast<float*>(data) + r * stride;
}

Tensor Tensor::columns_from(std::size_t begin, std::size_t count) const {
  expect(begin + count <= columns, "a tensor has these columns");
  Tensor view = moved_by(*this, begin);
  view.columns = count;
  return view;
}

Tensor Tensor::part(std::size_t begin, std::size_t count) const {
  expect(is_dense() && begin + count <= columns, "dense memory has this part");
  Tensor view = moved_by(*this, rows * begin);
  view.columns = view.stride = count;
  return view;
}

}  // namespace fsdp
