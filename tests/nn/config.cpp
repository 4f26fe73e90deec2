// Configurations: read, written, refused; and the lists of their parameters.
#include <cmath>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "nn/families/config_keys.hpp"
#include "nn/rope.hpp"
#include "nn/transformer.hpp"
#include "support/files.hpp"

using namespace fsdp;
using nlohmann::json;

namespace {

const json kGpt2 = {{"model_type", "gpt2"}, {"n_embd", 48},      {"n_head", 4},
                    {"n_layer", 3},         {"n_positions", 32}, {"vocab_size", 211}};
const json kLlama = {
    {"model_type", "llama"},  {"hidden_size", 64},        {"num_attention_heads", 4}, {"num_key_value_heads", 2},
    {"num_hidden_layers", 3}, {"intermediate_size", 172}, {"vocab_size", 197},        {"max_position_embeddings", 48}};

json with(json object, const char* key, const json& value) {
  object[key] = value;
  return object;
}

/// Returns a predicate: the error's message contains `word`.
auto names(const std::string& word) {
  return [word](const UserError& error) { return std::string(error.what()).find(word) != std::string::npos; };
}

std::size_t parameters_of(const char* arch) { return Transformer(arch_config(arch)).parameter_count(); }

}  // namespace

BOOST_AUTO_TEST_CASE(parameter_counts_are_the_published_ones) {
  BOOST_TEST(parameters_of("gpt2") == 124439808u);
  BOOST_TEST(parameters_of("gpt2-medium") == 354823168u);
  BOOST_TEST(parameters_of("gpt2-large") == 774030080u);
  BOOST_TEST(parameters_of("gpt2-xl") == 1557611200u);
  BOOST_TEST(parameters_of("llama-2-7b") == 6738415616u);
  BOOST_TEST(parameters_of("llama-2-13b") == 13015864320u);
  BOOST_TEST(parameters_of("llama-2-70b") == 68976648192u);
  BOOST_TEST(parameters_of("llama-3.1-8b") == 8030261248u);
  BOOST_TEST(parameters_of("llama-3.1-70b") == 70553706496u);
  BOOST_TEST(parameters_of("llama-3.2-1b") == 1235814400u);
  BOOST_TEST(parameters_of("llama-3.2-3b") == 3212749824u);
  BOOST_TEST(parameters_of("tinyllama-1.1b") == 1100048384u);
  BOOST_TEST(parameters_of("smollm2-135m") == 134515008u);
}

BOOST_AUTO_TEST_CASE(every_arch_is_valid_and_survives_json) {
  for (const auto& [name, line] : list_archs()) {
    BOOST_TEST_CONTEXT(name) {
      const TransformerConfig config = arch_config(name);
      BOOST_CHECK_NO_THROW(config.validate());
      BOOST_CHECK(config_from_json(json::parse(config_to_json(config).dump())) == config);
      BOOST_TEST(line.find("parameters") != std::string::npos);
    }
  }
  BOOST_CHECK_EXCEPTION(arch_config("lama-3.2-1b"), UserError, names("did you mean llama-3.2-1b"));
}

BOOST_AUTO_TEST_CASE(missing_keys_take_transformers_defaults) {
  BOOST_CHECK(config_from_json({{"model_type", "gpt2"}}) == arch_config("gpt2"));
  BOOST_CHECK(config_from_json({{"model_type", "llama"}}) == arch_config("llama-7b"));
  const TransformerConfig llama = config_from_json(with(kLlama, "num_key_value_heads", nullptr));
  BOOST_TEST(llama.kv_heads == 4u);
  BOOST_TEST(llama.head_size == 16u);
  BOOST_TEST(config_from_json(with(kGpt2, "n_inner", nullptr)).ffn_width == 192u);
  BOOST_TEST(config_from_json(with(kGpt2, "n_inner", 100)).ffn_width == 100u);
}

