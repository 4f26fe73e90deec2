// What lies in a save folder: steps, complete or not, and which of them go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

/// The newest complete step, if there is one, as far as markers and sizes tell; newer ones that are not complete are named in
/// `warnings`. Throws UserError if it is of a format version that this program does not know, or has the name of another step,
/// and CallError where the system cannot tell what is there: it may be whole.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& save_dir,
                                                       std::vector<std::string>* warnings = nullptr);
/// The update of the latest step.
std::optional<std::uint64_t> latest_update(const std::filesystem::path& save_dir);

/// Steps after `update` that were complete once, and of which something is missing now.
std::vector<std::filesystem::path> damaged_checkpoints(const std::filesystem::path& save_dir, std::uint64_t update);

/// A step after `update`, or an unfinished save of one, that is not complete and that no save can replace, if there is one.
std::optional<std::filesystem::path> step_in_the_way(const std::filesystem::path& save_dir, std::uint64_t update);
/// What is told of it.
std::string text_of_step_in_the_way(const std::filesystem::path& step);

/// Renames a step that turned out to be damaged, so that nothing takes it for one and nothing is lost. Returns its new name.
/// Throws RunError.
std::filesystem::path set_aside(const std::filesystem::path& folder);

/// What set_aside() has renamed and is still there.
std::vector<std::filesystem::path> steps_set_aside(const std::filesystem::path& save_dir);

/// Removes complete steps but the newest `keep_last` (at least 1), the newest one whose weights are finite, and those whose
/// update is a multiple of `keep_every` (0: no such). A step stops being one before its files go, and no other files go.
/// Returns what could not be removed, in words; empty if nothing. For one rank alone; throws nothing.
std::string remove_old_checkpoints(const std::filesystem::path& save_dir, std::size_t keep_last, std::uint64_t keep_every);

}  // namespace fsdp
