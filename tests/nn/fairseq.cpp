// Compares --arch transformer_lm* with fairseq's sources (facebookresearch/fairseq): sizes, positions, activations, tying,
// initial weights; and the loss of two tiny models that tests/golden/fairseq/make.py has computed with fairseq's formulas, from
// weights that tools/fairseq-to-hf has converted. docs/from-fairseq.md lists the differences.
#include <cmath>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "base/error.hpp"
#include "nn/model_run.hpp"
#include "support/golden.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// models/transformer_lm.py. `decoder_normalize_before` is true and `no_decoder_final_norm` and `no_scale_embedding` are false
/// in all of them (base_lm_architecture), the input and the output have the model's width, and all projections have biases
/// (modules/multihead_attention.py, modules/transformer_layer.py) but the output's (build_output_projection).
struct Row {
  const char* function;  // the function of this name; `base` is the function that it calls last
  const char* base;
  std::size_t embed_dim, ffn_embed_dim, layers, heads;
  Activation activation_fn;
  bool learned_pos, share_input_output_embed;
};
constexpr Activation gelu = Activation::gelu_erf, relu = Activation::relu;  // utils.get_activation_fn: F.gelu, F.relu

const Row kRows[] = {
    {"transformer_lm_big", "base_lm_architecture", 1024, 4096, 12, 16, relu, false, false},
    {"transformer_lm_gpt", "base_lm_architecture", 768, 3072, 12, 12, gelu, false, false},
    {"transformer_lm_gpt2_tiny", "base_lm_architecture", 64, 64, 2, 1, gelu, false, false},
    {"transformer_lm_gpt2_small", "base_lm_architecture", 1024, 4096, 24, 16, gelu, false, false},
    {"transformer_lm_gpt2_medium", "base_lm_architecture", 1280, 5120, 36, 20, gelu, false, false},
    {"transformer_lm_gpt2_big", "base_lm_architecture", 1600, 6400, 48, 25, gelu, false, false},
    {"transformer_lm_gpt2_big_wide", "base_lm_architecture", 2048, 8192, 24, 32, gelu, false, false},
    {"transformer_lm_gpt2_bigger", "base_lm_architecture", 2048, 8192, 48, 32, gelu, false, false},
    {"transformer_lm_gpt3_small", "base_gpt3_architecture", 768, 3072, 12, 12, gelu, true, true},
    {"transformer_lm_gpt3_medium", "base_gpt3_architecture", 1024, 4096, 24, 16, gelu, true, true},
    {"transformer_lm_gpt3_large", "base_gpt3_architecture", 1536, 6144, 24, 16, gelu, true, true},
    {"transformer_lm_gpt3_xl", "base_gpt3_architecture", 2048, 8192, 24, 32, gelu, true, true},
    {"transformer_lm_gpt3_2_7", "base_gpt3_architecture", 2560, 10240, 32, 32, gelu, true, true},
    {"transformer_lm_gpt3_6_7", "base_gpt3_architecture", 4096, 16384, 32, 32, gelu, true, true},
    {"transformer_lm_gpt3_13", "base_gpt3_architecture", 5120, 20480, 40, 40, gelu, true, true},
    {"transformer_lm_gpt3_175", "base_gpt3_architecture", 12288, 49152, 96, 96, gelu, true, true},
};
std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.function; }

const Parameter& parameter(const std::vector<Parameter>& all, const std::string& name) {
  for (const Parameter& one : all)
    if (one.name == name) return one;
  BOOST_FAIL("no parameter " << name);
  return all.front();
}

void check_init(const std::vector<Parameter>& all, const std::string& name, Init::Kind kind, double value) {
  const Parameter& one = parameter(all, name);
  BOOST_TEST((one.init.kind == kind), name);
  BOOST_TEST(one.init.value == static_cast<float>(value), boost::test_tools::tolerance(1e-6f));
}

}  // namespace