BOOST_AUTO_TEST_CASE(both_spellings_of_rotary_positions_are_read) {
  const json scaling = {
      {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 16}};
  json old_scaling = with(scaling, "rope_type", "llama3"), older_scaling = with(scaling, "type", "llama3");
  const json new_scaling = with(old_scaling, "rope_theta", 500000.0);
  const Rope expected{.kind = RopeKind::llama3, .theta = 500000, .factor = 8, .original_positions = 16};
  BOOST_CHECK(config_from_json(with(kLlama, "rope_parameters", new_scaling)).rope == expected);
  BOOST_CHECK(config_from_json(with(with(kLlama, "rope_theta", 500000.0), "rope_scaling", old_scaling)).rope == expected);
  BOOST_CHECK(config_from_json(with(with(kLlama, "rope_theta", 500000), "rope_scaling", older_scaling)).rope == expected);
  BOOST_TEST(config_from_json(with(kLlama, "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7e4}})).rope.theta ==
             7e4);
  BOOST_TEST(config_from_json(kLlama).rope.theta == 1e4);
  // Both keys, as this program writes them; and keys that contradict each other.
  const json both = with(with(kLlama, "rope_parameters", new_scaling), "rope_theta", 500000.0);
  BOOST_CHECK(config_from_json(with(both, "rope_scaling", old_scaling)).rope == expected);
  BOOST_CHECK(config_from_json(with(both, "rope_scaling", nullptr)).rope == expected);
  for (const char* type : {"yarn", "linear"})
    BOOST_CHECK_EXCEPTION(config_from_json(with(both, "rope_scaling", {{"rope_type", type}, {"factor", 2.0}})), UserError,
                          names("differ (transformers uses rope_scaling"));
  BOOST_CHECK_EXCEPTION(config_from_json(with(both, "rope_scaling", {{"rope_type", "default"}})), UserError,
                        names("differ (transformers uses rope_scaling"));
}

BOOST_AUTO_TEST_CASE(what_changes_results_is_refused) {
  BOOST_CHECK_EXCEPTION(config_from_json({{"model_type", "gemma"}}), UserError, names("gemma"));
  BOOST_CHECK_EXCEPTION(config_from_json(json::object()), UserError, names("model_type"));
  BOOST_CHECK_EXCEPTION(config_from_json(json::array()), UserError, names("config.json"));
  const std::pair<const char*, json> gpt2_features[] = {{"scale_attn_by_inverse_layer_idx", true},
                                                        {"reorder_and_upcast_attn", true},
                                                        {"scale_attn_weights", false},
                                                        {"add_cross_attention", true},
                                                        {"activation_function", "relu"},
                                                        {"n_embd", "wide"},
                                                        {"n_layer", -1},
                                                        {"tie_word_embeddings", 1},
                                                        {"quantization_config", {{"bits", 4}}},
                                                        {"pruned_heads", {{"0", {1}}}}};
  for (const auto& [key, value] : gpt2_features)
    BOOST_CHECK_EXCEPTION(config_from_json(with(kGpt2, key, value)), UserError, names(key));
  const std::pair<const char*, json> llama_features[] = {{"hidden_act", "gelu"},         {"sliding_window", 8},
                                                         {"partial_rotary_factor", 0.5}, {"rms_norm_eps", "small"},
                                                         {"rope_theta", INFINITY},       {"attention_bias", "yes"}};
  for (const auto& [key, value] : llama_features)
    BOOST_CHECK_EXCEPTION(config_from_json(with(kLlama, key, value)), UserError, names(key));
  const std::pair<json, const char*> scalings[] = {
      {{{"type", "ntk"}, {"factor", 2.0}}, "ntk"},
      {{{"type", "longrope"}, {"factor", 2.0}}, "short_factor"},
      {{{"type", "longrope"}, {"short_factor", {1.0}}, {"long_factor", {1.0, 2.0}}}, "8 positive numbers"},
      {{{"type", "linear"}}, "factor"},
      {{{"type", "linear"}, {"factor", -2.0}}, "not between 0 and 1e6"},
      {{{"type", "dynamic"}, {"factor", 0.5}}, "dynamic"},
      {{{"type", "yarn"}, {"factor", 2.0}, {"beta_fast", 1.0}, {"beta_slow", 2.0}}, "yarn"},
      {{{"type", "linear"}, {"factor", 2.0}, {"partial_rotary_factor", 0.5}}, "partial_rotary_factor"}};
  for (const auto& [scaling, word] : scalings)
    BOOST_CHECK_EXCEPTION(config_from_json(with(kLlama, "rope_scaling", scaling)), UserError, names(word));
  BOOST_CHECK_EXCEPTION(config_from_json(with(kLlama, "rope_scaling", {{"rope_type", "llama3"}, {"factor", 2.0}})), UserError,
                        names("low_freq_factor"));
  BOOST_CHECK_EXCEPTION(config_from_json(with(kLlama, "layer_types", {"full_attention", "sliding_attention"})), UserError,
                        names("sliding_attention"));
  for (const int pad : {-1, 2, 5})  // a row of the sinusoids is zero
    BOOST_CHECK_EXCEPTION(config_from_json({{"model_type", "xglm"}, {"pad_token_id", pad}}), UserError, names("pad_token_id"));
  BOOST_CHECK_NO_THROW(config_from_json({{"model_type", "xglm"}, {"pad_token_id", 0}}));
  BOOST_CHECK_NO_THROW(config_from_json(with(with(kLlama, "sliding_window", nullptr), "layer_types", {"full_attention"})));
}

BOOST_AUTO_TEST_CASE(what_changes_no_result_is_accepted) {
  const auto plain = config_from_json(kLlama);
  for (const json& scaling : {json{{"type", "linear"}, {"factor", 1.0}}, json{{"rope_type", "linear"}, {"factor", 1}},
                              json{{"rope_type", "default"}}, json{{"rope_type", "dynamic"}, {"factor", 1.0}},
                              json{{"rope_type", "yarn"}, {"factor", 1.0}, {"original_max_position_embeddings", 48}}})
    for (const char* key : {"rope_scaling", "rope_parameters"})
      BOOST_CHECK(config_from_json(with(kLlama, key, scaling)) == plain);
  BOOST_CHECK_EXCEPTION(config_from_json(with(kLlama, "rope_scaling", {{"type", "linear"}})), UserError, names("linear"));
  const json yarn = {{"rope_type", "yarn"}, {"factor", 1.0}, {"attention_factor", 1.5}};
  BOOST_TEST(config_from_json(with(kLlama, "rope_scaling", yarn)).rope.attention_factor == 1.5);
  const std::pair<const char*, json> neutral[] = {{"sliding_window", 48},
                                                  {"sliding_window", false},
                                                  {"attention_chunk_size", 48},
                                                  {"hidden_act", "swish"},
                                                  {"logits_scaling", 1},
                                                  {"embedding_multiplier", 1.0},
                                                  {"is_causal", true},
                                                  {"final_logit_softcapping", nullptr},
                                                  {"pruned_heads", json::object()}};
  for (const auto& [key, value] : neutral) BOOST_CHECK(config_from_json(with(kLlama, key, value)) == plain);
  const std::pair<const char*, json> effective[] = {{"sliding_window", 47},       {"attention_chunk_size", 8},
                                                    {"logits_scaling", 8.0},      {"residual_multiplier", 0.2},
                                                    {"is_encoder_decoder", true}, {"final_logit_softcapping", 30.0}};
  for (const auto& [key, value] : effective)
    BOOST_CHECK_EXCEPTION(config_from_json(with(kLlama, key, value)), UserError, names(key));
  for (const char* name : {"gelu_fast", "gelu_pytorch_tanh", "gelu_accurate"})
    BOOST_CHECK(config_from_json(with(kGpt2, "activation_function", name)) == config_from_json(kGpt2));
}

// In transformers it is the padding_idx of the embedding, except for GPT-2.
BOOST_AUTO_TEST_CASE(a_padding_token_is_read_and_written) {
  using Token = std::optional<std::size_t>;
  for (const char* type : {"gpt2", "llama", "mistral", "qwen2", "qwen3", "opt", "biogpt", "xglm"}) BOOST_TEST_CONTEXT(type) {
      const json object = {{"model_type", type}, {"vocab_size", 50}};
      const bool is_gpt2 = type == std::string("gpt2"), is_xglm = type == std::string("xglm");
      const bool has_default = is_xglm || type == std::string("opt") || type == std::string("biogpt");
      BOOST_CHECK(config_from_json(object).padding_token == (has_default ? Token(1) : Token()));
      BOOST_CHECK(config_from_json(with(object, "pad_token_id", nullptr)).padding_token == Token());
      const TransformerConfig config = config_from_json(with(object, "pad_token_id", 0));
      BOOST_CHECK(config.padding_token == (is_gpt2 ? Token() : Token(0)));
      BOOST_CHECK(config_from_json(config_to_json(config)) == config);
      if (is_gpt2 || is_xglm) continue;
      BOOST_CHECK(config_from_json(with(object, "pad_token_id", -1)).padding_token == Token(49));
      BOOST_CHECK(config_from_json(with(object, "pad_token_id", 50)).padding_token == Token());
      BOOST_CHECK_EXCEPTION(config_from_json(with(object, "pad_token_id", "x")), UserError, names("pad_token_id"));
      ConfigOverrides smaller;
      smaller.vocab_size = 40;
      BOOST_CHECK(override_config(config_from_json(with(object, "pad_token_id", 40)), smaller).padding_token == Token());
    }
}

// A scaling extends the longest sequence, and for two types the length of a sequence decides the frequencies.
BOOST_AUTO_TEST_CASE(scalings_of_rotary_positions) {
  const auto config = [](json scaling) { return config_from_json(with(kLlama, "rope_scaling", std::move(scaling))); };
  const auto classes = [](const TransformerConfig& c) {
    return std::array{rope_class(c, 16), rope_class(c, 48), rope_class(c, 49), rope_class(c, 90)};
  };
  const std::array same{std::size_t{1}, std::size_t{1}, std::size_t{1}, std::size_t{1}};
  const auto linear = config({{"type", "linear"}, {"factor", 2.5}});
  BOOST_TEST(linear.longest_sequence() == 120u);
  BOOST_CHECK(classes(linear) == same);
  const auto dynamic = config({{"type", "dynamic"}, {"factor", 2.0}});
  BOOST_TEST(dynamic.longest_sequence() == 96u);
  BOOST_CHECK((classes(dynamic) == std::array{std::size_t{1}, std::size_t{1}, std::size_t{49}, std::size_t{90}}));
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 20}};
  BOOST_TEST(config(yarn).longest_sequence() == 80u);
  BOOST_TEST(config(yarn).rope.attention_factor == 0.1 * std::log(4.0) + 1, boost::test_tools::tolerance(1e-12));
  BOOST_CHECK(classes(config(yarn)) == same);
  const std::vector<double> factors(8, 2.0);
  const auto longrope = config(
      {{"type", "longrope"}, {"short_factor", factors}, {"long_factor", factors}, {"original_max_position_embeddings", 16}});
  BOOST_TEST(longrope.longest_sequence() == 48u);
  BOOST_TEST(longrope.rope.attention_factor == std::sqrt(1 + std::log(3.0) / std::log(16.0)),
             boost::test_tools::tolerance(1e-12));
  BOOST_CHECK((classes(longrope) == std::array{std::size_t{1}, std::size_t{17}, std::size_t{17}, std::size_t{17}}));
  for (const TransformerConfig& c : {linear, dynamic, config(yarn), longrope})
    BOOST_CHECK(config_from_json(config_to_json(c)) == c);
}

