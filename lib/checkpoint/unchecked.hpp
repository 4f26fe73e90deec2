// HDF5 files that nothing vouches for: HDF5 may crash, or never return, where one is damaged or meant to.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fsdp {

/// Calls HDF5, in a process of its own, for all that a reader of this file may call it for: the datasets of these groups, and
/// of those that the file names as states. Throws DamagedError, with what the user can do, if that process does not come to
/// its end.
void try_unchecked(const std::filesystem::path& path, std::vector<std::string> groups, const std::string& remedy);

}  // namespace fsdp
