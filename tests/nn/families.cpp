// Families of models against transformers: loss and gradient norm of three updates of random small models, which
// tests/golden/families describes; the keys of their config.json; models that are refused.
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <functional>

#include "base/error.hpp"
#include "base/format.hpp"
#include "nn/family_run.hpp"
#include "support/golden.hpp"

using namespace fsdp;
using namespace fsdp::test;
using nlohmann::json;

namespace {

const char* const kFamilies[] = {"llama", "mistral", "qwen2", "qwen3", "phi3", "gemma3_text", "opt", "biogpt", "xglm"};

auto names(const std::string& word) {
  return [word](const UserError& error) { return std::string(error.what()).find(word) != std::string::npos; };
}

json with(json object, const char* key, const json& value) {
  object[key] = value;
  return object;
}

}  // namespace

BOOST_DATA_TEST_CASE(updates_agree_with_transformers, boost::unit_test::data::make(kFamilies), family) {
  BOOST_TEST(compare_with_transformers(family) >= 10);
}

BOOST_DATA_TEST_CASE(an_mlp_in_pieces_agrees_with_transformers, boost::unit_test::data::make(kFamilies), family) {
  BOOST_TEST(compare_with_transformers(family, 5) >= 10);
}

// Adapters of projections, of the embedding and of the head, which may be tied.
BOOST_DATA_TEST_CASE(adapters_agree_with_peft, boost::unit_test::data::make({0, 4}), piece_rows) {
  const json references = read_json(std::filesystem::path(FSDP_TEST_DATA) / "families" / "adapters.json");
  BOOST_TEST(references["cases"].size() == 6u);
  for (const json& one : references["cases"])
    BOOST_TEST(compare_with_transformers(one, references["rate"], static_cast<std::size_t>(piece_rows)) < 1e-6,
               one["lora"].dump());
}

BOOST_AUTO_TEST_CASE(configurations_survive_being_written) {
  const json references = family_references();
  for (const json& one : references["cases"]) {
    if (one["config"]["model_type"] == "starcoder2") continue;  // it is not in the library
    const TransformerConfig config = config_from_json(one["config"]);
    const json written = config_to_json(config);
    BOOST_CHECK(config_from_json(json::parse(written.dump())) == config);
    // The keys that transformers wrote and that are supported are written again, except tokens, dropout and defaults.
    for (const auto& [key, value] : one["config"].items()) {
      if (!written.contains(key) || key.ends_with("token_id")) continue;
      if (key == "rope_parameters")
        BOOST_TEST(config_from_json(with(one["config"], "rope_parameters", written[key])).rope.theta == config.rope.theta);
      else
        BOOST_CHECK_MESSAGE(written[key] == value, key << ": " << written[key] << " instead of " << value);
    }
  }
}

BOOST_AUTO_TEST_CASE(missing_keys_take_the_defaults) {
  const auto described = [](const std::string& family) {
    const TransformerConfig config = config_from_json({{"model_type", family}});
    BOOST_TEST(config.family == family);
    return format("heads of {}, {} for keys; windows {} and {}{}{}{}", config.head_size, config.kv_heads, config.window_of(0),
                  config.window_of(5), config.qkv_bias ? ", biases" : "", config.qk_norm ? ", norms of q and k" : "",
                  config.scaled_embedding ? ", scaled embedding" : "");
  };
  BOOST_TEST(described("llama") == "heads of 128, 32 for keys; windows 0 and 0");
  BOOST_TEST(described("mistral") == "heads of 128, 8 for keys; windows 4096 and 4096");
  BOOST_TEST(described("qwen2") == "heads of 128, 32 for keys; windows 0 and 0, biases");
  BOOST_TEST(described("qwen3") == "heads of 128, 32 for keys; windows 0 and 0, norms of q and k");
  BOOST_TEST(described("phi3") == "heads of 96, 32 for keys; windows 0 and 0");
  BOOST_TEST(described("gemma3_text") == "heads of 256, 4 for keys; windows 4096 and 0, norms of q and k, scaled embedding");
  BOOST_TEST(described("opt") == "heads of 64, 12 for keys; windows 0 and 0, biases");
  for (const char* family : {"biogpt", "xglm"})
    BOOST_TEST(described(family) == "heads of 64, 16 for keys; windows 0 and 0, biases, scaled embedding");
}

