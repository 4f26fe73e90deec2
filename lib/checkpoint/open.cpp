// Opens the source of tensors that a path names: a checkpoint of ours, or a model of one of the formats. Where a path names
// none, this says what was expected.
#include <algorithm>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/stored.hpp"
#include "files/input_file.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

std::string expected() {
  std::string kinds;
  for (const ModelFormat* row : model_formats())
    kinds += format("{}{}", row == model_formats().back() ? " or " : ", ", row->what);
  return "expected a step folder, a save folder" + kinds;
}

bool is_there(const fs::path& path) { return kind_of(path) != PathKind::missing; }

/// Whether it was meant to be a step folder, complete or not.
bool is_step_folder(const fs::path& path) {
  return is_there(path / stored::marker_name) || is_there(path / stored::index_name) ||
         stored::update_of_step_name(path.filename().string());
}

bool has_steps(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder))
    if (stored::update_of_step_name(entry.path().filename().string())) return true;
  return false;
}

fs::path without_final_slash(const fs::path& path) { return path.has_filename() ? path : path.parent_path(); }

}  // namespace

std::unique_ptr<CheckpointReader> open_checkpoint(const fs::path& given, std::vector<std::string>* warnings, Verify verify) {
  const fs::path path = without_final_slash(given);
  if (!is_there(path))
    throw UserError(format("{} does not exist (expected a step folder or a save folder); check the path", path.string()));
  if (kind_of(path) != PathKind::folder)
    throw UserError(format("{} is not a folder (expected a step folder or a save folder); check the path", path.string()));
  if (is_step_folder(path)) return CheckpointReader::open(path, verify);
  std::vector<std::string> problems;
  const auto latest = latest_checkpoint(path, &problems);
  if (latest) {
    if (warnings) warnings->insert(warnings->end(), problems.begin(), problems.end());
    return CheckpointReader::open(*latest, verify);
  }
  throw UserError(
      format("{} holds no complete checkpoint ({}); check the path", path.string(),
             problems.empty() ? std::string("no folder step-NNNNNNNN is in it") : format("{}", fmt::join(problems, "; "))));
}

std::unique_ptr<TensorSource> open_tensor_source(const fs::path& given, std::vector<std::string>* warnings, Verify verify) {
  const fs::path path = without_final_slash(given);
  if (!is_there(path)) throw UserError(format("{} does not exist ({}); check the path", path.string(), expected()));
  const bool is_folder = kind_of(path) == PathKind::folder;
  if (is_folder && is_step_folder(path)) return CheckpointReader::open(path, verify);
  const auto& rows = model_formats();
  const auto row = std::find_if(rows.rbegin(), rows.rend(), [&](const ModelFormat* one) { return one->is(path); });
  const bool is_save_folder = is_folder && has_steps(path);
  if (row != rows.rend() && is_save_folder)  // a run that began with the model has saved beside it, perhaps
    throw UserError(
        format("{} is both {} and a save folder (step folders are in it); name one of the steps, or move the steps or the "
               "model's files elsewhere",
               path.string(), (*row)->what));
  if (row != rows.rend()) return (*row)->open(path, verify);
  if (is_save_folder) return open_checkpoint(path, warnings, verify);
  throw UserError(
      format("{} {} ({}); check the path", path.string(), is_folder ? "holds no model" : "is not a model", expected()));
}

}  // namespace fsdp
