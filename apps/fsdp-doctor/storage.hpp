// Checks of the folder for checkpoints: whether all nodes share it, and HDF5 files in it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "files/scratch_folder.hpp"
#include "fsdp-doctor/job.hpp"

namespace fsdp {

/// A new folder below the save folder, in which the checks write and read files. Rank 0's object makes it, and removes it with
/// all its files. It also removes the save folder, if that did not exist before.
class ProbeFolder {
 public:
  /// For rank 0: makes the folder. Throws UserError.
  explicit ProbeFolder(const std::filesystem::path& save_dir);
  /// For other ranks: refers to the folder that rank 0 has made.
  ProbeFolder(const std::filesystem::path& save_dir, const std::string& name) : path_(save_dir / name) {}
  ProbeFolder(const ProbeFolder&) = delete;
  ~ProbeFolder();

  const std::filesystem::path& path() const { return path_; }

 private:
  bool made_save_dir_ = false;
  std::optional<ScratchFolder> mine_;  // on rank 0
  std::filesystem::path path_;
};

/// How a node used the folder that node 0 has made.
struct FolderUse {
  std::string node = {};
  std::string read_problem = {};   // why it cannot read node 0's file; empty: it can
  std::string write_problem = {};  // why it cannot write; empty: it can
  bool is_seen = true;             // node 0 reads this node's file
};
/// `folder` is its full path; `file_system` is "nfs4" or similar; nodes[0] is node 0.
Finding judge_save_folder(const std::string& folder, const std::string& file_system, const std::vector<FolderUse>& nodes);

/// `problems` is indexed by node; empty: the file was written and read correctly.
Finding judge_hdf5(const std::string& headers, const std::string& library, const std::vector<std::string>& nodes,
                   const std::vector<std::string>& problems);

std::optional<Finding> check_save_folder(DoctorJob& job);
std::optional<Finding> check_hdf5(DoctorJob& job);

/// Returns the type of a folder's file system in /proc/self/mounts: "nfs4", "lustre".
std::string file_system_of(const std::filesystem::path& folder);

}  // namespace fsdp
