// What files say of the model that they hold: a transformer by its configuration, which any program can build again, or the
// layers of a program of a user's by the names and shapes of their parameters.
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
  /// Layers of a program: no name is empty or comes twice.
  explicit StoredModel(std::vector<Parameter> parameters);
  explicit StoredModel(const Model& model);

  bool is_transformer() const { return layers_.empty(); }
  /// Throws UserError that calls the file `what` if it is none.
  const TransformerConfig& transformer(const std::string& what) const;
  /// Names and shapes, and of a transformer all else.
  std::vector<Parameter> parameters() const;

  /// The text "config" of checkpoints and consolidated files, and config.json: of layers {"model_type": "fsdp-layers",
  /// "parameters": [{"name": ..., "shape": [...]}, ...]}. read() throws UserError.
  nlohmann::json to_json() const;
  static StoredModel read(const nlohmann::json& json, const std::string& what);

 private:
  TransformerConfig config_;
  std::vector<Parameter> layers_;
};

}  // namespace fsdp
