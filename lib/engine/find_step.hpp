// Finds the checkpoint from which a job continues: the latest good step of a folder, or a step that is named.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "comm/communicator.hpp"
#include "engine/same_files.hpp"

namespace fsdp {

struct StepSearch {
  /// Opens the checkpoint; null: there is none. Only reads files; the result may differ between ranks.
  std::function<std::unique_ptr<CheckpointReader>()> open;
  /// Throws UserError if the checkpoint, which may be null, is not acceptable; may also reset it. Null: all are.
  std::function<void(std::unique_ptr<CheckpointReader>&)> accept = nullptr;
  /// The folder of steps. If the latest is damaged, it is renamed, and the one before is taken. Empty: none is passed over.
  std::filesystem::path folder = {};
  /// Called on rank 0 if there is no checkpoint, with the steps that were passed over. May throw. Null: does nothing.
  std::function<void(const std::vector<std::string>& passed_over)> none = nullptr;
  /// The files that all ranks must have (require_same_files()). Null: they are not compared.
  std::function<FileLists(const CheckpointReader*)> files = nullptr;
  bool verify = true;  // the checksums of all files, each rank a share; false: only the sizes of `files` are compared
};
struct FoundStep {
  std::unique_ptr<CheckpointReader> checkpoint;  // the same step on all ranks; null: there is none
  std::vector<std::string> passed_over;          // "... is damaged .... It was renamed to ..."
};
/// Collective over world; throws CollectiveError.
FoundStep find_step(Group& world, const StepSearch& search);

/// Renames damaged steps after `update`, because later saves will use their names, and adds a sentence for each to `said`. Call
/// it on one rank.
void set_damaged_aside(const std::filesystem::path& folder, std::uint64_t update, std::vector<std::string>& said);

}  // namespace fsdp