// In Qwen, layers from max_window_layers on, or those named in layer_types, have a window.
BOOST_AUTO_TEST_CASE(windows_count_if_a_layer_has_one) {
  for (const char* type : {"qwen2", "qwen3"}) {
    const json qwen = with(with(kLlama, "model_type", type), "head_dim", 16);
    const json windows = with(with(qwen, "use_sliding_window", true), "sliding_window", 8);
    const auto plain = config_from_json(qwen);
    const json full = {"full_attention", "full_attention", "full_attention"};
    const json sliding = {"sliding_attention", "sliding_attention", "sliding_attention"};
    BOOST_CHECK(config_from_json(windows) == plain);  // the model's 28 layers have no window
    BOOST_CHECK(config_from_json(with(windows, "max_window_layers", 3)) == plain);
    BOOST_CHECK(config_from_json(with(with(windows, "max_window_layers", 0), "layer_types", full)) == plain);
    BOOST_CHECK(config_from_json(with(with(windows, "max_window_layers", 0), "sliding_window", nullptr)) == plain);
    BOOST_CHECK(config_from_json(with(with(windows, "max_window_layers", 0), "use_sliding_window", false)) == plain);
    for (const json& all : {with(windows, "max_window_layers", 0), with(windows, "layer_types", sliding)}) {
      const TransformerConfig config = config_from_json(all);
      BOOST_TEST((config.window_of(0) == 8 && config.window_of(2) == 8));
      BOOST_CHECK(config_from_json(config_to_json(config)) == config);
    }
    const json alternating = {"sliding_attention", "full_attention", "sliding_attention"};
    for (const json& some : {with(windows, "max_window_layers", 1), with(windows, "layer_types", alternating)}) {
      const TransformerConfig config = config_from_json(some);
      BOOST_TEST(((config.window_of(0) == 0) != some.contains("layer_types")));
      BOOST_TEST(((config.window_of(1) == 8) != some.contains("layer_types")));
      BOOST_TEST(config.window_of(2) == 8u);
      BOOST_CHECK(config_from_json(config_to_json(config)) == config);
    }
    const json irregular = {"sliding_attention", "full_attention", "full_attention"};
    BOOST_CHECK_EXCEPTION(config_from_json(with(windows, "layer_types", irregular)), UserError, names("order of layers"));
    BOOST_CHECK_EXCEPTION(config_from_json(with(windows, "layer_types", {"full_attention"})), UserError, names("list of 3"));
    BOOST_CHECK_EXCEPTION(config_from_json(with(with(windows, "layer_types", sliding), "use_sliding_window", false)), UserError,
                          names("layer_types"));
  }
}

