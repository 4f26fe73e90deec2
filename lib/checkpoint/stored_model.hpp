// The description of the model in a checkpoint or model file: a transformer's configuration, from which any program can build
// the model, or, for layers that a user's program defines, the names and shapes of their parameters.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "nn/config.hpp"
#include "nn/model.hpp"

namespace fsdp {

class StoredModel {
 public:
  StoredModel() = default;
  /// A transformer.
  StoredModel(TransformerConfig config);
  /// Layers of a user's program: names are unique and not empty.
  explicit StoredModel(std::vector<Parameter> parameters);
  explicit StoredModel(const Model& model);

  bool is_transformer() const { return layers_.empty(); }
  /// Throws UserError if it is not a transformer; the message calls the file `what`.
  const TransformerConfig& transformer(const std::string& what) const;
  /// The names and shapes; for a transformer with all other fields.
  std::vector<Parameter> parameters() const;

  /// The text "config" of checkpoints and consolidated files, and config.json. For layers: {"model_type": "fsdp-layers",
  /// "parameters": [{"name": ..., "shape": [...]}, ...]}. read() throws UserError.
  nlohmann::json to_json() const;
  static StoredModel read(const nlohmann::json& model, const std::string& what);

 private:
  TransformerConfig config_;
  std::vector<Parameter> layers_;
};

}  // namespace fsdp
