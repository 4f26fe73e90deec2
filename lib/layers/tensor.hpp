// A view of a matrix in memory that another object owns.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/dtype.hpp"
#include "base/element.hpp"

namespace fsdp {

template <class E>
struct TypedTensor;

/// A matrix [rows, columns], row-major; consecutive rows begin `stride` elements apart. The memory is on the job's device, so
/// host code can access it only if the device is the CPU. Copying a Tensor copies no numbers. The functions throw UserError if
/// the tensor does not fit the request, for example because of its type. The message describes the tensor; the library adds the
/// name of the layer.
struct Tensor {
  void* data = nullptr;                           // null: there is no tensor, such as the gradient of a frozen parameter
  std::size_t rows = 0, columns = 0, stride = 0;  // in elements
  DType type = DType::f32;                        // of the elements

  explicit operator bool() const { return data != nullptr; }        // false: there is no tensor
  std::size_t numel() const { return rows * columns; }              // the number of elements
  bool is_dense() const { return stride == columns || rows <= 1; }  // there is no gap between rows

  /// The first number of a dense fp32 tensor.
  float* floats() const;
  /// The first number in row r of an fp32 tensor.
  float* row(std::size_t r) const;
  /// Read or write the number in row r and column c of a tensor of any type; set() rounds to that type. They serve layers that
  /// have their own loops over 16-bit numbers.
  float get(std::size_t r, std::size_t c) const;
  void set(std::size_t r, std::size_t c, float number) const;
  /// The same tensor for code that knows its type: E is float, bf16 or f16.
  template <class E>
  TypedTensor<E> as() const;
  /// A view of columns [begin, begin + count) of all rows, and of rows [begin, begin + count).
  Tensor columns_from(std::size_t begin, std::size_t count) const;
  Tensor rows_from(std::size_t begin, std::size_t count) const;
  /// A view of the same numbers of a dense tensor as a matrix of another shape with as many elements.
  Tensor reshaped(std::size_t new_rows, std::size_t new_columns) const;
  /// Splits the memory of a dense tensor, such as `saved` or scratch, into several dense matrices. Returns the matrix [rows,
  /// count] that begins after rows * `begin` numbers. For example, with saved() = 3 * F, part(0, F), part(F, F) and part(2 * F,
  /// F) of `saved` are three matrices [R, F].
  Tensor part(std::size_t begin, std::size_t count) const;

 private:
  void require_type(DType wanted) const;
};

/// A Tensor whose elements have the type E. tensor[r] is row r as a span, so that tensor[r][c] is an element.
template <class E>
struct TypedTensor {
  E* data;                            // as in Tensor
  std::size_t rows, columns, stride;  // as in Tensor

  /// Throws UserError if r is too large.
  std::span<E> operator[](std::size_t r) const {
    if (r >= rows) refuse_row(r);
    return {data + r * stride, columns};
  }

 private:
  void refuse_row(std::size_t r) const { Tensor{data, rows, columns, stride, dtype_of<E>}.rows_from(r, 1); }
};

template <class E>
TypedTensor<E> Tensor::as() const {
  require_type(dtype_of<E>);
  return {static_cast<E*>(data), rows, columns, stride};
}

/// "[6, 10] in bf16", "[6, 10] in fp32, rows 12 apart", "none".
std::string to_string(const Tensor& tensor);

}  // namespace fsdp