BOOST_AUTO_TEST_CASE(keys_that_are_not_known_are_named) {
  const test::TemporaryFolder folder;
  const auto doubt = [&](const json& object) {
    test::write_file(folder / "config.json", object.dump());
    return keys::doubt_config(folder.path()).value_or("");
  };
  for (const Family* family : families())
    for (const Arch& arch : family->archs) BOOST_TEST(doubt(config_to_json(arch.config)) == "");
  json usual = kLlama;
  usual.update(json{{"architectures", {"LlamaForCausalLM"}},
                    {"bos_token_id", 1},
                    {"eos_token_id", {2, 3}},
                    {"pretraining_tp", 1},
                    {"torch_dtype", "bfloat16"},
                    {"transformers_version", "4.46.0"},
                    {"use_cache", true},
                    {"rope_scaling", nullptr},
                    {"quantization_config", nullptr},
                    {"my_switch", false},
                    {"_name_or_path", "x"}});
  BOOST_TEST(doubt(usual) == "");
  test::write_file(folder / "config.json", R"({"model_type": "llama", "_name_or_path": "x\ud83d", "foo": Infinity})");
  BOOST_TEST(keys::doubt_config(folder.path()).value_or("").find("not used: foo;") != std::string::npos);
  usual.update(json{{"my_multiplier", 12}, {"auto_map", {{"AutoModel", "x.py"}}}});
  BOOST_TEST(doubt(usual).find("\"llama\" and not used: auto_map, my_multiplier;") != std::string::npos, doubt(usual));
  for (int i = 0; i < 100; ++i) usual["key" + std::to_string(i)] = 1;
  BOOST_TEST(doubt(usual).find(" and 97 more") != std::string::npos, doubt(usual));
  BOOST_TEST(doubt(usual).size() < 400u);
  // One size under two names.
  BOOST_CHECK_EXCEPTION(config_from_json(with(kGpt2, "hidden_size", 64)), UserError, names("hidden_size"));
  BOOST_TEST(config_from_json(with(kGpt2, "hidden_size", 48)).width == 48u);
  const json xglm = {{"model_type", "xglm"}, {"hidden_size", 32}, {"num_hidden_layers", 3}, {"num_attention_heads", 4}};
  const TransformerConfig aliases = config_from_json(xglm);
  BOOST_TEST((aliases.width == 32u && aliases.layers == 3u && aliases.heads == 4u && aliases.head_size == 8u));
  for (const auto& [key, alias] :
       {std::pair("d_model", "hidden_size"), {"num_layers", "num_hidden_layers"}, {"attention_heads", "num_attention_heads"}}) {
    BOOST_CHECK(config_from_json(with(xglm, key, xglm[alias])) == aliases);
    BOOST_CHECK_EXCEPTION(config_from_json(with(xglm, key, 64)), UserError, names(alias));
  }
  BOOST_CHECK_EXCEPTION(config_from_json(with(kLlama, "partial_rotary_factor", 0.5)), UserError,
                        names("partial_rotary_factor"));
  config_from_json(with(kLlama, "partial_rotary_factor", 1));
}

