// The model families. A struct Family describes what differs between the files of families: the keys of config.json, the names
// and stored layout of parameters, and the usual sizes. The arithmetic depends only on TransformerConfig.
// docs/extending-family.md shows how to add a family.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "nn/config.hpp"

namespace fsdp {

/// How files store the weight of a projection: [out, in] as torch.nn.Linear has it, or [in, out] as GPT-2's Conv1D.
enum class WeightLayout { out_in, in_out };

/// The names of parameters in transformers. Names of norms and projections are without ".weight" and ".bias". A name is empty
/// if the family does not have the parameter.
struct ParameterNames {
  /// The prefix of all names but the head's. Files that hold the model without its head omit it.
  std::string base;
  std::string token_table, position_table = "";
  std::string block;  // prefix of the names below, with {} for the block number: "model.layers.{}."
  std::string norm1;
  std::vector<std::string> qkv;  // three projections, or one projection with the outputs of q, k and v next to each other
  std::string q_norm = "", k_norm = "";
  std::string attention_out, attention_norm = "", norm2;
  std::vector<std::string>
      ffn_in;  // one projection (with the rows of gate and then those of up, if it is gated), or gate and up
  std::string ffn_out, ffn_norm = "";
  std::string final_norm, head;  // without the block prefix
};

/// The distribution of initial weights (nn/parameters.cpp has the formulas). Biases are 0 and gains 1 unless noted.
enum class InitialWeights {
  normal,           // normal(initializer_range)
  residual_scaled,  // the same, divided by sqrt(2 L) in projections into the residual stream
  fairseq           // as in fairseq's TransformerDecoder, without initializer_range
};

/// A model with a name for users.
struct Arch {
  std::string name;
  TransformerConfig config;
};

/// The name of a model that users may ask for and that is not supported.
struct OtherArch {
  std::string name, why, instead;  // "<name> is not supported (<why>); <instead>"
};

/// The sizes of a model with a name. If kv_heads is 0, it is heads; if ffn_width is 0, it is 4 * width. Other numbers that are
/// 0 keep the value of `config` in archs_of().
struct ArchSizes {
  const char* name;
  std::size_t width, layers, heads, kv_heads = 0, ffn_width = 0, vocab_size = 0, positions = 0;
  float norm_eps = 0;
  std::optional<bool> tied = {};
  double rope_theta = 0;
};

/// The models with these sizes. The other fields are those of `config`; if its head size is 0, it is width / heads.
std::vector<Arch> archs_of(const TransformerConfig& config, const std::vector<ArchSizes>& models);

struct Family {
  std::string model_type;    // in config.json: "llama"
  std::string architecture;  // in config.json: "LlamaForCausalLM"
  ParameterNames names;
  WeightLayout weights = WeightLayout::out_in;
  InitialWeights initial = InitialWeights::normal;
  /// Several query heads may share a key and a value.
  bool grouped_queries = true;
  /// Each head may have any size; else heads must divide the width.
  bool free_head_size = false;
  /// Rotary positions may rotate only a part of each head.
  bool partial_rotary = false;
  /// read() reads the key "sliding_window". If false, the key must be missing or off.
  bool reads_sliding_window = false;
  /// read() reads the key "layer_types", which tells the layers with a window. If false, all layers must have full attention.
  bool reads_layer_types = false;
  /// transformers' defaults for missing keys; 0 if the default follows from other keys. The fields that read() does not set are
  /// the same for all models of the family.
  TransformerConfig defaults = {};
  /// read() returns the configuration in a config.json, and write() writes it with the family's keys. The keys of all families
  /// are handled elsewhere: model_type, architectures, vocab_size, tie_word_embeddings.
  TransformerConfig (*read)(const nlohmann::json& object, TransformerConfig defaults) = nullptr;
  nlohmann::json (*write)(const TransformerConfig& config) = nullptr;
  std::vector<Arch> archs = {};
  std::vector<OtherArch> other_archs = {};
};

/// All families: those of the library, then those of add_family().
const std::vector<const Family*>& families();
/// The family with this model_type. Throws UserError with a list of the known ones if there is none.
const Family& find_family(const std::string& model_type);
/// Adds a family. `family` must live as long as the program. Call it before anything else, because the table is not protected
/// against concurrent use.
void add_family(const Family& family);

/// The library's families, which are defined in families/.
const Family& gpt2_family();
const Family& llama_family();
const Family& mistral_family();
const Family& qwen2_family();
const Family& qwen3_family();
const Family& phi3_family();
const Family& gemma3_family();
const Family& opt_family();
const Family& biogpt_family();
const Family& xglm_family();

}  // namespace fsdp
