// Checks of the folder for checkpoints: that all nodes share it, and that HDF5 files can be written and read in it. Checks of
// the folder for state in files (--nvme-path): that it is on a drive of the node, and how fast that is.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "files/scratch_folder.hpp"
#include "fsdp-doctor/job.hpp"

namespace fsdp {

/// A new folder in the save folder, in which the checks write and read files. Rank 0's object makes the new folder, and its
/// destructor removes it with all files, and also the save folder if that did not exist before.
class ProbeFolder {
 public:
  /// For rank 0: makes the folder. Throws UserError.
  explicit ProbeFolder(const std::filesystem::path& save_dir);
  /// For other ranks: refers to the folder `name` that rank 0 has made.
  ProbeFolder(const std::filesystem::path& save_dir, const std::string& name) : path_(save_dir / name) {}
  ProbeFolder(const ProbeFolder&) = delete;
  ~ProbeFolder();

  const std::filesystem::path& path() const { return path_; }

 private:
  bool made_save_dir_ = false;
  std::optional<ScratchFolder> mine_;  // on rank 0
  std::filesystem::path path_;
};

/// How a node could use the folder that node 0 has made.
struct FolderUse {
  std::string node = {};
  std::string read_problem = {};   // why the node cannot read node 0's file; empty if it can
  std::string write_problem = {};  // why the node cannot write a file; empty if it can
  bool is_seen = true;             // true if node 0 can read this node's file
};
/// `folder` is the full path of the save folder; `file_system` is "nfs4" or similar; nodes[0] is node 0.
Finding judge_save_folder(const std::string& folder, const std::string& file_system, const std::vector<FolderUse>& nodes);

/// `headers` is the version of HDF5 that fsdp was compiled with; `library` is the version that it has loaded. `problems` is
/// indexed by node; a text is empty if the node has written and read a file correctly.
Finding judge_hdf5(const std::string& headers, const std::string& library, const std::vector<std::string>& nodes,
                   const std::vector<std::string>& problems);

/// A node's folder for state. Rates are those of all ranks of the node together, in bytes per second.
struct StateFolder {
  std::string node = {};
  std::string file_system = {};  // "ext4", "xfs"
  std::string problem = {};      // why no state can be there: an error message; empty if it can
  std::string warning = {};      // why it should not be there; empty if it should
  double free_bytes = 0, write = 0, read = 0, both = 0;
};
Finding judge_state_folder(const std::string& folder, const std::vector<StateFolder>& nodes);

std::optional<Finding> check_save_folder(DoctorJob& job);
std::optional<Finding> check_hdf5(DoctorJob& job);
/// Returns no finding without --nvme-path.
std::optional<Finding> check_state_folder(DoctorJob& job);

/// Returns the type of a folder's file system in /proc/self/mounts: "nfs4", "lustre".
std::string file_system_of(const std::filesystem::path& folder);

}  // namespace fsdp