BOOST_DATA_TEST_CASE(an_architecture_has_the_values_of_its_function, boost::unit_test::data::make(kRows), row) {
  const TransformerConfig c = arch_config(row.function);
  BOOST_TEST(c.width == row.embed_dim);
  BOOST_TEST(c.ffn_width == row.ffn_embed_dim);
  BOOST_TEST(c.layers == row.layers);
  BOOST_TEST(c.heads == row.heads);
  BOOST_TEST(c.kv_heads == row.heads);
  BOOST_TEST(c.head_size * row.heads == row.embed_dim);
  BOOST_TEST((c.activation == row.activation_fn));
  BOOST_TEST((c.positions == (row.learned_pos ? Positions::learned : Positions::sinusoidal)));
  BOOST_TEST(c.tied_embeddings == row.share_input_output_embed);
  // transformer_decoder.py: embed_scale = sqrt(embed_dim).
  BOOST_TEST(c.scaled_embedding);
  // positional_embedding.py: rows begin at padding_idx + 1, and data/dictionary.py has <s>, <pad>, </s>, <unk> in this order.
  BOOST_TEST(c.position_offset == 2u);
  // modules/layer_norm.py: torch.nn.LayerNorm's default.
  BOOST_TEST((c.norm == NormKind::layer));
  BOOST_TEST(c.norm_eps == 1e-5f);
  BOOST_TEST((c.qkv_bias && c.attention_out_bias && c.mlp_bias && !c.qk_norm));
  // models/transformer_lm.py, build_model: max_target_positions is tokens_per_sample; GPT-3's are the most here.
  BOOST_TEST(c.max_positions == (row.learned_pos ? 2048u : 100000u));

  // The parameters, counted from the shapes there: embedding, positions, blocks, final norm, output projection.
  const std::size_t V = c.vocab_size, C = row.embed_dim, F = row.ffn_embed_dim;
  const std::size_t block = 4 * (C * C + C) + (C * F + F) + (F * C + C) + 2 * 2 * C;
  BOOST_TEST(parameter_count(c) == V * C + (row.learned_pos ? (2048 + 2) * C : 0) + row.layers * block + 2 * C +
                                       (row.share_input_output_embed ? 0 : V * C));
}

BOOST_AUTO_TEST_CASE(every_architecture_of_transformer_lm_is_there_or_refused_by_name) {
  std::size_t count = 0;
  for (const auto& [name, described] : list_archs()) count += name.starts_with("transformer_lm");
  BOOST_TEST(count == std::size(kRows));
  const std::pair<const char*, const char*> refused[] = {
      {"transformer_lm", "its norms are after attention and MLP"},  // its dataclass: decoder_normalize_before = False
      {"transformer_lm_wiki103", "its embedding and its softmax are adaptive"},
      {"transformer_lm_baevski_wiki103", "its embedding and its softmax are adaptive"},
      {"transformer_lm_gbw", "it has no norm after the last block"},
      {"transformer_lm_baevski_gbw", "it has no norm after the last block"},
      {"lstm_lm", "it is a recurrent network"},
      {"fconv_lm", "it is a network of convolutions"},
      {"lightconv_lm", "it has convolutions"},
      {"hf_gpt2", "it is Hugging Face's GPT-2"},
      {"hf_gpt2_medium", "it is Hugging Face's GPT-2"},
      {"hf_gpt2_large", "it is Hugging Face's GPT-2"},
      {"hf_gpt2_xl", "it is Hugging Face's GPT-2"},
  };
  for (const auto& [name, why] : refused) {
    std::string said;
    try {
      arch_config(name);
    } catch (const UserError& error) {
      said = error.what();
    }
    const bool of_transformer_lm = std::string(name).starts_with("transformer_lm");
    for (const char* text : {name, why, of_transformer_lm ? "take transformer_lm_big" : "take gpt2"})
      BOOST_TEST(said.find(text) != std::string::npos, said);
  }
}

