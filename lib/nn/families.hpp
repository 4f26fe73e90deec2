// The families of models that the program knows, one row each. A row holds what files alone say of a family: the keys of its
// config.json, the names and the stored layout of its parameters, its usual sizes. The arithmetic follows from
// TransformerConfig and knows no family. docs/extending-family.md adds one.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "nn/config.hpp"

namespace fsdp {

/// How files store the weight of a projection: [out, in] as torch.nn.Linear has it, or [in, out] as GPT-2's Conv1D.
enum class WeightLayout { out_in, in_out };

/// What transformers calls the parameters. Names of norms and projections stand without their ".weight" and ".bias". A name is
/// empty where no model of the family has the parameter.
struct ParameterNames {
  /// What all names but the head's begin with. Files that hold the model without its head leave it out.
  std::string base;
  std::string token_table, position_table = "";
  std::string block;  // what goes before the names below, with {} for the block's number: "model.layers.{}."
  std::string norm1;
  std::vector<std::string> qkv;  // three projections, or one whose outputs are those of q, k and v side by side
  std::string q_norm = "", k_norm = "";
  std::string attention_out, norm2;
  std::vector<std::string> ffn_in;  // one projection, or gate and up
  std::string ffn_out;
  std::string final_norm, head;  // these stand behind the blocks
};

/// What new weights are (nn/parameters.cpp has the formulas); biases are 0 and gains 1 unless it says otherwise.
enum class InitialWeights {
  normal,           // normal(initializer_range)
  residual_scaled,  // the same, divided by sqrt(2 L) in projections into the residual stream
  fairseq           // those of its TransformerDecoder, which knows no initializer_range
};

/// A model that is known by name.
struct Arch {
  std::string name;
  TransformerConfig config;
};

/// One that users ask for by name, and that is none of ours.
struct OtherArch {
  std::string name, why, instead;  // "<name> is not supported (<why>); <instead>"
};

/// `config` with these sizes, and heads of width / heads elements.
TransformerConfig with_sizes(TransformerConfig config, std::size_t width, std::size_t layers, std::size_t heads,
                             std::size_t kv_heads, std::size_t ffn_width);

struct Family {
  std::string model_type;    // in config.json: "llama"
  std::string architecture;  // likewise: "LlamaForCausalLM"
  ParameterNames names;
  WeightLayout weights = WeightLayout::out_in;
  InitialWeights initial = InitialWeights::normal;
  /// Several query heads may share a key and a value.
  bool grouped_queries = true;
  /// Each head may have any size; else heads must divide the width.
  bool free_head_size = false;
  /// read() understands "sliding_window", which is refused otherwise unless it is off.
  bool reads_sliding_window = false;
  /// What transformers takes for keys that are missing; 0 where that follows from other keys. Models of the family differ from
  /// it in what read() reads and in nothing else.
  TransformerConfig defaults = {};
  /// The configuration in a config.json, and the keys in which write() says the same. Keys that all families have are read and
  /// written for them: model_type, architectures, vocab_size, tie_word_embeddings.
  TransformerConfig (*read)(const nlohmann::json& object, TransformerConfig defaults) = nullptr;
  nlohmann::json (*write)(const TransformerConfig& config) = nullptr;
  std::vector<Arch> archs = {};
  std::vector<OtherArch> other_archs = {};
};

/// All rows, those of the library first.
const std::vector<const Family*>& families();
/// The row of a model_type. Throws UserError, which names those that there are.
const Family& find_family(const std::string& model_type);
/// Adds a row; `family` must live as long as the program. Call it before anything else: threads that look for a family at the
/// same time would see the table change.
void add_family(const Family& family);

/// The library's rows, each in its file in families/.
const Family& gpt2_family();
const Family& llama_family();
const Family& mistral_family();
const Family& qwen2_family();
const Family& qwen3_family();
const Family& opt_family();
const Family& biogpt_family();
const Family& xglm_family();

}  // namespace fsdp
