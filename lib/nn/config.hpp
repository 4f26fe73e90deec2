// What a transformer is: Hugging Face's config.json, reduced to what changes the arithmetic. nn/families.hpp has what is said
// differently in each family of models.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace fsdp {

enum class NormKind { layer, rms };  // LayerNorm with a bias, or RMSNorm
/// A table that is added to the embedding, learned or of sines and cosines; or rotations of queries and keys.
enum class Positions { learned, sinusoidal, rotary };
enum class Activation { gelu_tanh, gelu_erf, relu, swiglu };

/// Frequencies of rotary positions: "default", or "llama3" (Llama 3.1 release notes; transformers' _compute_llama3_parameters).
struct Rope {
  double theta = 10000.0;
  bool llama3 = false;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  std::size_t original_positions = 0;

  bool operator==(const Rope&) const = default;
};

/// The fields describe the arithmetic. `family` is for files alone: it names the row of nn/families.hpp that says how
/// config.json and the parameters are written.
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
  Positions positions = Positions::learned;
  std::size_t position_offset = 0;  // of tables: the row of the first token; a learned one has this many rows more
  /// The embedding of a token is multiplied by sqrt(C) before positions are added (Vaswani et al. 2017, section 3.4).
  bool scaled_embedding = false;
  /// This token's row of the embedding gets no gradient from its lookups (torch.nn.Embedding's padding_idx).
  std::optional<std::size_t> padding_token;
  Rope rope;
  bool qk_norm = false;  // RMSNorm of each query's and each key's head, before it is rotated
  /// A token sees itself and the window - 1 tokens before it; 0: all of them. Longer sequences are refused, so that no window
  /// ever cuts anything off.
  std::size_t sliding_window = 0;
  Activation activation = Activation::gelu_tanh;
  bool qkv_bias = true, attention_out_bias = true, mlp_bias = true;
  bool tied_embeddings = true;
  float initializer_range = 0.02f;

  bool operator==(const TransformerConfig&) const = default;
  /// The longest sequence for which the model is what it is meant to be: max_positions, or the window.
  std::size_t longest_sequence() const;
  /// Throws UserError naming the first thing that does not fit (heads that do not divide the width, ...).
  void validate() const;
};

/// What a user may change; empty fields stay.
struct ConfigOverrides {
  std::optional<std::size_t> layers, width, ffn_width, heads, kv_heads, vocab_size, max_positions;
  std::optional<bool> tied_embeddings, learned_positions, unscaled_embedding;  // positions that are not learned are sinusoidal
  std::optional<Activation> activation;
};
/// `config` with those values and what follows from them: a head size that was width / heads, key/value heads that equalled the
/// heads, and an inner width that was 4 x width, follow. A model that its family does not have is that of the family that has
/// it, and the same rule of initial weights: transformer_lm_gpt2_small with learned positions is a biogpt. Throws UserError
/// where there is none, and for heads that do not divide the width; does not validate else.
TransformerConfig override_config(TransformerConfig config, const ConfigOverrides& overrides);

/// Reads a parsed config.json, both the old spelling (rope_theta, rope_scaling) and that of transformers 5 (rope_parameters);
/// what is missing takes transformers' default. Throws UserError for an architecture or a feature that this program does not
/// have: nothing that changes results is ignored, except dropout.
TransformerConfig config_from_json(const nlohmann::json& json);
/// config.json as transformers would write it: config_from_json gives the same back, and transformers (4 and 5) loads it.
nlohmann::json config_to_json(const TransformerConfig& config);
/// Reads DIR/config.json. Throws UserError.
TransformerConfig read_config(const std::filesystem::path& folder);

/// The configuration of a model by its name ("gpt2", "llama-3.2-1b", "transformer_lm_gpt3_13", ...). Throws UserError with "did
/// you mean".
TransformerConfig arch_config(const std::string& name);
/// Names that arch_config() knows, with a line each: name and "124 M parameters, 12 layers, width 768".
std::vector<std::pair<std::string, std::string>> list_archs();

}  // namespace fsdp
