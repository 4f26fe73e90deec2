// Where token files are written.
#pragma once

#include <filesystem>

namespace fsdp {

/// Throws UserError unless a file of this name can be made.
void require_place(const std::filesystem::path& path);
/// Removes what a process has left there that was killed. Throws UserError if that process lives and has it locked.
void remove_left_over(const std::filesystem::path& temporary);

}  // namespace fsdp
