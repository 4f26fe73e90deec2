// A whole model as a folder of NumPy's arrays, one for each parameter: numpy.load(folder + "/transformer.wte.weight.npy") is
// all that it takes to look at one. The format of the files is numpy.lib.format, version 1.0; config.json is as Hugging Face
// has it.
#include <algorithm>
#include <atomic>
#include <map>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "nn/parameters.hpp"

namespace {

using namespace fsdp;
namespace fs = std::filesystem;

constexpr std::size_t header_bytes = 128;  // as numpy.save() makes it for arrays of one or two dimensions

/// What precedes the elements (numpy.lib.format, version 1.0): magic, version, the length of the rest, and a Python dictionary.
std::string header_of(const Shape& shape) {
  std::string text = format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}{}), }}", fmt::join(shape, ", "),
                            shape.size() == 1 ? "," : "");
  text.resize(header_bytes - 11, ' ');
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + text + "\n";
}

/// The arrays of the parameters that the model of config.json has.
class NumpyFolder final : public TensorSource {
 public:
  NumpyFolder(const fs::path& folder, Verify verify) : folder_(folder), verify_(verify), config_(read_config(folder)) {
    config_.validate();
    for (const Parameter& parameter : list_parameters(config_).parameters) shapes_.emplace(parameter.name, parameter.shape);
    for (const auto& [name, shape] : shapes_) {
      const CheckedFile file = open(name);
      std::string header(std::min<std::size_t>(header_bytes, file.size()), '\0');
      file.read(0, header.data(), header.size(), /*numbers=*/false);
      if (header != header_of(shape) || file.size() != header_bytes + numel(shape) * sizeof(float))
        throw UserError(format("{} is no array of float32 and shape {} (the model has one); make the folder again",
                               file.path().string(), to_string(shape)));
    }
  }

  StoredModel model() const override { return config_; }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, shape] : shapes_) all.push_back(name);
    return all;
  }
  bool has_state(const std::string& state, const std::string& name) const override {
    return state == parameters_state && shapes_.contains(name);
  }
  Shape state_shape(const std::string& state, const std::string& name) const override {
    if (has_state(state, name)) return shapes_.at(name);
    throw UserError(format("{} has no {} of {} (it has those of its model); check the name", description(), state, name));
  }
  void read_state(const std::string& state, const std::string& name, Range range, float* out) const override {
    expect(range.begin <= range.end && range.end <= numel(state_shape(state, name)), "a range is outside its tensor");
    open(name).read(header_bytes + range.begin * sizeof(float), out, range.size() * sizeof(float));
    bytes_read_ += range.size() * sizeof(float);
  }
  std::size_t bytes_read() const override { return bytes_read_; }
  std::string description() const override { return format("NumPy folder {}", folder_.string()); }

 private:
  CheckedFile open(const std::string& name) const {
    const fs::path path = folder_ / (name + ".npy");
    return CheckedFile::sealed_by(seal_beside(path), path, verify_);
  }

  fs::path folder_;
  Verify verify_;
  TransformerConfig config_;
  std::map<std::string, Shape> shapes_;
  mutable std::atomic<std::size_t> bytes_read_ = 0;
};

void check(const ConsolidateOptions& options) {
  if (options.type != DType::f32 || options.with_optimizer || options.max_shard_bytes > 0)
    throw UserError(
        "a NumPy folder holds parameters in fp32, each in one file (NumPy has no bf16); leave out `type of the result`, "
        "`states "
        "of the optimizer` and `largest file`");
}

void lay_out(const TensorSource&, const ConsolidateOptions&, WrittenModel& model) {
  for (WrittenTensor& tensor : model.tensors) model.add_file(tensor.name + ".npy", header_of(tensor.shape), {&tensor});
}

void finish(const TensorSource& source, const ConsolidateOptions&, const WrittenModel& model, Consolidated&) {
  write_text_file_durably(model.path / "config.json", json_text(config_to_json(source.config()), 2) + "\n");
}

bool is_numpy_folder(const fs::path& path) {
  if (kind_of(path) != PathKind::folder || kind_of(path / "config.json") != PathKind::file) return false;
  const auto entries = fs::directory_iterator(path);
  return std::any_of(begin(entries), end(entries),
                     [](const fs::directory_entry& entry) { return entry.path().extension() == ".npy"; });
}

}  // namespace

const fsdp::ModelFormat& numpy_format() {
  static constexpr ModelFormat row = {
      .name = "npy",
      .what = "a NumPy folder",
      .about = "a folder with an array NAME.npy for each parameter, and config.json",
      .is = is_numpy_folder,
      .open = [](const fs::path& path, Verify verify) -> std::unique_ptr<TensorSource> {
        return std::make_unique<NumpyFolder>(path, verify);
      },
      .check = check,
      .lay_out = lay_out,
      .finish = finish,
      .is_file = [](const std::string& name) { return name == "config.json" || name.ends_with(".npy"); }};
  return row;
}
