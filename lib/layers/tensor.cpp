#include "layers/tensor.hpp"

#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

Tensor moved_by(Tensor tensor, std::size_t elements) {
  if (tensor.data) tensor.data = static_cast<std::byte*>(tensor.data) + elements * size_of(tensor.type);
  return tensor;
}

[[noreturn]] void refuse(const Tensor& tensor, const std::string& what) {
  if (!tensor)
    throw UserError(format(
        "{} of an empty tensor does not exist (the gradient of a frozen parameter is empty, and so are x and dx of a layer "
        "that takes tokens); skip a tensor that is false",
        what));
  throw UserError(format("{} of a tensor {} does not exist; correct the layer", what, to_string(tensor)));
}

std::size_t offset_of(const Tensor& tensor, std::size_t r, std::size_t c) {
  if (!tensor || r >= tensor.rows || c >= tensor.columns) refuse(tensor, format("the number in row {}, column {}", r, c));
  return r * tensor.stride + c;
}

}  // namespace

std::string to_string(const Tensor& tensor) {
  if (!tensor) return "none";
  return format("[{}, {}] in {}{}", tensor.rows, tensor.columns, name_of(tensor.type),
                tensor.is_dense() ? "" : format(", rows {} apart", tensor.stride));
}

float* Tensor::floats() const {
  if (!data || type != DType::f32 || !is_dense()) refuse(*this, "a view as dense fp32 numbers");
  return static_cast<float*>(data);
}

float* Tensor::row(std::size_t r) const {
  if (!data || type != DType::f32 || r >= rows) refuse(*this, format("row {} in fp32", r));
  return static_cast<float*>(data) + r * stride;
}

float Tensor::get(std::size_t r, std::size_t c) const {
  const std::size_t i = offset_of(*this, r, c);
  return with_element(type, [&]<class E>() { return static_cast<float>(static_cast<const E*>(data)[i]); });
}

void Tensor::set(std::size_t r, std::size_t c, float number) const {
  const std::size_t i = offset_of(*this, r, c);
  with_element(type, [&]<class E>() { static_cast<E*>(data)[i] = E(number); });
}

Tensor Tensor::columns_from(std::size_t begin, std::size_t count) const {
  if (begin > columns || count > columns - begin) refuse(*this, format("columns {} to {}", begin, begin + count));
  Tensor view = moved_by(*this, begin);
  view.columns = count;
  return view;
}

Tensor Tensor::rows_from(std::size_t begin, std::size_t count) const {
  if (!data || begin > rows || count > rows - begin) refuse(*this, format("rows {} to {}", begin, begin + count));
  Tensor view = moved_by(*this, begin * stride);
  view.rows = count;
  return view;
}

Tensor Tensor::reshaped(std::size_t new_rows, std::size_t new_columns) const {
  std::size_t numbers = 0;
  if (!data || !is_dense() || __builtin_mul_overflow(new_rows, new_columns, &numbers) || numbers != numel())
    refuse(*this, format("a view as [{}, {}]", new_rows, new_columns));
  return {data, new_rows, new_columns, new_columns, type};
}

void Tensor::require_type(DType wanted) const {
  if (!data || type != wanted) refuse(*this, format("a view in {}", name_of(wanted)));
}

Tensor Tensor::part(std::size_t begin, std::size_t count) const {
  if (!is_dense() || begin + count > columns)
    refuse(*this, format("the part of numbers {} to {} of a row", begin, begin + count));
  Tensor view = moved_by(*this, rows * begin);
  view.columns = view.stride = count;
  return view;
}

}  // namespace fsdp
