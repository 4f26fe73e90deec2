// The safetensors format (github.com/huggingface/safetensors, "Format"): the length of a JSON header, the header, then the
// tensors' bytes without gaps. Reading is strict: what does not describe the file's every byte is refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.hpp"
#include "checkpoint/files.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

namespace h5 {
class Output;
}

/// "F32", "BF16", "F16"; and what such a text says, if it is one of these.
std::string_view safetensors_name(DType type);
std::optional<DType> type_of_safetensors(std::string_view name);

struct StoredTensor {
  std::string name;
  std::string dtype;  // "F32"
  Shape shape;
  std::uint64_t offset = 0, bytes = 0;  // from the start of the file
};

class SafetensorsFile {
 public:
  /// Reads and checks the header. Throws UserError.
  explicit SafetensorsFile(const std::filesystem::path& path);
  /// In the order of their bytes.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  /// nullptr if there is none.
  const StoredTensor* find(const std::string& name) const;
  /// Elements [range) of an F32, BF16 or F16 tensor as fp32. Throws UserError for another type.
  void read(const StoredTensor& tensor, Range range, float* out) const;
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  InputFile file_;
  std::vector<StoredTensor> tensors_;
};

/// Writes tensors one after another, all of one type.
class SafetensorsWriter {
 public:
  /// Throws CallError, also if there is such a file.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<std::pair<std::string, Shape>>& tensors,
                    DType type = DType::f32);
  ~SafetensorsWriter();
  /// The next `count` elements in the order of `tensors`, rounded to the type.
  void append(const float* values, std::size_t count);
  /// Waits for the disk. Everything must have been appended.
  void finish();

 private:
  std::shared_ptr<h5::Output> output_;
  DType type_;
  std::uint64_t at_ = 0, end_ = 0;
};

}  // namespace fsdp
