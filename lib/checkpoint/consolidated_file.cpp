// The format "hdf5": one file with a whole model. It comes alone, from anybody: it is read in a process of its own before HDF5
// sees it in this one.
#include <algorithm>
#include <atomic>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/stored.hpp"
#include "checkpoint/tensor_source.hpp"
#include "checkpoint/unchecked.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "h5/h5.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

constexpr const char* remedy = "copy it again, or consolidate again";

class ConsolidatedFile final : public TensorSource {
 public:
  ConsolidatedFile(const fs::path& path, Verify verify)
      // A file with a right seal is read in a child process first, too: anybody can make right checksums.
      : path_(path), verify_(verify), content_(read_unchecked(path, stored::model_kind, {"/"}, remedy)), file_(path, verify) {
    if (verify == Verify::yes && !file_.is_checked() && content_.texts.contains("checksums"))
      throw DamagedError(
          format("{} has lost its checksums (it was cut, or changed by another program); copy it again; or give "
                 "`unchecked reading` to take it as it is",
                 path.string()));
    const std::string& kind = content_.texts["format"];
    if (kind == stored::index_kind || kind == stored::rank_kind)
      throw UserError(format("{} is one file of a checkpoint (its folder is needed); give {}", path.string(),
                             path.has_parent_path() ? path.parent_path().string() : "its folder"));
    if (kind != stored::model_kind)
      throw UserError(
          format("{} is an HDF5 file of another kind (fsdp-consolidate did not write it); check the path", path.string()));
    stored::check_version(content_.integers["format_version"], path.string());
    const auto config = parse_json(content_.texts["config"]);
    if (config.is_discarded())
      throw DamagedError(format("{} is damaged (its configuration is not JSON); consolidate again", path.string()));
    model_ = StoredModel::read(config, path.string());
    if (content_.texts.contains("states")) states_ = stored::split_states(content_.texts["states"]);
  }

  StoredModel model() const override { return model_; }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, dataset] : content_.datasets)
      if (name.find('/') == std::string::npos) all.push_back(name);
    return all;
  }
  std::vector<std::string> states() const override { return states_; }
  bool has_state(const std::string& state, const std::string& name) const override {
    return content_.datasets.contains(stored::whole_name(state, name));
  }
  Shape state_shape(const std::string& state, const std::string& name) const override { return find(state, name).shape; }
  void read_state(const std::string& state, const std::string& name, Range range, float* out) const override {
    const UncheckedFile::Dataset& dataset = find(state, name);
    const std::size_t n = numel(dataset.shape);
    expect(range.begin <= range.end && range.end <= n, "a range lies outside its tensor");
    if (!dataset.plain) {
      h5::File::open(path_, verify_).dataset(stored::whole_name(state, name)).read(range, out);
    } else {
      const auto& [type, offset] = *dataset.plain;
      if (offset > file_.size() || n > (file_.size() - offset) / size_of(type))
        throw DamagedError(format("{} is damaged ({} lies beyond its end); {}", path_.string(), name, remedy));
      read_elements(file_, type, offset + range.begin * size_of(type), range.size(), out);
    }
    bytes_read_ += range.size() * sizeof(float);
  }
  std::size_t bytes_read() const override { return bytes_read_; }
  std::string description() const override { return format("consolidated file {}", path_.string()); }
  std::string holder_of(const std::string&) const override { return path_.string(); }

 private:
  const UncheckedFile::Dataset& find(const std::string& state, const std::string& name) const {
    const auto found = content_.datasets.find(stored::whole_name(state, name));
    if (found == content_.datasets.end())
      throw UserError(format("{} has no tensor {} (its model has none of that name); fsdp-inspect lists those it has",
                             path_.string(), stored::whole_name(state, name)));
    return found->second;
  }

  fs::path path_;
  Verify verify_;
  UncheckedFile content_;
  CheckedFile file_;
  StoredModel model_;
  std::vector<std::string> states_ = {parameters_state};
  mutable std::atomic<std::size_t> bytes_read_ = 0;
};

constexpr std::string_view signature = "\x89HDF\r\n\x1a\n";

void lay_out(const CheckpointReader& source, const ConsolidateOptions& options, WrittenModel& model) {
  model.files = {""};
  const std::vector<std::string> states = consolidated_states(source, options);
  h5::File file = h5::File::create(model.path);
  file.write_text("format", stored::model_kind);
  file.write_text("checksums", "xxh3_64");  // what follows the HDF5 part of the file; without it something is missing
  file.write_integer("format_version", stored::version);
  file.write_text("version", source.header().version);
  stored::write_progress(file, source.header().progress);
  file.write_text("config", json_text(source.model().to_json(), 2));
  stored::write_states(file, states);
  if (states.size() > 1) file.write_text("optimizer", source.header().optimizer);
  for (WrittenTensor& tensor : model.tensors)
    tensor.offset = file.reserve_dataset(tensor.whole_name(), tensor.shape, tensor.type);
  file.close();
  std::sort(model.tensors.begin(), model.tensors.end(),
            [](const WrittenTensor& a, const WrittenTensor& b) { return a.offset < b.offset; });
  model.bytes = {size_of_file(model.path).value()};
}

constexpr ModelFormat row = {
    .name = "hdf5",
    .what = "a consolidated HDF5 file",
    .about = "one file, a dataset per parameter under its Hugging Face name",
    .is = [](const fs::path& path) { return kind_of(path) != PathKind::folder && h5::File::looks_like_hdf5(path); },
    .open = open_consolidated,
    .lay_out = lay_out,
    .signature = signature,
    .seal_follows = true};

}  // namespace

std::unique_ptr<TensorSource> open_consolidated(const fs::path& file, Verify verify) {
  return std::make_unique<ConsolidatedFile>(file, verify);
}

const ModelFormat& hdf5_format() { return row; }

}  // namespace fsdp
