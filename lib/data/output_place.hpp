// Checks of the paths at which token files are written.
#pragma once

#include <filesystem>

namespace fsdp {

/// Throws UserError unless a file with this path can be created.
void require_place(const std::filesystem::path& path);
/// Removes the temporary file of a killed process. Throws UserError if the process is alive, that is, if the file is locked.
void remove_left_over(const std::filesystem::path& temporary);

}  // namespace fsdp