BOOST_AUTO_TEST_CASE(features_that_are_not_there_are_refused_by_name) {
  const auto refused = [](const char* family, const char* key, const json& value) {
    BOOST_CHECK_EXCEPTION(config_from_json(with({{"model_type", family}}, key, value)), UserError, names(key));
  };
  refused("mistral", "sliding_window", 0);
  refused("mistral", "sliding_window", "wide");
  refused("phi3", "rope_scaling", {{"type", "linear"}, {"factor", 2.0}});
  refused("gemma3_text", "use_bidirectional_attention", true);
  refused("gemma3_text", "final_logit_softcapping", 30.0);
  refused("gemma3_text", "hidden_activation", "relu");
  refused("gemma3_text", "rope_parameters", {{"rope_type", "default"}});
  refused("opt", "sliding_window", 128);
  refused("opt", "do_layer_norm_before", false);
  refused("opt", "_remove_final_layer_norm", true);
  refused("opt", "layer_norm_elementwise_affine", false);
  refused("opt", "word_embed_proj_dim", 512);
  refused("opt", "activation_function", "tanh");
  refused("biogpt", "hidden_act", "tanh");
  refused("biogpt", "sliding_window", 128);
  refused("xglm", "activation_function", "silu");
  refused("xglm", "add_cross_attention", true);
  BOOST_CHECK_EXCEPTION(config_from_json({{"model_type", "xglm"}, {"d_model", 2}, {"attention_heads", 1}}), UserError,
                        names("two frequencies"));
  for (const char* family : {"mistral", "qwen2", "qwen3"}) {
    refused(family, "hidden_act", "gelu");
    refused(family, "quantization_config", {{"bits", 4}});
    BOOST_CHECK_EXCEPTION(
        config_from_json({{"model_type", family}, {"num_hidden_layers", 1}, {"layer_types", {"sliding_attention"}}}), UserError,
        names("sliding"));
  }
  for (const char* key : {"sliding_window", "use_sliding_window"})
    BOOST_CHECK_NO_THROW(config_from_json(with({{"model_type", "qwen2"}}, key, key[0] == 'u' ? json(false) : json(131072))));
  // The message names the unknown family and all known ones.
  for (const char* word : {"gpt_neox", "gpt2", "llama", "mistral", "qwen2", "qwen3", "opt", "biogpt", "xglm"})
    BOOST_CHECK_EXCEPTION(config_from_json({{"model_type", "gpt_neox"}}), UserError, names(word));
}

BOOST_AUTO_TEST_CASE(all_layers_of_mistral_have_the_window) {
  const json config = {{"model_type", "mistral"}, {"max_position_embeddings", 100}};
  for (const std::size_t window : {30, 300}) {
    const TransformerConfig with_window = config_from_json(with(config, "sliding_window", window));
    BOOST_TEST(
        (with_window.longest_sequence() == 100 && with_window.window_of(0) == window && with_window.window_of(31) == window));
  }
  BOOST_TEST(config_from_json(with(config, "sliding_window", nullptr)).window_of(0) == 0u);
  BOOST_TEST(config_from_json(config).sliding_window == 4096u);
}

// A head size that is the width over the heads is computed again from an overridden width; any other head size is kept.
BOOST_AUTO_TEST_CASE(overrides_keep_heads_that_do_not_follow_from_the_width) {
  ConfigOverrides overrides;
  overrides.width = 256, overrides.heads = 4, overrides.kv_heads = 2;
  BOOST_TEST(override_config(arch_config("qwen3-0.6b"), overrides).head_size == 128u);
  BOOST_TEST(override_config(arch_config("mistral-7b"), overrides).head_size == 64u);
  overrides.heads = 3, overrides.kv_heads = 1;
  BOOST_CHECK_NO_THROW(override_config(arch_config("qwen3-0.6b"), overrides).validate());
  BOOST_CHECK_EXCEPTION(override_config(arch_config("mistral-7b"), overrides), UserError, names("`number of heads`"));
}

