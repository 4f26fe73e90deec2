// The configuration of a transformer: the parts of Hugging Face's config.json that change the arithmetic. nn/families.hpp holds
// the spelling and defaults of each model family.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "kernels/quantized.hpp"
#include "nn/lora.hpp"

namespace fsdp {

enum class NormKind { layer, rms };  // LayerNorm with a bias, or RMSNorm
/// `learned` and `sinusoidal` add a table to the embedding; `rotary` rotates queries and keys.
enum class Positions { learned, sinusoidal, rotary };
/// swiglu and geglu_tanh multiply the activation (SiLU, GELU) of a gate by a second projection (Shazeer 2020).
enum class Activation { gelu_tanh, gelu_erf, relu, swiglu, geglu_tanh };
constexpr bool is_gated(Activation activation) {
  return activation == Activation::swiglu || activation == Activation::geglu_tanh;
}

/// The rope types of transformers; `plain` is "default". nn/rope.cpp has the formulas and their sources.
enum class RopeKind { plain, linear, dynamic, yarn, longrope, llama3 };

/// Rotary positions: pair i of the rotated part of a head turns by position * theta^(-2i / rotated elements), and a kind other
/// than `plain` changes these frequencies. Fields that a kind does not use keep their defaults.
struct Rope {
  RopeKind kind = RopeKind::plain;
  double theta = 10000.0;
  double rotated = 1;                  // the part of each head that is rotated (transformers: partial_rotary_factor)
  double factor = 1;                   // linear, dynamic, yarn, llama3
  std::size_t original_positions = 0;  // yarn, longrope, llama3: the longest sequence before the model was extended
  double attention_factor = 1;         // yarn, longrope: cosines and sines are multiplied by it
  double low_freq_factor = 1, high_freq_factor = 4;           // llama3
  double beta_fast = 32, beta_slow = 1;                       // yarn
  bool truncate = true;                                       // yarn: the bounds of its ramp are rounded to whole pairs
  std::vector<double> short_factors = {}, long_factors = {};  // longrope: one for each pair

  bool operator==(const Rope&) const = default;
};

/// The fields describe the arithmetic. `family` is only for files: it is the name of the Family that defines how config.json
/// and the parameters are written.
struct TransformerConfig {
  std::string family = "gpt2";    // model_type in config.json
  std::size_t vocab_size = 0;     // V
  std::size_t max_positions = 0;  // longest sequence
  std::size_t width = 0;          // C
  std::size_t layers = 0;         // L
  std::size_t heads = 0;          // H
  std::size_t kv_heads = 0;       // K
  std::size_t head_size = 0;      // D
  std::size_t ffn_width = 0;      // F
  NormKind norm = NormKind::layer;
  float norm_eps = 1e-5f;
  float gain_offset = 0;      // RMSNorm multiplies by its gain plus this number
  bool branch_norms = false;  // RMSNorm also of the output of attention and MLP, before it is added to the residual stream
  Positions positions = Positions::learned;
  std::size_t position_offset = 0;  // the first token's row in a position table; a learned table has this many extra rows
  /// The embedding of a token is multiplied by sqrt(C) before positions are added (Vaswani et al. 2017, section 3.4).
  bool scaled_embedding = false;
  bool rounded_scale = false;  // sqrt(C) is rounded to the type of the weights before
  /// This token's row of the embedding gets no gradient from its lookups (torch.nn.Embedding's padding_idx).
  std::optional<std::size_t> padding_token;
  Rope rope;
  std::optional<Rope> window_rope = {};  // of the layers with a window, if theirs is another one
  std::size_t scores_scaled_by = 0;      // attention's scores are divided by the root of this number; 0: of head_size
  bool qk_norm = false;                  // RMSNorm of each head of queries and keys, before the rotation
  /// In layers with a window, a token attends to itself and the window - 1 tokens before it; 0: no layer has a window. The
  /// other two fields tell which layers have one: those from layer `window_from` on, except each full_every-th one (0: no
  /// exception).
  std::size_t sliding_window = 0, window_from = 0, full_every = 0;
  Activation activation = Activation::gelu_tanh;
  bool qkv_bias = true, attention_out_bias = true, mlp_bias = true;
  bool tied_embeddings = true;
  float initializer_range = 0.02f;
  /// Adapters are not part of config.json: config_from_json() returns none, and config_to_json() leaves them out.
  Lora lora = {};
  /// Set if the matrices of the blocks are kept quantized. They cannot be trained. Not part of config.json, either.
  std::optional<kernels::Quantization> base_type = {};

  bool operator==(const TransformerConfig&) const = default;
  /// The longest sequence that the model supports: max_positions, or the length to which its Rope extends it.
  std::size_t longest_sequence() const;
  /// The window of a layer, which are numbered from 0; 0: none.
  std::size_t window_of(std::size_t layer) const;
  /// The rotary positions of a layer.
  const Rope& rope_of(std::size_t layer) const { return window_rope && window_of(layer) > 0 ? *window_rope : rope; }
  /// Throws UserError for the first contradiction (for example heads that do not divide the width).
  void validate() const;
};

/// The configuration of the base model, as its files have it.
TransformerConfig without_adapters(TransformerConfig config);
/// The configuration of a base model with adapters, which may have rows for further tokens.
TransformerConfig with_lora(TransformerConfig base, Lora lora);

/// The fields that a user may change. Empty fields stay unchanged.
struct ConfigOverrides {
  std::optional<std::size_t> layers, width, ffn_width, heads, kv_heads, vocab_size, max_positions;
  std::optional<bool> tied_embeddings, learned_positions, unscaled_embedding;  // learned_positions = false: sinusoidal
  std::optional<Activation> activation;
};
/// Returns `config` with these values. If `config` has a head size of width / heads, as many key/value heads as heads, or an
/// inner width of 4 * width, the result has the same relation. If the family has no such model, the family is replaced by one
/// that has it and the same distribution of initial weights: transformer_lm_gpt2_small with learned positions becomes a biogpt.
/// Throws UserError if no family has such a model, or if the heads do not divide the width. Does no other validation.
TransformerConfig override_config(TransformerConfig config, const ConfigOverrides& overrides);

/// Reads a parsed config.json, in the old spelling (rope_theta, rope_scaling) or that of transformers 5 (rope_parameters).
/// Missing keys take transformers' defaults. Throws UserError for an architecture or feature that this program does not
/// support. No key that changes results is ignored, except dropout.
TransformerConfig config_from_json(const nlohmann::json& json);
/// Writes config.json as transformers would: config_from_json() returns the same configuration, and transformers 4 and 5 can
/// load it.
nlohmann::json config_to_json(const TransformerConfig& config);
/// Reads DIR/config.json. Throws UserError.
TransformerConfig read_config(const std::filesystem::path& folder);

/// The configuration of a model by its name ("gpt2", "llama-3.2-1b", "transformer_lm_gpt3_13", ...). Throws UserError with "did
/// you mean".
TransformerConfig arch_config(const std::string& name);
/// The names that arch_config() accepts, each with a description: "124 M parameters, 12 layers, width 768".
std::vector<std::pair<std::string, std::string>> list_archs();

}  // namespace fsdp
