// The description of the model in a checkpoint or model file. For a transformer it is the configuration, from which any program
// can build the model. For layers that a user's program defines, it is the names and shapes of the parameters.
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
  /// Layers of a user's program. The names must be unique and not empty.
  explicit StoredModel(std::vector<Parameter> parameters);
  explicit StoredModel(const Model& model);

  bool is_transformer() const { return layers_.empty(); }
  /// The configuration of a transformer. Throws UserError if the model is not one; the message calls the file `what`.
  const TransformerConfig& transformer(const std::string& what) const;
  /// The parameters. If layers of a user's program were read from a file, only their names and shapes are known.
  std::vector<Parameter> parameters() const;

  /// The attribute "config" of checkpoints and consolidated files, or the content of config.json. For a user's layers it is
  /// {"model_type": "fsdp-layers", "parameters": [{"name": ..., "shape": [...]}, ...]}. read() throws UserError.
  nlohmann::json to_json() const;
  static StoredModel read(const nlohmann::json& model, const std::string& what);

 private:
  TransformerConfig config_;
  std::vector<Parameter> layers_;
};

/// Describes how a model that is requested differs from the one that `place` has, except in the dropout of adapters: "n_layer:
/// 3 requested, 2 in PLACE; ...". Empty if they are the same.
std::string describe_differences(TransformerConfig requested, const TransformerConfig& there, const std::string& place);

}  // namespace fsdp
