// Opens a path as a source of tensors: a checkpoint of this program, or a model in one of the formats (model_format.hpp). For
// any other path the message names a common mistake, such as a GGUF file, or what was expected.
#include <algorithm>
#include <string_view>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/stored.hpp"
#include "files/input_file.hpp"
#include "nn/families/config_keys.hpp"

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

/// Returns true if the path is meant to be a step folder, complete or not.
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

/// Returns the alphabetically first name in the folder for which fits(name) is true; an empty string if there is none.
template <class Fits>
std::string first_name(const fs::path& folder, const Fits& fits) {
  std::string first;
  if (kind_of(folder) != PathKind::folder) return first;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if ((first.empty() || name < first) && fits(name)) first = name;
  }
  return first;
}

bool begins_with(const fs::path& file, std::string_view bytes) {
  return kind_of(file) == PathKind::file && InputFile(file).beginning(bytes.size()) == bytes;
}

/// Returns true if torch.save wrote this file, whatever it contains.
bool is_pickled(const fs::path& file) {
  const std::string kind = file.extension().string();
  return (kind == ".bin" || kind == ".pt" || kind == ".pth" || kind == ".ckpt") &&
         (begins_with(file, "PK\x03\x04") || begins_with(file, "\x80\x02"));
}

}  // namespace

std::optional<std::string> adapter_in(const fs::path& path) {
  const auto is_adapter = [](const std::string& name) {
    return name == "adapter_config.json" || name.starts_with("adapter_model.");
  };
  const std::string name = path.filename().string(), found = is_adapter(name) ? name : first_name(path, is_adapter);
  if (found.empty()) return std::nullopt;
  return format(
      "{} {} an adapter such as LoRA's ({}: changes to the weights of a model); merge it into that model (in Python: peft's "
      "merge_and_unload(), then save_pretrained()), and give the result",
      path.string(), found == name ? "is of" : "holds", found);
}

std::optional<std::string> shards_without_index(const fs::path& folder, const std::string& name) {
  const std::string shard = first_name(folder, [&](const std::string& file) {
    return file.starts_with(name + "-") && file.find("-of-") != std::string::npos && file.ends_with(".safetensors");
  });
  if (shard.empty()) return std::nullopt;
  return format("{} has {}, but no {}.safetensors.index.json (which maps tensors to files); copy the whole folder",
                folder.string(), shard, name);
}

std::optional<std::string> model_of_other_kind(const fs::path& path) {
  constexpr const char* as_safetensors =
      "save the model as safetensors (in Python: transformers' save_pretrained()), and give that folder";
  if (const auto adapter = adapter_in(path)) return adapter;
  if (const auto shards = shards_without_index(path, "model")) return shards;
  if (kind_of(path) == PathKind::file) {
    if (path.extension() == ".gguf" || begins_with(path, "GGUF"))
      return format("{} is a GGUF file (llama.cpp's form of a model); give the Hugging Face folder that it was made from",
                    path.string());
    if (is_pickled(path))
      return format("{} is pickled by PyTorch (pickled files are not read); {}", path.string(), as_safetensors);
    return std::nullopt;
  }
  const auto ends = [](const char* end) { return [end](const std::string& name) { return name.ends_with(end); }; };
  const std::string pickled = first_name(path, [&](const std::string& name) {
    for (const char* other : {"training_args", "optimizer", "scheduler", "scaler", "rng_state"})
      if (name.starts_with(other)) return false;
    return is_pickled(path / name) || (name.starts_with("pytorch_model") && name.find(".bin") != name.npos);
  });
  if (!pickled.empty())
    return format("{} has its weights pickled by PyTorch ({}: such files are not read), and no model.safetensors; {}",
                  path.string(), pickled, as_safetensors);
  if (const std::string gguf = first_name(path, ends(".gguf")); !gguf.empty())
    return format(
        "{} has a GGUF file ({}: llama.cpp's form of a model), and no model.safetensors; give the Hugging Face folder "
        "that it was made from",
        path.string(), gguf);
  if (const std::string shard = first_name(path, ends(".distcp")); !shard.empty())
    return format("{} is a checkpoint of torch.distributed.checkpoint ({}: such files are not read); {}", path.string(), shard,
                  as_safetensors);
  for (const char* other : {"tf_model.h5", "flax_model.msgpack"})
    if (is_there(path / other))
      return format("{} has its weights in {} (such files are not read), and no model.safetensors; {}", path.string(), other,
                    as_safetensors);
  if (const std::string other = first_name(path, ends(".safetensors")); !other.empty())
    return format(
        "{} has {}, and no model.safetensors (the weights are read from there); rename that file if its tensors have "
        "the names of transformers, or {}",
        path.string(), other, as_safetensors);
  return std::nullopt;
}

