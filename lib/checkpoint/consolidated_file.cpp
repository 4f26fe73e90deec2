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
  ConsolidatedFile(const fs::path& path, Verify verify, const StoredModel* plain) : path_(path), numbers_(path, verify) {
    by_hdf5([&] { read_structure(verify, plain); });
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
    const std::size_t n = numel(dataset.shape);
    expect(range.begin <= range.end && range.end <= n, "a range is outside its tensor");
    if (!dataset.type) {
      by_hdf5([&] { file_->dataset(stored::whole_name(state, name)).read(range, out); });
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
    Shape shape;
    std::optional<DType> type;  // of the elements, if they are a plain array at `offset`; empty if only HDF5 can read them
    std::uint64_t offset = 0;
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
  void read_structure(Verify verify, const StoredModel* plain) {
    file_.emplace(h5::File::open(path_, verify));
    const std::string kind = file_->has_attribute("format") ? file_->read_text("format") : "";
    if (kind == stored::index_kind || kind == stored::rank_kind)
      throw UserError(format("{} is one file of a checkpoint (its folder is needed); give {}", path_.string(),
                             path_.has_parent_path() ? path_.parent_path().string() : "its folder"));
    if (kind.empty() && plain) {
      for (const std::string& name : file_->other_names("/"))
        throw UserError(format(
            "{} has {}, which is no dataset of numbers (the file of a model has a dataset for each parameter, under its full "
            "name, such as {}, and nothing else); remove it",
            path_.string(), excerpt(name), plain->parameters().front().name));
      model_ = *plain;
      return read_datasets();
    }
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
  void read_datasets() {
    for (const std::string& state : states_) {
      const std::string group = state == parameters_state ? "/" : state;
      if (group != "/" && !file_->has(group)) continue;
      for (const std::string& name : file_->dataset_names(group)) {
        const h5::Dataset dataset = file_->dataset(stored::whole_name(state, name));
        dataset.require_whole();
        datasets_[stored::whole_name(state, name)] = {dataset.shape(), dataset.plain_type(), dataset.offset().value_or(0)};
      }
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
  return std::make_unique<ConsolidatedFile>(file, verify, nullptr);
}
std::unique_ptr<TensorSource> open_plain(const fs::path& file, const StoredModel& model) {
  return std::make_unique<ConsolidatedFile>(file, Verify::yes, &model);
}

const ModelFormat& hdf5_format() { return hdf5_row; }

}  // namespace fsdp
