#include "checkpoint/save_folder.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/stored.hpp"
#include "files/input_file.hpp"
#include "files/output_file.hpp"

namespace fsdp {

namespace fs = std::filesystem;

namespace {

struct Step {
  std::uint64_t update;
  fs::path folder;
  bool finite = true;  // as is_finite() says; set after the marker has been read
  auto operator<=>(const Step&) const = default;
};

constexpr const char* aside_suffix = ".damaged";

/// Returns all entries of the folder; empty if it does not exist.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  if (kind_of(folder) == PathKind::missing) return entries;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator(); entry.increment(error))
    entries.push_back(entry->path());
  if (error) throw CallError("read folder " + folder.string(), error.message());
  return entries;
}

/// Returns all steps, complete or not, the newest first. `warnings` receives a message for each save that was never finished.
std::vector<Step> all_steps(const fs::path& save_dir, std::vector<std::string>* warnings) {
  std::vector<Step> steps;
  for (const fs::path& path : entries_of(save_dir)) {
    if (const auto update = stored::update_of_step_name(path.filename().string()))
      steps.push_back({*update, path});
    else if (warnings && path.extension() == ".tmp" && stored::update_of_step_name(path.stem().string()))
      warnings->push_back(format("{} is incomplete (the run ended during the save); it is not used", path.string()));
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

/// Returns true if all parameters of the step are finite, so that a run can resume from it. Older versions of this program also
/// saved other parameters.
bool is_finite(const stored::Marker& marker) {
  return std::none_of(marker.norms.begin(), marker.norms.end(), [](const auto& norm) {
    return std::isnan(norm.second) && norm.first.find('/') == std::string::npos;  // a name without '/' is that of a parameter
  });
}

/// Returns the complete steps, the newest first.
std::vector<Step> complete_steps(const fs::path& save_dir, std::vector<std::string>* warnings) {
  std::vector<Step> complete;
  for (Step step : all_steps(save_dir, warnings)) {
    try {
      step.finite = is_finite(stored::read_complete(step.folder));
      complete.push_back(step);
    } catch (const RunError& problem) {
      if (warnings && complete.empty()) warnings->push_back(problem.what());  // problems of older steps do not matter
    } catch (const UserError&) {
      if (complete.empty()) throw;
    }
  }
  return complete;
}

}  // namespace

std::optional<fs::path> latest_checkpoint(const fs::path& save_dir, std::vector<std::string>* warnings) {
  const std::vector<Step> complete = complete_steps(save_dir, warnings);
  return complete.empty() ? std::nullopt : std::optional(complete.front().folder);
}

std::optional<std::uint64_t> latest_update(const fs::path& save_dir) {
  const std::vector<Step> complete = complete_steps(save_dir, nullptr);
  return complete.empty() ? std::nullopt : std::optional(complete.front().update);
}

std::vector<fs::path> damaged_checkpoints(const fs::path& save_dir, std::uint64_t update) {
  std::vector<fs::path> damaged;
  for (const Step& step : all_steps(save_dir, nullptr)) {
    if (step.update <= update) break;
    try {
      stored::read_complete(step.folder);
    } catch (const DamagedError&) {
      damaged.push_back(step.folder);
    } catch (const RunError&) {  // it was never complete: the next save of that step replaces it
    }
  }
  return damaged;
}

std::optional<fs::path> step_in_the_way(const fs::path& save_dir, std::uint64_t update) {
  for (const fs::path& path : entries_of(save_dir)) {
    const fs::path name = path.extension() == ".tmp" ? path.stem() : path.filename();
    const auto step = stored::update_of_step_name(name.string());
    if (step && *step > update && !holds_only_our_files(path, stored::is_step_file)) return path;
  }
  return std::nullopt;
}

std::string text_of_step_in_the_way(const fs::path& step) {
  return format(
      "{} is in the way of a save (it is no complete checkpoint, and cannot be replaced: it is a link, is no folder, or has "
      "files of other programs); move it away, or choose another `save folder`",
      step.string());
}

fs::path set_aside(const fs::path& folder) {
  fs::path to = folder;
  to += aside_suffix;
  for (int i = 2; kind_of(to) != PathKind::missing; ++i) to = folder.string() + format("{}-{}", aside_suffix, i);
  std::error_code error;
  fs::rename(folder, to, error);
  if (error)
    throw RunError(format(
        "{} is damaged and cannot be renamed ({}); move it away, or name another checkpoint with `checkpoint to restore`",
        folder.string(), error.message()));
  return to;
}

std::vector<fs::path> steps_set_aside(const fs::path& save_dir) {
  std::vector<fs::path> aside;
  for (const fs::path& path : entries_of(save_dir)) {
    const std::string name = path.filename().string();
    const std::size_t suffix = name.find(aside_suffix);
    if (suffix != std::string::npos && stored::update_of_step_name(name.substr(0, suffix))) aside.push_back(path);
  }
  std::sort(aside.begin(), aside.end());
  return aside;
}

fs::path best_checkpoint(const fs::path& save_dir) {
  std::error_code no_link;
  const fs::path name = fs::read_symlink(save_dir / best_name, no_link);
  const bool is_step = stored::update_of_step_name(name.string()) && kind_of(save_dir / name) == PathKind::folder;
  return is_step ? save_dir / name : fs::path();
}

void link_best(const fs::path& save_dir, std::uint64_t update) {
  const fs::path link = save_dir / best_name;
  std::error_code error;
  const fs::path named = fs::read_symlink(link, error);
  if (fs::symlink_status(link).type() != fs::file_type::not_found && !stored::update_of_step_name(named.string()))
    throw RunError(format("{} is no link to a step of this folder (another program made it); move it away", link.string()));
  stored::read_complete(save_dir / stored::step_name(update));
  if (named == stored::step_name(update)) return;
  fs::path made = link;
  made += temporary_suffix;
  fs::remove(made, error);
  fs::create_directory_symlink(stored::step_name(update), made, error);
  if (error) throw CallError("make link " + made.string(), error.message());
  rename_durably(made, link);
}

std::string remove_old_checkpoints(const fs::path& save_dir, std::size_t keep_last, std::uint64_t keep_every) {
  expect(keep_last > 0, "the newest step is kept");
  std::string problem;
  const auto note = [&problem](const std::string& what) { problem += (problem.empty() ? "" : "; ") + what; };
  std::vector<Step> steps;
  try {
    steps = complete_steps(save_dir, nullptr);
  } catch (const std::exception& error) {
    note(format("nothing was removed ({})", error.what()));
  }
  const auto last_finite = std::find_if(steps.begin(), steps.end(), [](const Step& step) { return step.finite; });
  const fs::path best = best_checkpoint(save_dir).filename();
  for (std::size_t i = keep_last; i < steps.size(); ++i) {
    const auto& [update, folder, finite] = steps[i];
    if (folder.filename() == best) continue;
    if (keep_every > 0 && update % keep_every == 0) continue;
    if (last_finite == steps.begin() + static_cast<std::ptrdiff_t>(i)) continue;
    std::error_code error;
    fs::path leaving = folder;
    leaving += ".tmp";  // the next save removes files that remain under this name
    // A user can make a step folder read-only in order to keep it.
    if (::access(folder.c_str(), W_OK) != 0) error.assign(errno, std::generic_category());
    if (!error) fs::rename(folder, leaving, error);
    if (error) {
      note(format("{} could not be removed ({})", folder.string(), error.message()));
      continue;
    }
    try {
      if (!remove_our_files(leaving, stored::is_step_file))
        note(format("{} is kept: it holds files that do not belong to a checkpoint", leaving.string()));
    } catch (const CallError& failure) {
      note(format("{} could not be removed ({})", leaving.string(), failure.what()));
    }
  }
  return problem;
}

}  // namespace fsdp