BOOST_AUTO_TEST_CASE(sizes_that_do_not_fit_name_the_option) {
  BOOST_CHECK_EXCEPTION(config_from_json(with(kGpt2, "n_head", 5)), UserError, names("`number of heads`"));
  BOOST_CHECK_EXCEPTION(config_from_json(with(kGpt2, "n_head", 0)), UserError, names("`number of heads`"));
  BOOST_CHECK_EXCEPTION(config_from_json(with(kGpt2, "n_layer", 0)), UserError, names("`number of layers`"));
  BOOST_CHECK_EXCEPTION(config_from_json(with(kGpt2, "vocab_size", 0)), UserError, names("`vocabulary size`"));
  BOOST_CHECK_EXCEPTION(config_from_json(with(kLlama, "num_key_value_heads", 3)), UserError,
                        names("`number of key/value heads`"));
  BOOST_CHECK_EXCEPTION(config_from_json(with(kLlama, "head_dim", 7)), UserError, names("head_dim"));
  ConfigOverrides overrides;
  overrides.kv_heads = 2;
  BOOST_CHECK_EXCEPTION(override_config(arch_config("gpt2"), overrides).validate(), UserError,
                        names("`number of key/value heads`"));
}

BOOST_AUTO_TEST_CASE(overrides_carry_along_what_follows_from_them) {
  ConfigOverrides overrides;
  overrides.width = 256;
  overrides.layers = 4;
  overrides.heads = 4;
  const TransformerConfig gpt = override_config(arch_config("gpt2"), overrides);
  BOOST_TEST(gpt.ffn_width == 1024u);
  BOOST_TEST(gpt.head_size == 64u);
  BOOST_TEST(gpt.kv_heads == 4u);
  BOOST_CHECK_NO_THROW(gpt.validate());
  overrides = {};
  overrides.layers = 2;
  const TransformerConfig llama = override_config(arch_config("llama-3.1-8b"), overrides);
  BOOST_TEST(llama.kv_heads == 8u);
  BOOST_TEST(llama.head_size == 128u);
  BOOST_TEST(llama.ffn_width == 14336u);
}

