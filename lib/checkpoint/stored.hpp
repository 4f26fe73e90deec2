// The names, attributes and the marker of docs/checkpoint-format.md, for those who write and those who read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "files/checksum.hpp"
#include "h5/h5.hpp"

namespace fsdp::stored {

inline constexpr std::uint64_t version = 1;
inline constexpr const char* index_name = "checkpoint.h5";
inline constexpr const char* marker_name = "complete.json";
/// What the attribute "format" of each kind of file says.
inline constexpr const char* index_kind = "fsdp checkpoint";
inline constexpr const char* rank_kind = "fsdp checkpoint, part of one rank";
inline constexpr const char* model_kind = "fsdp model";

std::string step_name(std::uint64_t update);
/// Nothing if `name` is not that of a step.
std::optional<std::uint64_t> update_of_step_name(const std::string& name);
std::string rank_file_name(int rank, int world_size);
/// The file by which a rank tells rank 0 that its own file is on the disk; it is removed when the step is completed.
std::string note_name(int rank, int world_size);
/// Whether we give this name to a file in a step folder.
bool is_step_file(const std::string& name);
/// Inside a rank file.
std::string slice_name(const std::string& state, const std::string& parameter);
/// Inside the index: parameters at the root, so that it reads as a state dict.
std::string whole_name(const std::string& state, const std::string& parameter);

/// A part of a parameter that one rank writes.
struct WrittenSlice {
  std::size_t unit, parameter;  // indices
  Range range;                  // elements of the parameter
  std::size_t offset;           // where they lie in the rank's part of the unit, in elements
};
/// What `rank` writes: of each unit's shard the replicas take consecutive shares, so that every element is written once, by
/// ranks that write equally much. Of states by row or column, which all have, rank 0 writes all, and `range` is of the state.
std::vector<WrittenSlice> written_slices(const Layout& layout, int rank, int world_size, Extent extent = Extent::element);

/// How large the state `state` (parameters_state, ...) of the unit's parameters is; nothing if it is not saved: the optimizer's
/// states are for what is trained, those of the unit's rule.
std::optional<Extent> extent_of(const UnitSpec& unit, const std::string& state);
/// The shape of a state of a parameter, as in PyTorch: [rows, 1] for the extent `row`, and [1, columns] for `column`.
Shape state_shape(const Shape& parameter, Extent extent);

struct Index {
  CheckpointHeader header;
  std::vector<std::string> states;
  std::uint64_t save_id = 0;  // the same in all files of one save
};
void write_index_attributes(h5::Node& node, const Index& index);
/// Throws UserError (another kind of file, a newer version) or CallError (an attribute is missing).
Index read_index_attributes(const h5::Node& node, const std::string& name);

void write_progress(h5::Node& node, const Progress& progress);
Progress read_progress(const h5::Node& node);
/// Names of the states that are stored, parameters_state first.
void write_states(h5::Node& node, const std::vector<std::string>& states);
std::vector<std::string> read_states(const h5::Node& node);
/// Throws UserError unless the file says that it is of this kind, in a version that we know.
void check_kind(const h5::Node& node, const std::string& name, const std::string& kind);
/// Throws UserError for a file of another format version: it may be whole, but this program cannot read it.
void check_version(std::uint64_t found, const std::string& name);

/// complete.json: all files, and what they must be.
struct Marker {
  struct File {
    std::string name;
    FileSum sum;
  };
  std::uint64_t update = 0, save_id = 0;
  std::vector<File> files;
  std::map<std::string, double> norms = {};  // of tensors when they were saved, by their names in the index; older saves: none
};
std::string marker_text(const Marker& marker);
/// Throws RunError that says why `folder` is not a complete checkpoint: DamagedError if it was one (a bad marker, a file
/// missing or of another size). Throws UserError if it is of another format version, or its name is that of another step; and
/// CallError where the system cannot tell what is there.
Marker read_complete(const std::filesystem::path& folder);

}  // namespace fsdp::stored
