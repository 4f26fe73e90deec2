#include "checkpoint/model_format.hpp"

#include <algorithm>
#include <cstring>

#include "base/registry.hpp"
#include "checkpoint/adapter.hpp"
#include "checkpoint/stored.hpp"
#include "files/output_file.hpp"

namespace fsdp {

namespace {

Registry<ModelFormat>& table() {
  static Registry<ModelFormat> rows({&hdf5_format(), &safetensors_format()});
  return rows;
}

}  // namespace

std::string WrittenTensor::whole_name() const { return stored::whole_name(state, name); }

std::filesystem::path WrittenModel::path_of(std::size_t file) const { return files[file].empty() ? path : path / files[file]; }

void WrittenModel::add_file(const std::string& name, const std::string& head,
                            const std::vector<WrittenTensor*>& tensors_of_it) {
  std::uint64_t offset = head.size();
  for (WrittenTensor* tensor : tensors_of_it) {
    tensor->file = files.size();
    tensor->offset = offset;
    offset += tensor->bytes();
  }
  files.push_back(name);
  bytes.push_back(offset);
  OutputFile output(path_of(files.size() - 1));
  output.write(0, head.data(), head.size());
  output.finish();
}

const std::vector<const ModelFormat*>& model_formats() { return table().rows(); }

void add_model_format(const ModelFormat& format) {
  expect(format.is && format.open && format.lay_out, "a format has the functions is, open and lay_out");
  table().add(format);
}

bool is_model_file(const std::string& given) {
  std::string name = given;
  for (const char* suffix : {temporary_suffix, ".tmp", ".xxh3"})
    if (name.ends_with(suffix)) name.resize(name.size() - std::strlen(suffix));
  const auto has = [&](const ModelFormat* row) { return row->is_file && row->is_file(name); };
  return peft_format().is_file(name) || std::any_of(model_formats().begin(), model_formats().end(), has);
}

}  // namespace fsdp
