// A temporary folder for files that only this process needs.
#pragma once

#include <filesystem>
#include <string_view>

namespace fsdp {

class ScratchFolder {
 public:
  /// Creates PARENT if it does not exist, and in it NAME-XXXXXX, a new folder that only this user may enter. Throws UserError.
  ScratchFolder(const std::filesystem::path& parent, std::string_view name);
  ScratchFolder(const ScratchFolder&) = delete;
  /// Removes the folder and all files in it; files that cannot be removed stay.
  ~ScratchFolder();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace fsdp
