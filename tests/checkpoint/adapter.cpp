// PEFT's folders: adapter_config.json describes the tensors, or the folder is refused by name.
#include <boost/test/unit_test.hpp>

#include <nlohmann/json.hpp>

#include "checkpoint/adapter.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/support.hpp"
#include "files/json.hpp"

using namespace fsdp;
using namespace fsdp::test;
using nlohmann::json;

namespace {

using Tensors = std::vector<std::pair<std::string, Shape>>;

/// The names and shapes of the adapters of llama_config() with these targets.
Tensors adapters_of(const std::vector<std::string>& targets) {
  TransformerConfig config = llama_config();
  config.lora = {.rank = 2, .targets = targets};
  Tensors all;
  for (const Parameter& parameter : list_parameters(config).parameters)
    if (parameter.is_adapter) all.emplace_back(parameter.name, parameter.shape);
  return all;
}
const Tensors queries_and_values = adapters_of({"q_proj", "v_proj"});

/// Why PEFT's folder with these changes to its config is refused; empty if it is read.
std::string refusal(const std::string& changes, const Tensors& tensors = queries_and_values,
                    std::vector<std::string>* warnings = nullptr, const TransformerConfig& base = llama_config()) {
  const TemporaryFolder folder;
  json config = {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}, {"target_modules", {"q_proj", "v_proj"}}};
  config.update(parse_json("{" + changes + "}"));
  write_file(folder.path() / "adapter_config.json", config.dump());
  Tensors named;
  std::size_t bytes = 0;
  for (const auto& [name, shape] : tensors) named.emplace_back("base_model.model." + name, shape), bytes += numel(shape) * 4;
  write_file(folder.path() / "adapter_model.safetensors", safetensors_header(named) + std::string(bytes, '\0'));
  try {
    const Adapter adapter = open_adapter(folder.path(), base, warnings);
    const auto copies = std::count_if(tensors.begin(), tensors.end(),
                                      [](const auto& one) { return one.first.ends_with(".base_layer.weight"); });
    BOOST_TEST(adapter.tensors->names().size() + static_cast<std::size_t>(copies) == tensors.size());
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}
Tensors without(const std::string& part) {
  Tensors rest = queries_and_values;
  BOOST_TEST(std::erase_if(rest, [&](const auto& one) { return one.first.find(part) != std::string::npos; }) > 0u);
  return rest;
}
Tensors with(const std::string& name, Shape shape) {
  Tensors more = queries_and_values;
  more.emplace_back(name, std::move(shape));
  return more;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_config_that_describes_the_tensors_is_read) {
  for (const char* config :
       {"", R"("target_modules": ["q_proj", "self_attn.v_proj", "other"])", R"("target_modules": ".*\\.(q|v)_proj")",
        R"("target_modules": "(?:.*\\.)?self_attn\\.[qv]_proj")",
        R"("target_modules": "all-linear", "exclude_modules": ["k_proj", "o_proj", "mlp.up_proj", "gate_proj", "down_proj"])",
        R"("target_modules": ["q_proj", "k_proj", "v_proj"], "exclude_modules": ".*k_proj")", R"("exclude_modules": [])",
        R"("layers_to_transform": [0, 1])", R"("layers_to_transform": [0, 1], "layers_pattern": ["blocks", "layers"])",
        R"("rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.0.*": 3})",
        R"("layers_to_transform": [], "layers_pattern": null)"})
    BOOST_TEST(refusal(config) == "", config);
  BOOST_TEST(refusal(R"("layers_to_transform": 1)", without("layers.0")) == "");
  // As in PEFT, a whole name is a target in any block.
  const std::string name = "model.layers.0.self_attn.q_proj";
  BOOST_TEST(refusal(R"("target_modules": ["q_proj", ")" + name + R"("], "layers_to_transform": 1)", adapters_of({"q_proj"})) ==
             "");
}

BOOST_AUTO_TEST_CASE(another_config_is_refused) {
  for (const auto& [config, text] : std::vector<std::pair<std::string, std::string>>{
           {R"("target_modules": ["q_proj"])", "adapters of 2 modules that it leaves out: model.layers.0.self_attn.v_proj"},
           {R"("target_modules": ["q_proj", "v_proj", "up_proj"])", "2 modules without an adapter: model.layers.0.mlp.up_proj"},
           {R"("target_modules": "q_proj|v_proj")", "adapters of 4 modules that it leaves out"},
           {R"("target_modules": "all-linear")", "10 modules without an adapter"},
           {R"("target_modules": [])", "adapters of 4 modules that it leaves out"},
           {R"("target_modules": [1])", "target_modules [1]"},
           {R"("target_modules": "(?P<a>q).*")", "a list of names, or a simple pattern, is read"},
           {R"("target_modules": "(a?){30000}")", "a list of names, or a simple pattern, is read"},
           {R"("target_modules": "(?!.*mlp).*[qv]_proj")", "a list of names, or a simple pattern, is read"},
           {R"("exclude_modules": ["layers.1.self_attn.q_proj"])", "adapters of 1 module that it leaves out"},
           {R"("layers_to_transform": 0)", "adapters of 2 modules that it leaves out: model.layers.1.self_attn.q_proj"},
           {R"("layers_to_transform": [0, 1.5])", "adapters of 2 modules that it leaves out"},
           {R"("layers_to_transform": [0, 1], "layers_pattern": "blocks")", "adapters of 4 modules that it leaves out"},
           {R"("target_modules": ".*[qv]_proj", "layers_to_transform": [0, 1])",
            "layers_to_transform (PEFT takes it only with a list"},
           {R"("target_modules": ["q_proj", "v_proj", "lm_head"])", "1 module without an adapter: lm_head"},
           {R"("target_modules": ["q_proj", "v_proj", "embed_tokens"])", "1 module without an adapter: model.embed_tokens"},
           {R"("modules_to_save": ["lm_head"])", "lm_head.weight: it is missing"},
           {R"("modules_to_save": ["heads"])", "`modules to save` 'heads' matches no module"},
           {R"("modules_to_save": "lm_head")", "modules_to_save \"lm_head\" (a list of names is read)"},
           {R"("modules_to_save": ["self_attn"])", "is in `modules to save` and in `targets of adapters`"},
           {R"("rank_pattern": {".*q_proj": 3})", "its shape is [2, 20] in the source, but [3, 20]"},
           {R"("rank_pattern": {"q_proj": 0})", "is damaged (rank_pattern of q_proj is 0)"},
           {R"("rank_pattern": [1])", "rank_pattern [1] (it is an object)"},
           {R"("trainable_token_indices": [3, 4])", "trainable_tokens_delta: it is missing"},
           {R"("trainable_token_indices": [-1])", "trainable_token_indices [-1] (token numbers"},
           {R"("trainable_token_indices": {"q_proj": [1]})", "only the embedding and the head have rows of tokens"},
           {R"("r": 2.5)", "r 2.5"},
           {R"("use_rslora": 1)", "use_rslora 1"},
           {R"("r": 3)", "its shape is [2, 20] in the source, but [3, 20]"}})
    CHECK_CONTAINS(refusal(config), text);
}

BOOST_AUTO_TEST_CASE(missing_and_other_tensors_are_refused) {
  for (const auto& [tensors, text] : std::vector<std::pair<Tensors, std::string>>{
           {without("layers.1."), "2 modules without an adapter: model.layers.1.self_attn.q_proj"},
           {without("layers.0.self_attn.q_proj.lora_B"), "layers.0.self_attn.q_proj.lora_B.weight: it is missing"},
           {without("layers.0.self_attn.q_proj.lora_A"), "layers.0.self_attn.q_proj.lora_A.weight: it is missing"},
           {with("model.embed_tokens.lora_embedding_A", {2, 41}),
            "adapters of 1 module that it leaves out: model.embed_tokens"},
           {with("lm_head.base_layer.weight", {41, 20}), "has the tensor lm_head.base_layer.weight (only projections"},
           {with("model.norm.lora_A.weight", {2, 20}), "has adapters of another model"},
           {with("model.norm.weight", {20}), "has the tensor model.norm.weight (only projections"},
           {with("model.layers.0.self_attn.q_proj.bias", {20}), "has the tensor model.layers.0.self_attn.q_proj.bias"},
           {with("model.layers.7.self_attn.q_proj.lora_A.weight", {2, 20}), "has adapters of another model"}})
    CHECK_CONTAINS(refusal("", tensors), text);
}

// The embedding and the head: PEFT also writes copies of the base model's tables.
BOOST_AUTO_TEST_CASE(adapters_of_the_embedding_and_the_head_are_read) {
  const std::string both = R"("target_modules": ["q_proj", "v_proj", "embed_tokens", "lm_head"])";
  Tensors tensors = adapters_of({"q_proj", "v_proj", "embed_tokens", "lm_head"});
  BOOST_TEST(tensors.size() == queries_and_values.size() + 4);
  BOOST_TEST(refusal(both, tensors) == "");
  const auto [V, C] = std::pair(llama_config().vocab_size, llama_config().width);
  for (const char* module : {"model.embed_tokens", "lm_head"})
    tensors.emplace_back(module + std::string(".base_layer.weight"), Shape{V, C});
  std::vector<std::string> warnings;
  BOOST_TEST(refusal(both, tensors, &warnings) == "");
  BOOST_TEST_REQUIRE(warnings.size() == 3u);
  CHECK_CONTAINS(warnings[0], "model.embed_tokens.base_layer.weight is not read from adapter_model.safetensors");
  CHECK_CONTAINS(warnings[1], "lm_head.base_layer.weight is not read from adapter_model.safetensors");
  // As in PEFT, layers_to_transform leaves out the two, unless their whole names are given.
  CHECK_CONTAINS(refusal(both + R"(, "layers_to_transform": [0, 1])", tensors),
                 "adapters of 1 module that it leaves out: model.embed_tokens");
  BOOST_TEST(
      refusal(R"("target_modules": ["q_proj", "v_proj", "model.embed_tokens", "lm_head"], "layers_to_transform": [0, 1])",
              tensors) == "");
  CHECK_CONTAINS(refusal(both + R"(, "rank_pattern": {"lm_head": 3})", tensors),
                 "its shape is [2, 20] in the source, but [3, 20]");
  CHECK_CONTAINS(refusal(both + R"(, "modules_to_save": ["lm_head"])", tensors),
                 "adapters of 1 module that it leaves out: lm_head");
  TransformerConfig tied = llama_config();
  tied.tied_embeddings = true;
  BOOST_TEST(refusal(both, tensors, nullptr, tied) == "");
  CHECK_CONTAINS(refusal(both + R"(, "ensure_weight_tying": true)", tensors, nullptr, tied),
                 "ensure_weight_tying and adapters of model.embed_tokens");
  BOOST_TEST(refusal(both + R"(, "ensure_weight_tying": true)", tensors) == "");  // nothing is tied
}

BOOST_AUTO_TEST_CASE(an_unknown_base_model_is_named) {
  std::vector<std::string> warnings;
  BOOST_TEST(refusal(R"("base_model_name_or_path": "org/model", "revision": "v2")", queries_and_values, &warnings) == "");
  BOOST_TEST(refusal("", queries_and_values, &warnings) == "");
  BOOST_TEST_REQUIRE(warnings.size() == 2u);
  CHECK_CONTAINS(warnings[0],
                 "trained on the model \"org/model\", revision \"v2\"; it is not checked that the base model is the same");
  CHECK_CONTAINS(warnings[1], "trained on a model that is not named");
}
