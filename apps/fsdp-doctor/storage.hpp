// The folder for checkpoints: whether all nodes share it, and HDF5 files in it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "files/scratch_folder.hpp"
#include "fsdp-doctor/job.hpp"

namespace fsdp {

/// A new folder below the save folder, in which files are made and read. Rank 0's object makes it, and removes it with all that
/// the checks have left there; the save folder, too, if it was not there before.
class ProbeFolder {
 public:
  /// On rank 0: makes it. Throws UserError.
  explicit ProbeFolder(const std::filesystem::path& save_dir);
  /// On other ranks: names the one that rank 0 has made.
  ProbeFolder(const std::filesystem::path& save_dir, const std::string& name) : path_(save_dir / name) {}
  ProbeFolder(const ProbeFolder&) = delete;
  ~ProbeFolder();

  const std::filesystem::path& path() const { return path_; }

 private:
  bool made_save_dir_ = false;
  std::optional<ScratchFolder> mine_;  // of rank 0
  std::filesystem::path path_;
};

/// What a node did in the folder that node 0 has made.
struct FolderUse {
  std::string node = {};
  std::string read_problem = {};   // why it cannot read what node 0 has written; empty: it can
  std::string write_problem = {};  // the same of writing
  bool is_seen = true;             // node 0 reads what it has written
};
/// `folder` is its whole path, `file_system` "nfs4" or the like; nodes[0] is node 0.
Finding judge_save_folder(const std::string& folder, const std::string& file_system, const std::vector<FolderUse>& nodes);

/// `problems` by node; empty: what was written was read.
Finding judge_hdf5(const std::string& headers, const std::string& library, const std::vector<std::string>& nodes,
                   const std::vector<std::string>& problems);

std::optional<Finding> check_save_folder(DoctorJob& job);
std::optional<Finding> check_hdf5(DoctorJob& job);

/// "nfs4", "lustre": what the file system of a folder is called in /proc/self/mounts.
std::string file_system_of(const std::filesystem::path& folder);

}  // namespace fsdp
