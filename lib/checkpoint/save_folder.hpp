// The checkpoints (steps) in a save folder: finds the latest complete one, finds incomplete and damaged ones, removes old ones.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

/// Returns the newest complete step, judged by marker and file sizes; `warnings` names newer steps that are incomplete. Throws
/// UserError for a newer step that has an unknown format version or the name of another step. Throws CallError if the system
/// cannot read the folder of a newer step, since that step may be complete.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& save_dir,
                                                       std::vector<std::string>* warnings = nullptr);
/// The name of a symbolic link in the save folder, to the step with the smallest validation loss.
inline constexpr const char* best_name = "best";
/// Returns the step that the link names; empty if there is no such link or step.
std::filesystem::path best_checkpoint(const std::filesystem::path& save_dir);
/// Makes the link to the step of an update, or moves it there. Throws CallError, or RunError if there is no such complete step
/// or if something else has the link's name. Called on one rank only.
void link_best(const std::filesystem::path& save_dir, std::uint64_t update);

/// Returns the update of the latest complete step.
std::optional<std::uint64_t> latest_update(const std::filesystem::path& save_dir);

/// Returns the steps newer than `update` that were complete once and are damaged now.
std::vector<std::filesystem::path> damaged_checkpoints(const std::filesystem::path& save_dir, std::uint64_t update);

/// Returns a step newer than `update` that a save cannot replace, because its folder holds other files or is no folder; empty
/// if there is none. Unfinished saves under temporary names count, too.
std::optional<std::filesystem::path> step_in_the_way(const std::filesystem::path& save_dir, std::uint64_t update);
/// Returns the error message about a step that step_in_the_way() has returned.
std::string text_of_step_in_the_way(const std::filesystem::path& step);

/// Removes the folders of unfinished steps. No other run can need them: only the run that has the lock of the save folder
/// writes there. Other files in such a folder stay.
void remove_unfinished_steps(const std::filesystem::path& save_dir);

/// Renames a damaged step, so that no run uses it and no file is lost. Returns its new name. Throws RunError.
std::filesystem::path set_aside(const std::filesystem::path& folder);

/// Returns the steps that set_aside() has renamed and that still exist.
std::vector<std::filesystem::path> steps_set_aside(const std::filesystem::path& save_dir);

/// Removes complete steps, except the newest `keep_last` (at least 1), the newest with finite weights, the best one, and, if
/// `keep_every` is not 0, every step whose update is a multiple of `keep_every`. Renames a step folder before it removes the
/// files; removes only files of a checkpoint. Returns a message about the steps that could not be removed, else an empty one.
/// Called on one rank only; does not throw.
std::string remove_old_checkpoints(const std::filesystem::path& save_dir, std::size_t keep_last, std::uint64_t keep_every);

}  // namespace fsdp
