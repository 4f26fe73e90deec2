// Opens the source of tensors that a path names. This is the one place that knows all kinds of sources; where a path names
// none, it says what it found there.
#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/stored.hpp"
#include "files/input_file.hpp"
#include "h5/h5.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

constexpr const char* expected = "expected a step folder, a save folder, a Hugging Face folder or a consolidated HDF5 file";

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

std::unique_ptr<TensorSource> open_file(const fs::path& path, Verify verify) {
  if (path.extension() == ".safetensors")
    throw UserError(format("{} is a single file (the model's config.json is needed, too) give its folder", path.string()));
  if (!h5::File::looks_like_hdf5(path))
    throw UserError(format("{} is not a model ({}) check the path", path.string(), expected));
  return open_consolidated(path, verify);
}

}  // namespace

std::unique_ptr<CheckpointReader> open_checkpoint(const fs::path& given, std::vector<std::string>* warnings, Verify verify) {
  const fs::path path = without_final_slash(given);
  if (!is_there(path))
    throw UserError(format("{} does not exist (expected a step folder or a save folder) check the path", path.string()));
  if (kind_of(path) != PathKind::folder)
    throw UserError(format("{} is not a folder (expected a step folder or a save folder) check the path", path.string()));
  if (is_step_folder(path)) return CheckpointReader::open(path, verify);
  std::vector<std::string> problems;
  const auto latest = latest_checkpoint(path, &problems);
  if (latest) {
    if (warnings) warnings->insert(warnings->end(), problems.begin(), problems.end());
    return CheckpointReader::open(*latest, verify);
  }
  throw UserError(
      format("{} holds no complete checkpoint ({}) check the path", path.string(),
             problems.empty() ? std::string("no folder step-NNNNNNNN is in it") : format("{}", fmt::join(problems, "; "))));
}

std::unique_ptr<TensorSource> open_tensor_source(const fs::path& given, std::vector<std::string>* warnings, Verify verify) {
  const fs::path path = without_final_slash(given);
  if (!is_there(path)) throw UserError(format("{} does not exist ({}) check the path", path.string(), expected));
  if (kind_of(path) != PathKind::folder) return open_file(path, verify);
  if (is_step_folder(path)) return CheckpointReader::open(path, verify);
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"})
    if (is_there(path / name)) return open_hugging_face(path, verify);
  if (has_steps(path)) return open_checkpoint(path, warnings, verify);
  throw UserError(format("{} holds no model ({}) check the path", path.string(), expected));
}

}  // namespace fsdp