// Each architecture with each of these changes is a model that its files can describe, or is refused by name.
BOOST_AUTO_TEST_CASE(changed_sizes_give_a_model_or_a_refusal) {
  using Change = std::function<void(ConfigOverrides&)>;
  const std::vector<Change> changes = {[](ConfigOverrides& o) { o.layers = 1; },
                                       [](ConfigOverrides& o) { o.layers = 2; },
                                       [](ConfigOverrides& o) { o.layers = 7; },
                                       [](ConfigOverrides& o) { o.layers = 200; },
                                       [](ConfigOverrides& o) { o.layers = 0; },
                                       [](ConfigOverrides& o) { o.layers = 4, o.width = 128, o.heads = 2, o.kv_heads = 1; },
                                       [](ConfigOverrides& o) { o.width = 96, o.heads = 3; },
                                       [](ConfigOverrides& o) { o.width = 100, o.heads = 7; },
                                       [](ConfigOverrides& o) { o.ffn_width = 1; },
                                       [](ConfigOverrides& o) { o.heads = 1; },
                                       [](ConfigOverrides& o) { o.heads = 6, o.kv_heads = 4; },
                                       [](ConfigOverrides& o) { o.kv_heads = 1; },
                                       [](ConfigOverrides& o) { o.kv_heads = 0; },
                                       [](ConfigOverrides& o) { o.vocab_size = 1; },
                                       [](ConfigOverrides& o) { o.max_positions = 8; },
                                       [](ConfigOverrides& o) { o.max_positions = 1'000'000; },
                                       [](ConfigOverrides& o) { o.tied_embeddings = true; },
                                       [](ConfigOverrides& o) { o.tied_embeddings = false; },
                                       [](ConfigOverrides& o) { o.layers = 2, o.learned_positions = true; },
                                       [](ConfigOverrides& o) { o.layers = 2, o.learned_positions = false; },
                                       [](ConfigOverrides& o) { o.unscaled_embedding = true; },
                                       [](ConfigOverrides& o) { o.layers = 3, o.unscaled_embedding = false; },
                                       [](ConfigOverrides& o) { o.activation = Activation::relu; },
                                       [](ConfigOverrides& o) { o.layers = 5, o.activation = Activation::gelu_erf; }};
  std::size_t valid = 0;
  for (const auto& [name, description] : list_archs())
    for (std::size_t i = 0; i < changes.size(); ++i) try {
        ConfigOverrides overrides;
        changes[i](overrides);
        const TransformerConfig config = override_config(arch_config(name), overrides);
        config.validate();
        BOOST_CHECK_MESSAGE(config_from_json(config_to_json(config)) == config, name << " with change " << i);
        for (std::size_t layer = 0; layer < std::min(config.layers, arch_config(name).layers); ++layer)
          BOOST_TEST(config.window_of(layer) == arch_config(name).window_of(layer), name << " with change " << i);
        ++valid;
      } catch (const UserError&) {  // any other exception fails the test
      }
  BOOST_TEST(valid > 12 * list_archs().size());
}

BOOST_AUTO_TEST_CASE(parameter_counts_are_the_published_ones) {
  const std::pair<const char*, std::size_t> counts[] = {
      {"mistral-7b", 7241732096u},   {"mistral-7b-v0.3", 7248023552u}, {"mistral-nemo-12b", 12247782400u},
      {"qwen2.5-0.5b", 494032768u},  {"qwen2.5-1.5b", 1543714304u},    {"qwen2.5-3b", 3085938688u},
      {"qwen2.5-7b", 7615616512u},   {"qwen2.5-14b", 14770033664u},    {"qwen2.5-32b", 32763876352u},
      {"qwen2.5-72b", 72706203648u}, {"qwen3-0.6b", 596049920u},       {"qwen3-1.7b", 1720574976u},
      {"qwen3-4b", 4022468096u},     {"qwen3-8b", 8190735360u},        {"qwen3-14b", 14768307200u},
      {"qwen3-32b", 32762123264u},   {"opt-125m", 125239296u},         {"opt-1.3b", 1315758080u},
      {"opt-2.7b", 2651596800u},     {"opt-6.7b", 6658473984u},        {"opt-13b", 12853473280u},
      {"opt-30b", 29974540288u},     {"phi-3-mini-4k", 3821079552u},   {"phi-4", 14659507200u},
      {"gemma-3-270m", 268098176u},  {"gemma-3-1b", 999885952u},       {"opt-66b", 65719701504u},
  };
  for (const auto& [name, count] : counts) BOOST_TEST(parameter_count(arch_config(name)) == count, name);
}
