// A Hugging Face folder as a source of tensors. Checkpoints on the Hub name GPT-2's tensors without "transformer."; some carry
// buffers that are computed, not learned. Any other tensor that the model has no place for is an error: ignoring it would
// change results.
#include <atomic>
#include <map>
#include <set>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/tensor_source.hpp"
#include "nn/parameters.hpp"

namespace fsdp {

namespace {

bool is_buffer(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with(".rotary_emb.inv_freq");
}

class HuggingFaceFolder final : public TensorSource {
 public:
  explicit HuggingFaceFolder(const std::filesystem::path& folder)
      : folder_(folder), config_(read_config(folder)), file_(folder / "model.safetensors") {
    config_.validate();
    std::set<std::string> wanted;
    for (const Parameter& parameter : list_parameters(config_).parameters) wanted.insert(parameter.name);
    for (const StoredTensor& tensor : file_.tensors()) {
      std::string name;
      for (const char* prefix : {"", "transformer.", "model."})
        if (name.empty() && wanted.contains(prefix + tensor.name)) name = prefix + tensor.name;
      if (name.empty()) {
        if (is_buffer(tensor.name) || (config_.tied_embeddings && tensor.name == "lm_head.weight")) continue;
        throw UserError(format(
            "{} holds {} {}, which the model of {} does not have (leaving it out would change results) correct config.json "
            "or use another model",
            file_.path().string(), tensor.name, to_string(tensor.shape), (folder / "config.json").string()));
      }
      if (tensor.dtype != "F32")
        throw UserError(format("{} holds {} in {} (only F32 is read) convert the model to float32", file_.path().string(),
                               tensor.name, tensor.dtype));
      if (!tensors_.emplace(name, &tensor).second)
        throw UserError(
            format("{} holds {} under two names (which one counts is unknown) remove one", file_.path().string(), name));
    }
  }

  const TransformerConfig& config() const override { return config_; }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, tensor] : tensors_) all.push_back(name);
    return all;
  }
  bool has(const std::string& name) const override { return tensors_.contains(name); }
  Shape shape(const std::string& name) const override { return find(name).shape; }
  void read(const std::string& name, Range range, float* out) const override {
    file_.read(find(name), range, out);
    bytes_read_ += range.size() * sizeof(float);
  }
  std::size_t bytes_read() const override { return bytes_read_; }
  std::string description() const override { return format("Hugging Face folder {}", folder_.string()); }

 private:
  const StoredTensor& find(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end())
      throw UserError(format("{} has no tensor {} (the model of its config.json needs it) use the whole model",
                             file_.path().string(), name));
    return *found->second;
  }

  std::filesystem::path folder_;
  TransformerConfig config_;
  SafetensorsFile file_;
  std::map<std::string, const StoredTensor*> tensors_;  // by our names
  mutable std::atomic<std::size_t> bytes_read_ = 0;
};

}  // namespace

std::unique_ptr<TensorSource> open_hugging_face(const std::filesystem::path& folder) {
  const auto there = [&](const char* name) { return std::filesystem::exists(folder / name); };
  if (!there("model.safetensors")) {
    if (there("model.safetensors.index.json"))
      throw UserError(format(
          "{} holds its model in several files (only a single model.safetensors is read) save it with a larger shard size",
          folder.string()));
    throw UserError(format("{} has no model.safetensors (the weights are read from there){} check the path", folder.string(),
                           there("pytorch_model.bin") ? " save its pytorch_model.bin as safetensors, or" : ""));
  }
  if (!there("config.json"))
    throw UserError(
        format("{} has no config.json (it says what the model is) copy it from where the weights are from", folder.string()));
  return std::make_unique<HuggingFaceFolder>(folder);
}

}  // namespace fsdp
