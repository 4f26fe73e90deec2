// What a path is: one place that knows all kinds of sources, and says what it found where it finds none.
#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/stored.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

constexpr const char* expected = "expected a step folder, a save folder, a Hugging Face folder or a consolidated HDF5 file";

/// Whether it was meant to be a step folder, complete or not.
bool is_step_folder(const fs::path& path) {
  return fs::exists(path / stored::marker_name) || fs::exists(path / stored::index_name) ||
         stored::update_of_step_name(path.filename().string());
}

bool has_steps(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder))
    if (stored::update_of_step_name(entry.path().filename().string())) return true;
  return false;
}

fs::path without_final_slash(const fs::path& path) { return path.has_filename() ? path : path.parent_path(); }

std::unique_ptr<TensorSource> open_file(const fs::path& path) {
  if (path.extension() == ".safetensors")
    throw UserError(format("{} is a single file (the model's config.json is needed, too) give its folder", path.string()));
  if (!h5::File::looks_like_hdf5(path))
    throw UserError(format("{} is not a model ({}) check the path", path.string(), expected));
  const h5::File file = h5::File::open(path);
  const std::string kind = file.has_attribute("format") ? file.read_text("format") : "";
  if (kind == stored::index_kind || kind == stored::rank_kind)
    throw UserError(format("{} is one file of a checkpoint (its folder is needed) give {}", path.string(),
                           path.has_parent_path() ? path.parent_path().string() : "its folder"));
  if (kind != stored::model_kind)
    throw UserError(
        format("{} is an HDF5 file of another kind (fsdp-consolidate did not write it) check the path", path.string()));
  return open_consolidated(path);
}

}  // namespace

std::unique_ptr<CheckpointReader> open_checkpoint(const fs::path& given, std::vector<std::string>* warnings) {
  const fs::path path = without_final_slash(given);
  if (!fs::exists(path))
    throw UserError(format("{} does not exist (expected a step folder or a save folder) check the path", path.string()));
  if (!fs::is_directory(path))
    throw UserError(format("{} is not a folder (expected a step folder or a save folder) check the path", path.string()));
  if (is_step_folder(path)) return CheckpointReader::open(path);
  std::vector<std::string> problems;
  const auto latest = latest_checkpoint(path, &problems);
  if (latest) {
    if (warnings) warnings->insert(warnings->end(), problems.begin(), problems.end());
    return CheckpointReader::open(*latest);
  }
  throw UserError(
      format("{} holds no complete checkpoint ({}) check the path", path.string(),
             problems.empty() ? std::string("no folder step-NNNNNNNN is in it") : format("{}", fmt::join(problems, "; "))));
}

std::unique_ptr<TensorSource> open_tensor_source(const fs::path& given, std::vector<std::string>* warnings) {
  const fs::path path = without_final_slash(given);
  if (!fs::exists(path)) throw UserError(format("{} does not exist ({}) check the path", path.string(), expected));
  if (!fs::is_directory(path)) return open_file(path);
  if (is_step_folder(path)) return CheckpointReader::open(path);
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"})
    if (fs::exists(path / name)) return open_hugging_face(path);
  if (has_steps(path)) return open_checkpoint(path, warnings);
  throw UserError(format("{} holds no model ({}) check the path", path.string(), expected));
}

}  // namespace fsdp
