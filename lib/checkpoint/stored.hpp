// The file names, dataset names, attributes and marker of docs/checkpoint-format.md, for both writers and readers.
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
/// The values of the attribute "format" in the index, in a rank file and in a consolidated file.
inline constexpr const char* index_kind = "fsdp checkpoint";
inline constexpr const char* rank_kind = "fsdp checkpoint, part of one rank";
inline constexpr const char* model_kind = "fsdp model";

std::string step_name(std::uint64_t update);
/// Returns 350 for "step-00000350"; nothing if `name` is not the name of a step.
std::optional<std::uint64_t> update_of_step_name(const std::string& name);
std::string rank_file_name(int rank, int world_size);
/// A note: the small file by which a rank reports to rank 0 that its rank file is on disk. Removed when the checkpoint is
/// completed.
std::string note_name(int rank, int world_size);
/// Returns true if fsdp uses this name for a file in a step folder.
bool is_step_file(const std::string& name);
/// The name of a dataset in a rank file.
std::string slice_name(const std::string& state, const std::string& parameter);
/// The name of a dataset in the index. Parameters are at the root, so that the index reads like a state dict.
std::string whole_name(const std::string& state, const std::string& parameter);

/// A part of a parameter that one rank writes.
struct WrittenSlice {
  std::size_t unit, parameter;  // indices in the layout
  Range range;                  // elements of the parameter
  std::size_t offset;           // index of the first element in the rank's part of the unit
};
/// Returns the slices that `rank` writes of a state with this extent (Extent::element for parameters). The replicas of a shard
/// write consecutive parts of the shard, so that each element is written once and all ranks write about equally much. States by
/// row or column are the same on all ranks: rank 0 writes them whole, and `range` is in elements of the state.
std::vector<WrittenSlice> written_slices(const Layout& layout, int rank, int world_size, Extent extent = Extent::element);

/// The extent of a state (parameters_state, "exp_avg", ...) of the unit's parameters; empty if the state is not saved. A unit
/// has the optimizer states of its update rule, and these states are saved only if the unit is trained.
std::optional<Extent> extent_of(const UnitSpec& unit, const std::string& state);
/// The shape of a parameter's state, as in PyTorch: [rows, 1] for the extent `row`, and [1, columns] for `column`.
Shape state_shape(const Shape& parameter, Extent extent);

/// Writes the attributes of a dataset in a rank file: the shape of the whole tensor, and the range of its elements.
void write_slice_attributes(h5::Node& dataset, const Shape& shape, Range range);

struct Index {
  CheckpointHeader header;
  std::vector<std::string> states;
  std::uint64_t save_id = 0;  // random, the same in all files of one save, so that readers detect files of another save
};
void write_index_attributes(h5::Node& node, const Index& index);
/// Throws UserError for another kind of file or another format version. Throws CallError if an attribute is missing.
Index read_index_attributes(const h5::Node& node, const std::string& name);

void write_progress(h5::Node& node, const Progress& progress);
Progress read_progress(const h5::Node& node);
/// The group in the index that has a dataset of bytes for each entry of UserData.
inline constexpr const char* user_data_group = "user_data";
void write_user_data(h5::File& file, const UserData& data);
std::map<std::string, std::size_t> user_data_sizes(const h5::File& file);
std::string read_user_data(const h5::File& file, const std::string& name);

/// The names of the stored states, parameters_state first.
void write_states(h5::Node& node, const std::vector<std::string>& states);
std::vector<std::string> read_states(const h5::Node& node);
/// Throws UserError unless the file's attributes have this `kind` and the format version of this program.
void check_kind(const h5::Node& node, const std::string& name, const std::string& kind);
/// Throws UserError if `found` is another format version: the file may be intact, but this program cannot read it.
void check_version(std::uint64_t found, const std::string& name);

/// The content of complete.json: all files of the checkpoint, with their sizes and checksums.
struct Marker {
  struct File {
    std::string name;
    FileSum sum;
  };
  std::uint64_t update = 0, save_id = 0;
  std::vector<File> files;
  std::map<std::string, double> norms = {};  // the L2 norm of each tensor when it was saved, by the tensor's name in the index
};
std::string marker_text(const Marker& marker);
/// Reads the marker of a complete checkpoint. Throws RunError with the reason if `folder` is not complete, and DamagedError, a
/// kind of RunError, if the folder was complete once (the marker is damaged, or a file is missing or has another size). Throws
/// UserError for another format version, or if the folder's name is that of another step; throws CallError if the system cannot
/// read the folder.
Marker read_complete(const std::filesystem::path& folder);

}  // namespace fsdp::stored
