// Weights from files of any program: which tensors of a file a model takes, and tensors by name.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tensor/shape.hpp"

namespace fsdp {

/// `theirs` is the name of a tensor in a file, `ours` that of a parameter. Both have one "*", which stands for the same text in
/// both, or none.
struct NameRule {
  std::string theirs, ours;
};

/// Options of FullyShardedDataParallel::load_full(), the same on all ranks.
struct LoadOptions {
  std::vector<NameRule> names = {};              // the first rule that fits a tensor's name is used; without one the name stays
  std::vector<std::string> ignore_missing = {};  // shell globs: parameters that keep their values if the file has no tensor of
                                                 // this name and shape
  std::vector<std::string> ignore_unexpected = {};  // shell globs: tensors, by their new names, that no parameter need take
  bool verify = true;                               // false: a file of save_full() is not compared with its checksums
};

/// The names of the parameters that were loaded, of those that were not, and of the tensors that no parameter has. Sorted.
struct LoadResult {
  std::vector<std::string> loaded, missing, unexpected;
};

/// The tensors of any file or folder that load_full() reads, for changes that names cannot express, such as transposing. No
/// function is collective. Throws UserError.
class WeightsFile {
 public:
  /// Opens the file or folder, and keeps it open.
  explicit WeightsFile(const std::filesystem::path& path);
  /// A WeightsFile that was moved from may only be destroyed or assigned to.
  WeightsFile(WeightsFile&&) noexcept;
  /// Closes the file of this object, and takes that of the other one.
  WeightsFile& operator=(WeightsFile&&) noexcept;
  ~WeightsFile();

  /// The names of all tensors, sorted.
  std::vector<std::string> names() const;
  /// The shape of a tensor.
  Shape shape(const std::string& name) const;
  /// All elements, row-major, converted to fp32.
  std::vector<float> read(const std::string& name) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace fsdp
