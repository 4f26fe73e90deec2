// The safetensors format (github.com/huggingface/safetensors, "Format"): the length of a JSON header, the header, then the
// tensors' bytes without gaps. Reading is strict: a file is refused unless its header describes every byte.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.hpp"
#include "files/sealed_file.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

struct StoredTensor {
  std::string name;
  std::string dtype;  // the type's name in the format: "F32"
  Shape shape;
  std::uint64_t offset = 0, bytes = 0;  // from the start of the file
};

class SafetensorsFile {
 public:
  /// Reads and checks the header. Throws UserError. If fsdp-consolidate wrote checksums into a file next to this one, all later
  /// reads are compared with them.
  explicit SafetensorsFile(const std::filesystem::path& path, Verify verify = Verify::yes);
  /// The tensors, in the order of their bytes in the file.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  /// Returns nullptr if there is no such tensor.
  const StoredTensor* find(const std::string& name) const;
  /// The type of a tensor that can be read. Throws UserError for types other than F32, BF16 and F16.
  DType type_of(const StoredTensor& tensor) const;
  /// Reads a range of elements as fp32, also of type F64. Throws what type_of() throws for other types.
  void read(const StoredTensor& tensor, Range range, float* out) const;
  const std::filesystem::path& path() const { return file_.path(); }
  /// A text of the file's metadata; empty if there is none.
  std::string metadata(const std::string& key) const {
    const auto found = metadata_.find(key);
    return found == metadata_.end() ? "" : found->second;
  }

 private:
  CheckedFile file_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;  // only short texts
};

/// Reads `count` consecutive elements of type f32, bf16 or f16, from `offset` in the file, as fp32.
void read_elements(const CheckedFile& file, DType type, std::uint64_t offset, std::size_t count, float* out);

/// Returns the header of a file with these tensors, all of one type. The caller writes the data after the header, in this
/// order. `metadata` is added to the format's own metadata.
std::string safetensors_header(const std::vector<std::pair<std::string, Shape>>& tensors, DType type = DType::f32,
                               const std::map<std::string, std::string>& metadata = {});

}  // namespace fsdp
