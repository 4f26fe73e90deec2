// A folder for files that are of use only as long as this process works with them.
#pragma once

#include <filesystem>
#include <string_view>

namespace fsdp {

class ScratchFolder {
 public:
  /// Makes PARENT/NAME-XXXXXX, a new folder that only this user may enter, and PARENT if it is not there. Throws UserError.
  ScratchFolder(const std::filesystem::path& parent, std::string_view name);
  ScratchFolder(const ScratchFolder&) = delete;
  /// Removes the folder with all that lies in it; what cannot be removed stays.
  ~ScratchFolder();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace fsdp
