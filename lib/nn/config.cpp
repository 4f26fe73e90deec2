// Configurations of all families: refused features, consistency checks, and the shared keys of config.json.
#include "nn/config.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/json.hpp"
#include "nn/families.hpp"
#include "nn/families/config_keys.hpp"
#include "nn/parameters.hpp"
#include "nn/rope.hpp"
#include "text/json_reader.hpp"

namespace fsdp {

using nlohmann::json;

namespace {

void require_heads_divide_width(const TransformerConfig& config) {
  if (config.width % config.heads != 0)
    throw UserError(
        format("{} attention heads do not divide the width {} (each head takes an equal part); change "
               "`number of heads` or `width`",
               config.heads, config.width));
}

/// Reads the keys of config.json that define the arithmetic.
TransformerConfig read_keys(const Family& family, const json& object) {
  TransformerConfig config = family.defaults;
  config.family = family.model_type;
  config.vocab_size = keys::read_count(object, {"vocab_size"}, config.vocab_size);
  config.tied_embeddings = keys::read_bool(object, "tie_word_embeddings", config.tied_embeddings);
  return family.read(object, std::move(config));
}

json write_keys(const Family& family, const TransformerConfig& config) {
  json object = family.write(config);
  object["vocab_size"] = config.vocab_size;
  object["tie_word_embeddings"] = config.tied_embeddings;
  return object;
}

}  // namespace

void TransformerConfig::validate() const {
  const auto require = [](bool ok, const std::string& message) {
    if (!ok) throw UserError(message);
  };
  const auto positive = [&](std::size_t value, const char* what, const char* remedy) {
    require(value > 0, format("{} is 0 (a model needs at least one); set {}", what, remedy));
  };
  positive(vocab_size, "the vocabulary size", "`vocabulary size` (config.json: vocab_size)");
  positive(max_positions, "the longest sequence", "n_positions or max_position_embeddings in config.json");
  positive(width, "the width", "`width` (config.json: n_embd, hidden_size)");
  positive(layers, "the number of layers", "`number of layers` (config.json: n_layer, num_hidden_layers)");
  require(
      layers <= 10'000,
      format(
          "{} layers are too many (the limit is 10000); correct `number of layers` (config.json: n_layer, num_hidden_layers)",
          layers));
  positive(heads, "the number of heads", "`number of heads` (config.json: n_head, num_attention_heads)");
  positive(kv_heads, "the number of key/value heads", "`number of key/value heads` (config.json: num_key_value_heads)");
  positive(ffn_width, "the inner width", "`inner width` (config.json: n_inner, intermediate_size, ffn_dim)");
  require(vocab_size <= std::numeric_limits<std::int32_t>::max(),
          format("the vocabulary size is {} (tokens are 32-bit); lower `vocabulary size`", vocab_size));
  const Family& row = find_family(family);
  if (!row.free_head_size) require_heads_divide_width(*this);
  positive(head_size, "the head size", "head_dim in config.json");
  require(heads % kv_heads == 0,
          format("{} key/value heads do not divide {} attention heads (each serves an equal group); change "
                 "`number of key/value heads` or `number of heads`",
                 kv_heads, heads));
  require(sliding_window <= std::numeric_limits<std::uint32_t>::max(),
          format("the sliding window is {} (the limit is 2^32 - 1); correct config.json", sliding_window));
  require(norm_eps > 0,
          "the epsilon of the norms is not positive (the norm of a constant row would divide by zero); set layer_norm_epsilon "
          "or rms_norm_eps in config.json");
  require(initializer_range >= 0, "initializer_range is negative (it is a standard deviation); correct config.json");
  require(row.grouped_queries || kv_heads == heads,
          format("{} key/value heads for {} query heads do not work ({} has no grouped-query attention); leave out `number of "
                 "key/value heads` or use another architecture",
                 kv_heads, heads, family));
  require(
      positions != Positions::sinusoidal || width >= 4,
      format("the width is {} (sinusoidal positions need a sine and a cosine of at least two frequencies); set `width` to 4 or "
             "more",
             width));
  if (positions == Positions::rotary) {
    require(row.partial_rotary || rope.rotated == 1,
            format("partial_rotary_factor is not 1 (models of the family {} rotate whole heads); correct config.json", family));
    validate_rope(*this, rope);
    if (window_rope) validate_rope(*this, *window_rope);
  }
  const TransformerConfig base = without_adapters(*this);
  for (const auto& [table, tokens] :
       {std::pair(&row.names.token_table, &lora.tokens), std::pair(&row.names.head, &lora.head_tokens)}) {
    const std::set<std::size_t> rows(tokens->begin(), tokens->end());
    require(rows.size() == tokens->size() && (rows.empty() || *rows.rbegin() < vocab_size),
            "the adapter lists a token twice, or one that the model does not have; use another adapter");
    if ((tokens == &lora.head_tokens && tied_embeddings) || trains_whole(*this, *table)) continue;
    for (std::size_t token = base.vocab_size; token < vocab_size; ++token)
      require(rows.contains(token),
              format("the model has {} tokens, and its adapter has no row for token {} (of {}); resize the "
                     "vocabulary of the model first",
                     base.vocab_size, token, vocab_size));
  }
  expect(read_keys(row, write_keys(row, base)) == base, "the configuration is one that its family can have");
}

TransformerConfig without_adapters(TransformerConfig config) {
  if (config.lora.base_vocab > 0) config.vocab_size = config.lora.base_vocab;
  config.lora = {};
  config.base_type = {};
  return config;
}

TransformerConfig with_lora(TransformerConfig base, Lora lora) {
  if (lora.vocab > 0) base.vocab_size = lora.vocab;
  base.lora = std::move(lora);
  return base;
}

std::size_t TransformerConfig::longest_sequence() const {
  if (positions != Positions::rotary) return max_positions;
  const auto extended = [&](std::size_t original) {
    return std::max(max_positions, static_cast<std::size_t>(rope.factor * static_cast<double>(original)));
  };
  if (rope.kind == RopeKind::linear || rope.kind == RopeKind::dynamic) return extended(max_positions);
  if (rope.kind == RopeKind::yarn) return extended(rope.original_positions);
  return max_positions;
}

std::size_t TransformerConfig::window_of(std::size_t layer) const {
  const bool is_full = layer < window_from || (full_every > 0 && (layer + 1) % full_every == 0);
  return is_full ? 0 : sliding_window;
}

namespace {

bool has(const Family& family, TransformerConfig config) {
  config.family = family.model_type;
  try {
    return read_keys(family, write_keys(family, config)) == config;
  } catch (const UserError&) {
    return false;
  }
}

/// Applies the overrides that some families do not support, one at a time, so that an error can name the first one that is not
/// possible.
void change_kind(TransformerConfig& config, const ConfigOverrides& overrides) {
  const auto change = [&](auto TransformerConfig::*field, auto value, const char* what) {
    if (config.*field == value) return;
    config.*field = value;
    const Family& own = find_family(config.family);
    if (has(own, config)) return;
    for (const Family* family : families())
      if (family->initial == own.initial && has(*family, config)) {
        config.family = family->model_type;
        return;
      }
    throw UserError(
        format("{} is not possible in a model of the family {} (no known family differs only in this); leave it out, or "
               "choose another `architecture`",
               what, config.family));
  };
  if (const auto learned = overrides.learned_positions) {
    const Positions wanted = *learned ? Positions::learned : Positions::sinusoidal;
    change(&TransformerConfig::positions, wanted, *learned ? "`learned positions`" : "`sinusoidal positions`");
  }
  if (const auto unscaled = overrides.unscaled_embedding)
    change(&TransformerConfig::scaled_embedding, !*unscaled, *unscaled ? "`unscaled embedding`" : "`scaled embedding`");
  if (const auto activation = overrides.activation)
    change(&TransformerConfig::activation, *activation, format("`activation` {}", keys::name_of(*activation)).c_str());
}

}  // namespace

TransformerConfig override_config(TransformerConfig config, const ConfigOverrides& overrides) {
  const TransformerConfig before = config;
  config.layers = overrides.layers.value_or(before.layers);
  config.width = overrides.width.value_or(before.width);
  config.heads = overrides.heads.value_or(before.heads);
  config.vocab_size = overrides.vocab_size.value_or(before.vocab_size);
  config.max_positions = overrides.max_positions.value_or(before.max_positions);
  if (config.padding_token >= config.vocab_size) config.padding_token.reset();
  config.ffn_width = overrides.ffn_width.value_or(before.ffn_width == 4 * before.width ? 4 * config.width : before.ffn_width);
  config.kv_heads = overrides.kv_heads.value_or(before.kv_heads == before.heads ? config.heads : before.kv_heads);
  if ((overrides.width || overrides.heads) && config.heads > 0 && before.head_size * before.heads == before.width) {
    require_heads_divide_width(config);
    config.head_size = config.width / config.heads;
  }
  config.tied_embeddings = overrides.tied_embeddings.value_or(before.tied_embeddings);
  keys::read_layer_types(json::object(), config);  // with fewer layers, another rule may describe which ones have a window
  change_kind(config, overrides);
  return config;
}

TransformerConfig config_from_json(const json& object) {
  if (!object.is_object())
    throw UserError("config.json is not a JSON object (so it is not a model's configuration); check the folder");
  const Family* family = nullptr;
  const std::string type = keys::read_text(object, "model_type", "");
  try {
    family = &find_family(type);
  } catch (const UserError& unknown) {
    throw UserError(format("config.json: {}", unknown.what()));
  }
  // Keys for arithmetic that no family here has, each with the value that turns it off.
  const std::pair<const char*, json> no_family_has[] = {{"add_cross_attention", false},
                                                        {"is_encoder_decoder", false},
                                                        {"is_causal", true},
                                                        {"alibi", false},
                                                        {"parallel_residual", false},
                                                        {"use_parallel_residual", false},
                                                        {"rope_interleave", false},
                                                        {"rope_interleaved", false},
                                                        {"rotary_pct", 1.0},
                                                        {"embedding_multiplier", 1.0},
                                                        {"residual_multiplier", 1.0},
                                                        {"attention_multiplier", 1.0},
                                                        {"logits_scaling", 1.0},
                                                        {"logit_scale", 1.0}};
  for (const auto& [key, off] : no_family_has) keys::require_off(object, key, off);
  const auto require_without = [&](const char* key) {
    if (const json* value = keys::find(object, {key}); value && *value != json(false))
      throw UserError(format("config.json: \"{}\" is not supported (it changes the results); use a model without it", key));
  };
  for (const char* key : {"quantization_config", "attn_logit_softcapping", "final_logit_softcapping", "clip_qkv"})
    require_without(key);
  if (const json* heads = keys::find(object, {"pruned_heads"}); heads && !heads->empty())
    throw UserError("config.json: \"pruned_heads\" is not supported (it changes the shapes); use a model with all its heads");
  if (const json* types = keys::find(object, {"layer_types"}))
    for (const json& layer_type : *types)
      if (layer_type != "full_attention" && !(layer_type == "sliding_attention" && family->reads_layer_types))
        throw UserError(
            format("config.json: layer type {} is not supported in models of this family (it changes the results); use a model "
                   "with full attention in all layers",
                   json_excerpt(layer_type)));
  const TransformerConfig config = read_keys(*family, object);
  // A window or a chunk as long as the longest sequence has no effect.
  const auto require_long = [&](const char* key) {
    const json* value = keys::find(object, {key});
    if (!value || !value->is_number_integer() || keys::read_count(object, {key}, 0) < config.max_positions)
      require_without(key);
  };
  require_long("attention_chunk_size");
  if (!family->reads_sliding_window) require_long("sliding_window");
  config.validate();
  return config;
}

json config_to_json(const TransformerConfig& config) {
  const Family& family = find_family(config.family);
  json object = write_keys(family, config);
  object.update(json{
      {"architectures", {family.architecture}}, {"dtype", "float32"}, {"model_type", family.model_type}, {"use_cache", true}});
  return object;
}

namespace {

/// Keys that do not change the computation, whatever their value: settings of the package transformers, keys for other heads
/// than the LM head, dropout (an option of training), and special tokens (text/end_tokens.hpp reads them).
constexpr const char* without_effect[] = {"_attn_implementation",
                                          "_attn_implementation_autoset",
                                          "_commit_hash",
                                          "_sliding_window_pattern",
                                          "_flash_attn_2_enabled",
                                          "_name_or_path",
                                          "activation_dropout",
                                          "attention_dropout",
                                          "attention_probs_dropout_prob",
                                          "attn_implementation",
                                          "attn_pdrop",
                                          "bos_token_id",
                                          "chunk_size_feed_forward",
                                          "decoder_start_token_id",
                                          "dropout",
                                          "embd_pdrop",
                                          "eos_token_id",
                                          "finetuning_task",
                                          "gradient_checkpointing",
                                          "hidden_dropout_prob",
                                          "id2label",
                                          "is_decoder",
                                          "label2id",
                                          "layerdrop",
                                          "n_ctx",
                                          "num_labels",
                                          "output_attentions",
                                          "output_hidden_states",
                                          "output_past",
                                          "pad_token_id",
                                          "prefix",
                                          "pretraining_tp",
                                          "problem_type",
                                          "resid_pdrop",
                                          "return_dict",
                                          "sep_token_id",
                                          "summary_activation",
                                          "summary_first_dropout",
                                          "summary_proj_to_labels",
                                          "summary_type",
                                          "summary_use_proj",
                                          "task_specific_params",
                                          "tokenizer_class",
                                          "torch_dtype",
                                          "transformers_version",
                                          "unk_token_id",
                                          "unsloth_fixed",
                                          "unsloth_version",
                                          "use_cache"};
/// Keys that config_from_json() or a family reads, or refuses unless they are off. config_to_json() may omit them.
constexpr const char* read_elsewhere[] = {"attention_chunk_size",
                                          "hidden_size",
                                          "layer_types",
                                          "max_position_embeddings",
                                          "num_attention_heads",
                                          "num_hidden_layers",
                                          "quantization_config",
                                          "rope_scaling",
                                          "rope_theta",
                                          "rope_local_base_freq",
                                          "sliding_window_pattern",
                                          "use_bidirectional_attention",
                                          "original_max_position_embeddings",
                                          "rope_parameters",
                                          "sliding_window",
                                          "use_sliding_window",
                                          "pruned_heads",
                                          "partial_rotary_factor",
                                          "max_window_layers",
                                          "layer_norm_elementwise_affine",
                                          "layer_norm_eps",
                                          "_remove_final_layer_norm",
                                          "is_encoder_decoder",
                                          "add_cross_attention",
                                          "is_causal",
                                          "alibi",
                                          "parallel_residual",
                                          "use_parallel_residual",
                                          "rope_interleave",
                                          "rope_interleaved",
                                          "rotary_pct",
                                          "embedding_multiplier",
                                          "residual_multiplier",
                                          "attention_multiplier",
                                          "logits_scaling",
                                          "logit_scale"};

}  // namespace

std::optional<std::string> keys::doubt_config(const std::filesystem::path& folder) {
  if (kind_of(folder / "config.json") != PathKind::file) return std::nullopt;
  const json object = read_json_object(folder / "config.json"), read = config_to_json(read_config(folder));
  const auto is_in = [](const auto& names, const std::string& name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  std::vector<std::string> others;
  for (const auto& [name, value] : object.items())
    if (!value.empty() && value != json(false) && !read.contains(name) && !is_in(without_effect, name) &&
        !is_in(read_elsewhere, name))
      others.push_back(excerpt(name));
  if (others.empty()) return std::nullopt;
  const std::size_t all = others.size();
  if (all > 5) others.resize(5), others.push_back(format("and {} more", all - 5));
  return format(
      "config.json of {} has keys that are unknown for model_type \"{}\" and not used: {}; compare the model with "
      "transformers",
      folder.string(), read["model_type"].get<std::string>(), fmt::join(others, ", "));
}

TransformerConfig read_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  if (kind_of(path) == PathKind::missing)
    throw UserError(format("{} cannot be read (a model is a folder with config.json and *.safetensors); check `model folder`",
                           path.string()));
  const json parsed = read_json_object(path);
  try {
    return config_from_json(parsed);
  } catch (const UserError& error) {
    throw UserError(format("{}: {}", folder.string(), error.what()));
  }
}

}  // namespace fsdp
