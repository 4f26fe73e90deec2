// A view of a matrix in memory that another object owns.
#pragma once

#include <cstddef>
#include <string>

#include "base/dtype.hpp"

namespace fsdp {

/// [rows, columns], row-major; rows are `stride` elements apart. The memory is on the job's device: host code can access it
/// only if that is the CPU. Copying a Tensor copies no numbers.
struct Tensor {
  void* data = nullptr;  // null: none, for example the gradient of a parameter that is not trained
  std::size_t rows = 0, columns = 0, stride = 0;
  DType type = DType::f32;

  explicit operator bool() const { return data != nullptr; }
  std::size_t numel() const { return rows * columns; }
  bool is_dense() const { return stride == columns || rows <= 1; }

  // These throw UserError, which describes the tensor, if the request does not fit it; the model adds the layer's name.

  /// The numbers of a dense fp32 tensor.
  float* floats() const;
  /// Row r of an fp32 tensor.
  float* row(std::size_t r) const;
  /// Read or write the number in row r and column c, for a tensor of any type; set() rounds to the type. For layers with their
  /// own loops over 16-bit numbers.
  float get(std::size_t r, std::size_t c) const;
  void set(std::size_t r, std::size_t c, float number) const;
  /// A view of columns [begin, begin + count) of all rows.
  Tensor columns_from(std::size_t begin, std::size_t count) const;
  /// Splits dense memory for [rows, columns] numbers, such as scratch, into dense matrices: returns a matrix [rows, count]
  /// after the memory of the first `begin` columns. For example, a layer with saved() = 3 F has three matrices [R, F]: part(0,
  /// F), part(F, F) and part(2 * F, F).
  Tensor part(std::size_t begin, std::size_t count) const;
};

/// "[6, 10] in bf16", "[6, 10] in fp32, rows 12 apart", "none".
std::string to_string(const Tensor& tensor);

}  // namespace fsdp