BOOST_AUTO_TEST_CASE(parameters_have_hugging_face_names_and_stored_shapes) {
  const Transformer gpt2(config_from_json(kGpt2));
  BOOST_TEST_REQUIRE(gpt2.parameters().size() == 2u + 3 * 12 + 2);
  BOOST_TEST(gpt2.parameters()[0].name == "transformer.wte.weight");
  BOOST_TEST(gpt2.parameters()[1].name == "transformer.wpe.weight");
  BOOST_TEST(gpt2.parameters()[2].name == "transformer.h.0.ln_1.weight");
  const Parameter& c_attn = gpt2.parameters()[2 + 12 + 2];
  BOOST_TEST(c_attn.name == "transformer.h.1.attn.c_attn.weight");
  BOOST_CHECK((c_attn.shape == Shape{48, 144}));
  BOOST_TEST(c_attn.block == 1);
  BOOST_TEST(c_attn.decayed);
  BOOST_TEST(!gpt2.parameters()[2 + 12 + 3].decayed);
  const Parameter& c_proj = gpt2.parameters()[2 + 10];
  BOOST_TEST(c_proj.name == "transformer.h.0.mlp.c_proj.weight");
  BOOST_TEST(c_proj.init.value == 0.02f / std::sqrt(6.0f), boost::test_tools::tolerance(1e-6f));
  BOOST_TEST(gpt2.parameters().back().name == "transformer.ln_f.bias");
  BOOST_TEST(gpt2.parameters().back().block == -1);
  const Transformer untied(config_from_json(with(kGpt2, "tie_word_embeddings", false)));
  BOOST_TEST(untied.parameters().back().name == "lm_head.weight");

  const Transformer llama(config_from_json(with(kLlama, "attention_bias", true)));
  BOOST_TEST_REQUIRE(llama.parameters().size() == 1u + 3 * (9 + 4) + 2);
  const char* block[] = {
      "input_layernorm.weight", "self_attn.q_proj.weight",         "self_attn.q_proj.bias", "self_attn.k_proj.weight",
      "self_attn.k_proj.bias",  "self_attn.v_proj.weight",         "self_attn.v_proj.bias", "self_attn.o_proj.weight",
      "self_attn.o_proj.bias",  "post_attention_layernorm.weight", "mlp.gate_proj.weight",  "mlp.up_proj.weight",
      "mlp.down_proj.weight"};
  for (std::size_t i = 0; i < std::size(block); ++i)
    BOOST_TEST(llama.parameters()[1 + 13 + i].name == std::string("model.layers.1.") + block[i]);
  BOOST_CHECK((llama.parameters()[1 + 3].shape == Shape{32, 64}));
  BOOST_TEST(llama.parameters().back().name == "lm_head.weight");
}

