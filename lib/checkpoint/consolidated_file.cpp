// The format "hdf5": one file with a whole model. The HDF5 library reads its structure. Tensor data that is stored as a plain
// array is read directly from the file.
#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/stored.hpp"
#include "checkpoint/tensor_source.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "h5/h5.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

constexpr const char* remedy = "copy it again, or consolidate again";

class ConsolidatedFile final : public TensorSource {
 public:
  /// `any_program`: also opens files that fsdp-consolidate did not write.
  ConsolidatedFile(const fs::path& path, Verify verify, bool any_program) : path_(path), numbers_(path, verify) {
    by_hdf5([&] { read_structure(verify, any_program); });
  }

  StoredModel model() const override { return model_; }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, dataset] : datasets_)
      if (name.find('/') == std::string::npos) all.push_back(name);
    return all;
  }
  std::vector<std::string> states() const override { return states_; }
  bool has_state(const std::string& state, const std::string& name) const override {
    return datasets_.contains(stored::whole_name(state, name));
  }
  Shape state_shape(const std::string& state, const std::string& name) const override { return find(state, name).shape; }
  void read_state(const std::string& state, const std::string& name, Range range, float* out) const override {
    const Stored& dataset = find(state, name);
    if (!dataset.problem.empty()) throw UserError(dataset.problem);
    const std::size_t n = numel(dataset.shape);
    expect(range.begin <= range.end && range.end <= n, "a range is outside its tensor");
    if (!dataset.type) {
      by_hdf5([&] { file_->dataset(dataset.path).read(range, out); });
    } else {
      const std::size_t bytes = size_of(*dataset.type);
      if (dataset.offset > numbers_.size() || n > (numbers_.size() - dataset.offset) / bytes)
        throw DamagedError(format("{} is damaged ({} is beyond the end of the file); {}", path_.string(), name, remedy));
      read_elements(numbers_, *dataset.type, dataset.offset + range.begin * bytes, range.size(), out);
    }
    bytes_read_ += range.size() * sizeof(float);
  }
  std::size_t bytes_read() const override { return bytes_read_; }
  std::string description() const override { return format("consolidated file {}", path_.string()); }
  std::vector<fs::path> files() const override { return {path_}; }
  std::string holder_of(const std::string&) const override { return path_.string(); }

 private:
  struct Stored {
    std::string path;  // in the file
    Shape shape;
    std::optional<DType> type;  // of the elements, if they are a plain array at `offset`; empty if only HDF5 can read them
    std::uint64_t offset = 0;
    std::string problem = {};  // why it cannot be read, if it cannot
  };

  /// Runs `read`; a CallError of HDF5 becomes a DamagedError.
  template <class Read>
  void by_hdf5(const Read& read) const {
    try {
      read();
    } catch (const CallError& error) {
      throw DamagedError(format("{} is damaged ({}); {}", path_.string(), error.what(), remedy));
    }
  }
  void read_structure(Verify verify, bool any_program) {
    file_.emplace(h5::File::open(path_, verify));
    const std::string kind = file_->has_attribute("format") ? file_->read_text("format") : "";
    if (kind == stored::index_kind || kind == stored::rank_kind)
      throw UserError(format("{} is one file of a checkpoint (its folder is needed); give {}", path_.string(),
                             path_.has_parent_path() ? path_.parent_path().string() : "its folder"));
    if (kind.empty() && any_program) return read_group("");
    if (kind != stored::model_kind)
      throw UserError(
          format("{} is an HDF5 file of another kind (fsdp-consolidate did not write it); check the path", path_.string()));
    if (verify == Verify::yes && !numbers_.is_checked() && file_->has_attribute("checksums"))
      throw DamagedError(
          format("{} has lost its checksums (it was cut off, or changed by another program); copy it again, or use "
                 "`unchecked reading`",
                 path_.string()));
    stored::check_version(file_->read_integer("format_version"), path_.string());
    const auto config = parse_json(file_->read_text("config"));
    if (config.is_discarded())
      throw DamagedError(format("{} is damaged (its configuration is not JSON); consolidate again", path_.string()));
    model_ = StoredModel::read(config, path_.string());
    if (file_->has_attribute("states")) states_ = stored::read_states(*file_);
    read_datasets();
  }
  /// Reads the datasets of a group and its groups. They are parameters, with "." for "/" in their names. Throws UserError if
  /// there are none.
  void read_group(const std::string& group) {
    if (std::ranges::count(group, '/') > 32)  // groups may contain each other
      throw UserError(format("{} has groups in groups that are nested more than 32 deep; write it again", path_.string()));
    for (const std::string& name : file_->dataset_names(group.empty() ? "/" : group)) {
      const std::string path = group + name;
      std::string dotted = path;
      std::replace(dotted.begin(), dotted.end(), '/', '.');
      if (datasets_.contains(dotted))
        throw UserError(
            format("{} has two datasets for the tensor {} (groups are joined by points); rename one", path_.string(), dotted));
      try {
        datasets_[dotted] = stored_at(path);
      } catch (const DamagedError&) {
        throw;
      } catch (const UserError& error) {  // such as a count of batches, which no parameter has
        datasets_[dotted] = {path, {}, std::nullopt, 0, error.what()};
      }
    }
    for (const std::string& name : file_->other_names(group.empty() ? "/" : group)) read_group(group + name + "/");
    if (!group.empty()) return;
    std::vector<Parameter> all;
    for (const auto& [name, dataset] : datasets_) all.push_back({name, dataset.shape, {}, false, -1});
    if (all.empty())
      throw UserError(format("{} has no dataset of numbers, so there is nothing to load; check the path", path_.string()));
    model_ = StoredModel(std::move(all));
  }
  Stored stored_at(const std::string& path) const {
    const h5::Dataset dataset = file_->dataset(path);
    dataset.require_whole();
    return {path, dataset.shape(), dataset.plain_type(), dataset.offset().value_or(0)};
  }
  void read_datasets() {
    for (const std::string& state : states_) {
      const std::string group = state == parameters_state ? "/" : state;
      if (group != "/" && !file_->has(group)) continue;
      for (const std::string& name : file_->dataset_names(group))
        datasets_[stored::whole_name(state, name)] = stored_at(stored::whole_name(state, name));
    }
  }
  const Stored& find(const std::string& state, const std::string& name) const {
    const auto found = datasets_.find(stored::whole_name(state, name));
    if (found == datasets_.end())
      throw UserError(format("{} has no tensor {} (its model has none of that name); fsdp-inspect lists its tensors",
                             path_.string(), stored::whole_name(state, name)));
    return found->second;
  }

  fs::path path_;
  CheckedFile numbers_;
  std::optional<h5::File> file_;
  std::map<std::string, Stored> datasets_;  // by name: "wte.weight", "exp_avg/wte.weight"
  StoredModel model_;
  std::vector<std::string> states_ = {parameters_state};
  mutable std::atomic<std::size_t> bytes_read_ = 0;
};

