// Tensors in files that do not describe a model: safetensors of any program, and other names for the tensors of a source.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/tensor_source.hpp"
#include "files/input_file.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

bool is_safetensors(const fs::path& path) {
  return path.extension() == ".safetensors" && kind_of(path) == PathKind::file && !path.filename().string().starts_with('.');
}

/// The safetensors files of a folder with parameters, sorted; fsdp-consolidate writes optimizer states next to them.
std::vector<fs::path> safetensors_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (is_safetensors(entry.path()) && !entry.path().filename().string().starts_with("optimizer"))
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

class PlainSafetensors final : public TensorSource {
 public:
  PlainSafetensors(const fs::path& path, const std::vector<fs::path>& files, Verify verify) : path_(path) {
    std::vector<Parameter> all;
    for (const fs::path& file : files) {
      files_.push_back(std::make_unique<SafetensorsFile>(file, verify));
      for (const StoredTensor& tensor : files_.back()->tensors()) {
        if (!places_.emplace(tensor.name, Place{files_.back().get(), &tensor}).second)
          throw UserError(format("{} holds {} a second time (it is unknown which copy is right); remove one copy",
                                 file.string(), tensor.name));
        all.push_back({tensor.name, tensor.shape, {}, false, -1});
      }
    }
    if (all.empty()) throw UserError(format("{} has no tensors, so there is nothing to load; check the path", path_.string()));
    model_ = StoredModel(std::move(all));
  }

  StoredModel model() const override { return model_; }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, place] : places_) all.push_back(name);
    return all;
  }
  bool has_state(const std::string& state, const std::string& name) const override {
    return state == parameters_state && places_.contains(name);
  }
  Shape state_shape(const std::string& state, const std::string& name) const override {
    return locate(state, name).tensor->shape;
  }
  void read_state(const std::string& state, const std::string& name, Range range, float* out) const override {
    const Place& place = locate(state, name);
    place.file->read(*place.tensor, range, out);
    bytes_read_ += range.size() * sizeof(float);
  }
  std::size_t bytes_read() const override { return bytes_read_; }
  std::string description() const override { return path_.string(); }
  std::string holder_of(const std::string& name) const override { return locate(parameters_state, name).file->path().string(); }
  std::vector<fs::path> files() const override {
    std::vector<fs::path> all;
    for (const auto& file : files_) all.push_back(file->path());
    return all;
  }

 private:
  struct Place {
    const SafetensorsFile* file;
    const StoredTensor* tensor;
  };
  const Place& locate(const std::string& state, const std::string& name) const {
    if (!has_state(state, name)) throw UserError(format("{} has no tensor {}; check the name", path_.string(), name));
    return places_.find(name)->second;
  }

  fs::path path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Place> places_;
  StoredModel model_;
  mutable std::atomic<std::size_t> bytes_read_ = 0;
};

/// If the pattern fits the text, returns what its "*" stands for, which is empty without one.
std::optional<std::string> what_fits(const std::string& pattern, const std::string& text) {
  const std::size_t star = pattern.find('*');
  if (star == pattern.npos) return pattern == text ? std::optional(std::string()) : std::nullopt;
  const std::size_t end = pattern.size() - star - 1;
  if (text.size() < star + end || !text.starts_with(pattern.substr(0, star)) || !text.ends_with(pattern.substr(star + 1)))
    return std::nullopt;
  return text.substr(star, text.size() - star - end);
}

class RenamedTensors final : public TensorSource {
 public:
  RenamedTensors(std::unique_ptr<TensorSource> source, const std::vector<RenamedTensor>& rules) : source_(std::move(source)) {
    std::vector<bool> used(rules.size());
    const auto rule = [](const RenamedTensor& each) { return format("the rule {{\"{}\", \"{}\"}}", each.theirs, each.ours); };
    for (const RenamedTensor& each : rules)
      if (std::ranges::count(each.theirs, '*') > 1 ||
          std::ranges::count(each.ours, '*') != std::ranges::count(each.theirs, '*'))
        throw UserError(format("{} has no meaning (both sides have one \"*\", or none); correct the rules", rule(each)));
    for (const std::string& name : source_->names()) {
      std::string ours = name;
      for (std::size_t i = 0; i < rules.size(); ++i)
        if (const auto fits = what_fits(rules[i].theirs, name)) {
          used[i] = true;
          ours = rules[i].ours;
          if (const std::size_t star = ours.find('*'); star != ours.npos) ours.replace(star, 1, *fits);
          break;
        }
      if (const auto [other, is_new] = theirs_.emplace(ours, name); !is_new)
        throw UserError(format("the tensors {} and {} of {} both become {} (a parameter has one tensor); correct the rules",
                               other->second, name, source_->description(), ours));
    }
    const std::vector<std::string> names = source_->names();
    for (std::size_t i = 0; i < rules.size(); ++i)
      if (!used[i])
        throw UserError(format("{} fits no tensor of {} that no rule before it fits (it has {}{}); correct the rules",
                               rule(rules[i]), source_->description(), names.empty() ? "none" : names.front(),
                               names.size() < 2 ? "" : ", ..."));
  }

  StoredModel model() const override { return source_->model(); }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [ours, theirs] : theirs_) all.push_back(ours);
    return all;
  }
  bool has_state(const std::string& state, const std::string& name) const override {
    return theirs_.contains(name) && source_->has_state(state, theirs_.at(name));
  }
  Shape state_shape(const std::string& state, const std::string& name) const override {
    return source_->state_shape(state, name_of(name));
  }
  void read_state(const std::string& state, const std::string& name, Range range, float* out) const override {
    source_->read_state(state, name_of(name), range, out);
  }
  std::size_t bytes_read() const override { return source_->bytes_read(); }
  std::string description() const override { return source_->description(); }
  std::string holder_of(const std::string& name) const override { return source_->holder_of(name_of(name)); }
  std::vector<fs::path> files() const override { return source_->files(); }
  std::vector<std::string> warnings() const override { return source_->warnings(); }

 private:
  const std::string& name_of(const std::string& ours) const {
    const auto found = theirs_.find(ours);
    if (found == theirs_.end())
      throw UserError(format("{} has no tensor that becomes {}; check the name", description(), ours));
    return found->second;
  }

  std::unique_ptr<TensorSource> source_;
  std::map<std::string, std::string> theirs_;  // names in the source, by the new names
};

}  // namespace

bool has_plain_tensors(const fs::path& path) {
  switch (kind_of(path)) {
    case PathKind::folder:
      return !safetensors_in(path).empty();
    case PathKind::file:
      return is_safetensors(path) || hdf5_format().is(path);
    default:
      return false;
  }
}

std::unique_ptr<TensorSource> open_plain(const fs::path& path, Verify verify) {
  if (kind_of(path) == PathKind::folder) return std::make_unique<PlainSafetensors>(path, safetensors_in(path), verify);
  if (is_safetensors(path)) return std::make_unique<PlainSafetensors>(path, std::vector{path}, verify);
  return open_plain_hdf5(path, verify);
}

std::unique_ptr<TensorSource> rename_tensors(std::unique_ptr<TensorSource> source, const std::vector<RenamedTensor>& rules) {
  if (rules.empty()) return source;
  return std::make_unique<RenamedTensors>(std::move(source), rules);
}

}  // namespace fsdp