BOOST_AUTO_TEST_CASE(flops_count_the_head_and_not_the_lookups) {
  const Transformer gpt2(arch_config("gpt2"));
  const double multiplied = 124439808.0 - 1024 * 768;
  BOOST_TEST(gpt2.flops_per_token(1024) == 6 * multiplied + 6.0 * 12 * 768 * 1024);
  const Transformer llama(arch_config("llama-2-7b"));
  BOOST_TEST(llama.flops_per_token(4096) == 6 * (6738415616.0 - 32000.0 * 4096) + 6.0 * 32 * 4096 * 4096);
  // Blocks below the first one with adapters have no backward pass.
  TransformerConfig config = arch_config("llama-2-7b");
  config.lora.rank = 8;
  config.lora.targets = {"lm_head"};
  const double table = 32000.0 * 4096, blocks = 6738415616.0 - 2 * table - 4096;
  BOOST_TEST(Transformer(config).flops_per_token(4096) ==
             2 * blocks + 4 * (table + 4096) + 6.0 * 8 * (4096 + 32000) + 2.0 * 32 * 4096 * 4096);
  config.lora.targets = {"q_proj"};
  BOOST_TEST(Transformer(config).flops_per_token(4096) ==
             4 * (blocks + table + 4096) + 6.0 * 32 * 8 * (4096 + 4096) + 6.0 * 32 * 4096 * 4096);
}