std::unique_ptr<CheckpointReader> open_checkpoint(const fs::path& given, std::vector<std::string>* warnings, Verify verify,
                                                  Weights weights) {
  const fs::path path = without_final_slash(given);
  if (!is_there(path))
    throw UserError(format("{} does not exist (expected a step folder or a save folder); check the path", path.string()));
  if (kind_of(path) != PathKind::folder)
    throw UserError(format("{} is not a folder (expected a step folder or a save folder); check the path", path.string()));
  if (is_step_folder(path)) return CheckpointReader::open(path, verify, weights);
  std::vector<std::string> problems;
  const auto latest = latest_checkpoint(path, &problems);
  if (latest) {
    if (const fs::path best = best_checkpoint(path); !best.empty() && best.filename() != latest->filename())
      problems.push_back(format("the last step of {}, {}, is used, and not the best one, {}; give {} for that one",
                                path.string(), latest->filename().string(), best.filename().string(),
                                (path / best_name).string()));
    if (warnings) warnings->insert(warnings->end(), problems.begin(), problems.end());
    return CheckpointReader::open(*latest, verify, weights);
  }
  throw UserError(
      format("{} holds no complete checkpoint ({}); check the path", path.string(),
             problems.empty() ? std::string("no folder step-NNNNNNNN is in it") : format("{}", fmt::join(problems, "; "))));
}

std::unique_ptr<TensorSource> open_tensor_source(const fs::path& given, std::vector<std::string>* warnings, Verify verify,
                                                 Weights weights) {
  const fs::path path = without_final_slash(given);
  if (!is_there(path)) throw UserError(format("{} does not exist ({}); check the path", path.string(), expected()));
  const bool is_folder = kind_of(path) == PathKind::folder;
  if (is_folder && is_step_folder(path)) return CheckpointReader::open(path, verify, weights);
  const auto& rows = model_formats();
  const auto row = std::find_if(rows.rbegin(), rows.rend(), [&](const ModelFormat* one) { return one->is(path); });
  const bool is_save_folder = is_folder && has_steps(path);
  if (row != rows.rend() && is_save_folder)  // perhaps a run started from the model and saved into its folder
    throw UserError(
        format("{} is both {} and a save folder (step folders are in it); give one of the steps, or move the steps or the "
               "model's files to another folder",
               path.string(), (*row)->what));
  if (row != rows.rend() && weights == Weights::average)
    throw UserError(
        format("{} has no average of the weights (it is {}; only checkpoints of a run can have one); leave "
               "out `weights of the average`, or give a checkpoint",
               path.string(), (*row)->what));
  if (row != rows.rend()) {
    auto source = (*row)->open(path, verify);
    if (warnings)
      for (std::string& text : source->warnings()) warnings->push_back(std::move(text));
    if (warnings && is_folder)
      if (auto doubt = keys::doubt_config(path)) warnings->push_back(std::move(*doubt));
    return source;
  }
  if (is_save_folder) return open_checkpoint(path, warnings, verify, weights);
  if (const auto other = model_of_other_kind(path)) throw UserError(*other);
  throw UserError(
      format("{} {} ({}); check the path", path.string(), is_folder ? "holds no model" : "is not a model", expected()));
}

}  // namespace fsdp
