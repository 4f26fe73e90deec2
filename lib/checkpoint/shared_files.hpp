// Rank files that several ranks write together. A step with F such files is a step of F ranks: its
// index, the slices in its files and their names are those that F ranks would have written, so that every reader can read it.
// docs/checkpoint-format.md ("Fewer files than ranks") describes how the files are written.
//
// The first rank of a file makes it, with all datasets allocated. After the HDF5 file follow the offsets of the datasets, and
// room for a report of each rank. Then all ranks write their elements at these offsets, and after they are on the disk, their
// reports. At last, the first rank reads the file once: it compares what it reads with the reports, and replaces offsets and
// reports by the seal. Each other rank opens the file once, and makes no file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/read_plan.hpp"
#include "files/checksum.hpp"
#include "files/input_file.hpp"
#include "files/output_file.hpp"
#include "h5/h5.hpp"
#include "kernels/exact_sum.hpp"
#include "plan/layout.hpp"

namespace fsdp {

/// The slices in the files of a step that `ranks` ranks with the layout `written` write into `files` files.
class SharedFiles {
 public:
  struct State {
    std::string name;
    Extent extent;
  };
  /// A dataset of a file.
  struct Dataset {
    std::size_t tensor, parameter;  // tensor: (index of the state) * (number of parameters) + (index of the parameter)
    Extent extent;
    Shape shape;  // of the whole tensor
    Range range;  // the tensor's elements in this dataset
    std::string name;
  };
  /// `parameters` and `written` must outlive this object.
  SharedFiles(const std::vector<Parameter>& parameters, const Layout& written, int ranks, int files, std::vector<State> states);

  int ranks() const { return ranks_; }
  int files() const { return files_; }
  /// The layout of `files` ranks, which the index describes.
  const Layout& layout() const { return layout_; }
  /// Says which elements are in which file: StoredPart::rank is the number of the file.
  const StoredParts& parts() const { return parts_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  /// Says which rank writes which elements.
  StoredParts parts_of_ranks() const { return {parameters_, written_, ranks_}; }
  std::vector<Dataset> datasets_of(int file) const;

 private:
  const std::vector<Parameter>& parameters_;
  const Layout& written_;
  int ranks_, files_;
  std::vector<State> states_;
  Layout layout_;
  StoredParts parts_;
};

/// Makes file number `file` in `folder`, without the elements of its datasets. `write_attributes` writes its root attributes.
/// Throws CallError. Called by the file's first rank.
void create_shared_file(const std::filesystem::path& folder, const SharedFiles& files, int file,
                        const std::function<void(h5::File&)>& write_attributes);

/// Writes one rank's elements to the files. All functions throw CallError.
class SharedFileWriter {
 public:
  SharedFileWriter(const std::filesystem::path& folder, const SharedFiles& files, std::uint64_t save_id, int rank)
      : folder_(folder), files_(files), save_id_(save_id), rank_(rank) {}
  /// Begins a slice: elements `range` of a tensor, which is the dataset `name` in all files that have a part of it.
  void begin(const std::string& name, std::size_t parameter, Extent extent, Range range);
  /// Writes elements of the slice. `range` is relative to the slice; calls are in the order of the elements.
  void add(Range range, const float* values);
  /// Waits until all elements are on the disk, and then writes this rank's reports.
  void finish();

 private:
  struct File {
    File(const std::filesystem::path& folder, const SharedFiles& files, int file);
    OutputFile output;
    std::map<std::string, std::uint64_t> offsets;  // of the datasets
    std::uint64_t sum = 0;                         // of this rank's elements, as in its report
  };
  struct Part {
    File* file;
    Range range;  // relative to the slice
    std::uint64_t offset;
    RunningSum sum;
  };
  void end_slice();

  std::filesystem::path folder_;
  const SharedFiles& files_;
  std::uint64_t save_id_;
  int rank_;
  std::map<int, File> open_;
  std::vector<Part> slice_;
};

/// Seals a file after all ranks have written to it. Used by the file's first rank.
class SharedFileSealer {
 public:
  SharedFileSealer(const std::filesystem::path& folder, const SharedFiles& files, int file, std::uint64_t save_id);
  /// Returns true if the reports of all ranks that write to the file are there. Throws CallError.
  bool is_written();
  /// Reads the file, compares each rank's elements with its report, adds the squares of the elements to the entries of their
  /// tensors in `squares`, and seals the file. Throws RunError if the file does not have what a rank wrote, or if a report is
  /// missing; throws CallError.
  FileSum seal(std::vector<kernels::ExactSum>& squares);

 private:
  struct Piece {  // consecutive elements of a dataset that one rank writes
    std::size_t dataset;
    int rank;
    std::size_t begin, end;  // relative to the dataset
  };
  /// The sum in each rank's report; by rank.
  std::map<int, std::uint64_t> reports(const InputFile& file) const;

  std::filesystem::path path_;
  int ranks_;
  std::uint64_t save_id_;
  std::vector<SharedFiles::Dataset> datasets_;
  std::vector<Piece> pieces_;
  std::optional<InputFile> polled_;     // is_written() opens the file once
  std::map<int, std::uint64_t> found_;  // by rank that writes to this file: the sum of what is in the file
};

}  // namespace fsdp
