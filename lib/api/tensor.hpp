// A matrix in memory that somebody else owns.
#pragma once

#include <cstddef>
#include <string>

#include "base/dtype.hpp"

namespace fsdp {

/// [rows, columns], row-major, the rows `stride` elements apart. It is on the device that the job computes on: code of the host
/// reads and writes it only where that is the CPU. Copying it copies no numbers.
struct Tensor {
  void* data = nullptr;  // null: there is none, for example the gradient of a parameter that is not trained
  std::size_t rows = 0, columns = 0, stride = 0;
  DType type = DType::f32;

  explicit operator bool() const { return data != nullptr; }
  std::size_t numel() const { return rows * columns; }
  bool is_dense() const { return stride == columns || rows <= 1; }

  // What asks for more than there is throws UserError, which says what the tensor is; the model adds the layer's name.

  /// The numbers, of a dense tensor in fp32.
  float* floats() const;
  /// Row r of a tensor in fp32.
  float* row(std::size_t r) const;
  /// The number in row r and column c of a tensor of any type, and a number for that place, rounded to the type: for layers
  /// that work in 16 bits by loops of their own.
  float get(std::size_t r, std::size_t c) const;
  void set(std::size_t r, std::size_t c, float number) const;
  /// Columns [begin, begin + count) of all rows: the same memory.
  Tensor columns_from(std::size_t begin, std::size_t count) const;
  /// Of dense memory for [rows, columns] numbers, such as scratch, a dense matrix [rows, count]: what `begin` columns would
  /// take lies before it. So a layer with saved() = 3 F has three matrices [R, F] in part(0, F), part(F, F) and part(2 * F, F).
  Tensor part(std::size_t begin, std::size_t count) const;
};

/// "[6, 10] in bf16", "[6, 10] in fp32, rows 12 apart", "none".
std::string to_string(const Tensor& tensor);

}  // namespace fsdp
