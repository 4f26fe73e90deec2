// The safetensors format (github.com/huggingface/safetensors, "Format"): the length of a JSON header, the header, then the
// tensors' bytes without gaps. Reading is strict: what does not describe the file's every byte is refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.hpp"
#include "files/sealed_file.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

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
  /// Reads and checks the header. Throws UserError. What is read is compared with the seal beside the file, if there is one:
  /// fsdp-consolidate writes it.
  explicit SafetensorsFile(const std::filesystem::path& path, Verify verify = Verify::yes);
  /// The tensors, in the order of their bytes in the file.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  /// nullptr if there is none.
  const StoredTensor* find(const std::string& name) const;
  /// Elements [range) of an F32, BF16 or F16 tensor as fp32. Throws UserError for another type.
  void read(const StoredTensor& tensor, Range range, float* out) const;
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  CheckedFile file_;
  std::vector<StoredTensor> tensors_;
};

/// Reads `count` consecutive elements of type f32, bf16 or f16 from `offset` of a file, as fp32.
void read_elements(const CheckedFile& file, DType type, std::uint64_t offset, std::size_t count, float* out);

/// What a file of these tensors, all of one type, begins with: their bytes follow without gaps, in this order. `metadata` are
/// texts beside the format's own.
std::string safetensors_header(const std::vector<std::pair<std::string, Shape>>& tensors, DType type = DType::f32,
                               const std::map<std::string, std::string>& metadata = {});

}  // namespace fsdp
