// Compares the room in the save folder's file system with what a run will write, before its first update.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/saver.hpp"
#include "train/run_context.hpp"

namespace fsdp {

/// What a run will add to its save folder.
struct WillWrite {
  std::uint64_t step_bytes = 0, step_files = 0;
  std::uint64_t steps = 1;        // that are there at the same time, one being written, besides those that are there now
  std::uint64_t other_files = 0;  // such as flight records
};
/// What the file system or a quota leaves; empty: unknown, or no limit.
struct Room {
  std::optional<std::uint64_t> bytes, files;
};

/// The number of complete and damaged steps in a save folder; 0 if it is missing.
std::uint64_t steps_in(const std::filesystem::path& folder);
/// The number of files of a step, with its folder. `files` is SaveOptions::files.
std::uint64_t files_of_step(int files, int ranks);
/// The most files that a run makes besides its steps: a flight record for each rank, metrics, pages, locks and notes.
std::uint64_t other_files(int ranks);
/// The number of steps that a run adds to the `existing` ones of its folder, at the time when they are most. `update`: the
/// updates done; `last`: the last update, 0: unknown. Pure function.
std::uint64_t steps_to_add(const SaveOptions& options, std::uint64_t existing, std::uint64_t update, std::uint64_t last);

/// Returns a warning if `room` is less than what the run will write, else an empty text. `limit` names the room: "the quota".
/// Throws RunError if not even one step fits. Pure function.
std::string judge_room(const std::filesystem::path& folder, const WillWrite& need, const Room& room, const std::string& limit);

/// What limits the files of a folder, and its name: the free space of its file system and, on Lustre, the user's quota.
std::vector<std::pair<std::string, Room>> rooms_of(const std::filesystem::path& folder);

/// Returns the first of these paths that is below a scratch folder, which sites purge: $SCRATCH (`scratch`, empty: none), or a
/// folder with "scratch" in its name. Empty if there is none. Pure function.
std::string path_on_scratch(const std::vector<std::filesystem::path>& paths, const std::string& scratch);

/// Rank 0 removes unfinished steps from the save folder, sets (--stripe) and prints its striping on Lustre, and makes the
/// checks above. `last`: the last update; 0: unknown. Collective over run.world. Throws CollectiveError.
void check_save_folder(const RunContext& run, const Layout& layout, bool with_average, const Progress& progress,
                       std::uint64_t last);

}  // namespace fsdp
