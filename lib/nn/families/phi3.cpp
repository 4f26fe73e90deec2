// Phi-3 and Phi-4: Llama with one matrix for q, k and v and one for gate and up, LongRoPE, and a sliding window in all layers
// (Abdin et al. 2024). Keys and defaults are from transformers' Phi3Config. The sizes are from the config.json of models with
// these names on Hugging Face.
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "nn/families/config_keys.hpp"
#include "nn/families/llama.hpp"

namespace fsdp {

using nlohmann::json;

namespace {

constexpr const char* original_key = "original_max_position_embeddings";

TransformerConfig defaults() {
  TransformerConfig config = llama_family().defaults;
  config.family = "phi3";
  config.vocab_size = 32064;
  config.max_positions = 4096;
  config.width = 3072;
  config.ffn_width = 8192;
  config.norm_eps = 1e-5f;
  config.rope.original_positions = 4096;
  return config;
}

ParameterNames names() {
  ParameterNames names = llama_names();
  names.qkv = {"self_attn.qkv_proj"};
  names.ffn_in = {"mlp.gate_up_proj"};
  return names;
}

TransformerConfig read(const json& object, TransformerConfig defaults) {
  json simpler = object;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!simpler.contains(key) || !simpler[key].is_object()) continue;
    json& scaling = simpler[key];
    scaling.erase(original_key);                    // transformers uses that of the model
    for (const char* name : {"type", "rope_type"})  // older names of LongRoPE
      if (scaling.contains(name) && (scaling[name] == "su" || scaling[name] == "yarn")) scaling[name] = "longrope";
  }
  TransformerConfig config = read_llama_keys(simpler, std::move(defaults));
  if (config.rope.kind != RopeKind::plain && config.rope.kind != RopeKind::longrope)
    throw UserError(
        "config.json: \"rope_scaling\" has a type that models of the family phi3 do not have (theirs are \"default\" and "
        "\"longrope\"); correct the file");
  config.padding_token = keys::read_padding(object, config.vocab_size, 32000);
  keys::read_window(object, config);
  return config;
}

json write(const TransformerConfig& config) {
  json object = write_llama_keys(config);
  keys::write_window(config, object);
  object["partial_rotary_factor"] = object["rope_parameters"]["partial_rotary_factor"] = config.rope.rotated;
  if (config.rope.kind == RopeKind::plain) return object;
  object[original_key] = config.rope.original_positions;
  // transformers 4 accepts three keys only.
  json scaling = {{"type", "longrope"}, {"short_factor", config.rope.short_factors}, {"long_factor", config.rope.long_factors}};
  json alone = object;
  alone["rope_scaling"] = scaling, alone.erase("rope_parameters");
  if (keys::read_rope(alone, config).attention_factor != config.rope.attention_factor)
    scaling["attention_factor"] = config.rope.attention_factor;
  object["rope_scaling"] = scaling;
  return object;
}

std::vector<Arch> archs() {
  TransformerConfig config = defaults();
  config.rope.original_positions = 0;
  std::vector<Arch> all = archs_of(
      config, {{"phi-3-mini-4k", 3072, 32, 32, 32, 8192}, {"phi-4", 5120, 40, 40, 10, 17920, 100352, 16384, 0, {}, 250000}});
  all[0].config.sliding_window = 2047;
  all[0].config.padding_token = 32000;
  return all;
}

}  // namespace

const Family& phi3_family() {
  static const Family family = {.model_type = "phi3",
                                .architecture = "Phi3ForCausalLM",
                                .names = names(),
                                .partial_rotary = true,
                                .reads_sliding_window = true,
                                .defaults = defaults(),
                                .read = read,
                                .write = write,
                                .archs = archs()};
  return family;
}

}  // namespace fsdp