// transformer/transformer_decoder.py (output_projection), transformer/transformer_base.py (Embedding), positional_embedding.py,
// multihead_attention.py (reset_parameters), transformer_layer.py (fc1, fc2: torch.nn.Linear's own).
BOOST_AUTO_TEST_CASE(new_weights_are_drawn_as_there) {
  using Kind = Init::Kind;
  TransformerConfig c = arch_config("transformer_lm_gpt3_small");
  c.tied_embeddings = false;
  const std::vector<Parameter> all = list_parameters(c).parameters;
  const double C = 768, F = 3072;
  check_init(all, "biogpt.embed_tokens.weight", Kind::normal, 1 / std::sqrt(C));
  check_init(all, "biogpt.embed_positions.weight", Kind::normal, 1 / std::sqrt(C));
  check_init(all, "output_projection.weight", Kind::normal, 1 / std::sqrt(C));
  for (const std::string name : {"q_proj", "k_proj", "v_proj"}) {
    check_init(all, "biogpt.layers.3.self_attn." + name + ".weight", Kind::uniform, std::sqrt(6 / (2 * C)) / std::sqrt(2));
    check_init(all, "biogpt.layers.3.self_attn." + name + ".bias", Kind::uniform, 1 / std::sqrt(C));
  }
  check_init(all, "biogpt.layers.3.self_attn.out_proj.weight", Kind::uniform, std::sqrt(6 / (2 * C)));
  check_init(all, "biogpt.layers.3.self_attn.out_proj.bias", Kind::constant, 0);
  check_init(all, "biogpt.layers.3.fc1.weight", Kind::uniform, 1 / std::sqrt(C));
  check_init(all, "biogpt.layers.3.fc1.bias", Kind::uniform, 1 / std::sqrt(C));
  check_init(all, "biogpt.layers.3.fc2.weight", Kind::uniform, 1 / std::sqrt(F));
  check_init(all, "biogpt.layers.3.fc2.bias", Kind::uniform, 1 / std::sqrt(F));
  for (const std::string name : {"self_attn_layer_norm", "final_layer_norm"}) {
    check_init(all, "biogpt.layers.3." + name + ".weight", Kind::constant, 1);
    check_init(all, "biogpt.layers.3." + name + ".bias", Kind::constant, 0);
  }
}

// modules/sinusoidal_positional_embedding.py, get_embedding, in double precision.
BOOST_AUTO_TEST_CASE(sinusoids_are_those_of_their_formula) {
  for (const std::size_t C : {4u, 17u, 64u}) {
    ConfigOverrides sizes;
    sizes.width = C, sizes.heads = 1;
    const Transformer model(override_config(arch_config("transformer_lm_gpt2_tiny"), sizes), kernels::traits_of_cpu());
    const std::size_t T = 300, half = C / 2;
    std::vector<float> table(model.table_numel(T));
    BOOST_TEST_REQUIRE(table.size() == T * C);
    model.fill_tables(table, T, T, DType::f32);
    for (const std::size_t t : {0u, 1u, 299u})
      for (std::size_t i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(t + 2) * std::exp(-static_cast<double>(i) * std::log(10000.0) / static_cast<double>(half - 1));
        BOOST_TEST(std::abs(table[t * C + i] - std::sin(angle)) < 4e-5);  // angles of 300 rounded to fp32
        BOOST_TEST(std::abs(table[t * C + half + i] - std::cos(angle)) < 4e-5);
      }
    if (C % 2 == 1) BOOST_TEST(table[5 * C + C - 1] == 0.0f);
  }
}

BOOST_DATA_TEST_CASE(a_converted_checkpoint_has_its_loss, boost::unit_test::data::make({"learned", "sinusoidal"}), name) {
  const std::filesystem::path data = std::filesystem::path(FSDP_TEST_DATA) / "fairseq";
  const json record = read_json(data / "losses.json");
  const std::size_t B = record["B"], T = record["T"];
  const auto tokens = record["tokens"].get<std::vector<std::int32_t>>();
  const auto stored = read_tensors(data / name / "model.safetensors");
  ModelRun run(read_config(data / name));
  BOOST_TEST_REQUIRE(stored.size() == run.weights.size());
  for (std::size_t p = 0; p < run.weights.size(); ++p) run.weights[p] = stored.at(run.model.parameters()[p].name);
  const double loss = run.loss_and_gradients(tokens.data(), tokens.data() + 1, {B, T}, 1 / static_cast<float>(B * T),
                                             kernels::Write::overwrite) /
                      static_cast<double>(B * T);
  const double expected = record["losses"][name];
  BOOST_TEST_MESSAGE(name << ": " << loss / expected - 1 << " apart");
  BOOST_TEST(loss == expected, boost::test_tools::tolerance(1e-6));
}