constexpr std::string_view signature = "\x89HDF\r\n\x1a\n";

void lay_out_hdf5(const TensorSource& source, const ConsolidateOptions& options, WrittenModel& model) {
  model.files = {""};
  const std::vector<std::string> states = consolidated_states(source, options);
  const CheckpointHeader& header = source.checkpoint()->header();
  h5::File file = h5::File::create(model.path);
  file.write_text("format", stored::model_kind);
  file.write_text("checksums", "xxh3_64");  // readers then expect checksums: if there are none, the file was cut off
  file.write_integer("format_version", stored::version);
  file.write_text("version", header.version);
  stored::write_progress(file, header.progress);
  file.write_text("config", json_text(source.model().to_json(), 2));
  stored::write_states(file, states);
  if (states.size() > 1) file.write_text("optimizer", header.optimizer);
  for (WrittenTensor& tensor : model.tensors)
    tensor.offset = file.reserve_dataset(tensor.whole_name(), tensor.shape, tensor.type);
  file.close();
  std::sort(model.tensors.begin(), model.tensors.end(),
            [](const WrittenTensor& a, const WrittenTensor& b) { return a.offset < b.offset; });
  model.bytes = {size_of_file(model.path).value()};
}

constexpr ModelFormat hdf5_row = {
    .name = "hdf5",
    .what = "a consolidated HDF5 file",
    .about = "one file, a dataset per parameter under its Hugging Face name",
    .is = [](const fs::path& path) { return kind_of(path) != PathKind::folder && h5::File::looks_like_hdf5(path); },
    .open = open_consolidated,
    .lay_out = lay_out_hdf5,
    .signature = signature,
    .seal_follows = true};

}  // namespace

std::unique_ptr<TensorSource> open_consolidated(const fs::path& file, Verify verify) {
  return std::make_unique<ConsolidatedFile>(file, verify, false);
}
std::unique_ptr<TensorSource> open_plain_hdf5(const fs::path& file, Verify verify) {
  return std::make_unique<ConsolidatedFile>(file, verify, true);
}

const ModelFormat& hdf5_format() { return hdf5_row; }

}  // namespace fsdp
