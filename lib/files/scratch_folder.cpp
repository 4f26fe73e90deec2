#include "files/scratch_folder.hpp"

#include <cerrno>
#include <cstdlib>
#include <string>
#include <system_error>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace fs = std::filesystem;

ScratchFolder::ScratchFolder(const fs::path& parent, std::string_view name) {
  std::error_code problem;
  if (!parent.empty()) fs::create_directories(parent, problem);
  std::string path = (parent / format("{}-XXXXXX", name)).string();
  if (!problem && !::mkdtemp(path.data())) problem.assign(errno, std::generic_category());
  if (problem)
    throw UserError(format("{} cannot be written to ({}); choose a writable folder with free space",
                           parent.empty() ? "this folder" : parent.string(), problem.message()));
  path_ = path;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace fsdp
