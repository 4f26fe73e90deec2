// Names, order, shapes and initial values. Names are those of GPT2LMHeadModel and LlamaForCausalLM in transformers. Initial
// values: weights and embeddings normal(initializer_range), norm gains 1, biases 0; GPT-2's projections into the residual
// stream divided by sqrt(2 L) (Radford et al. 2019, section 2.3; GPT2PreTrainedModel._init_weights).
#include "nn/parameters.hpp"

#include <cmath>
#include <utility>

#include "base/format.hpp"
#include "base/narrow.hpp"

namespace fsdp {

namespace {

class Builder {
 public:
  explicit Builder(const TransformerConfig& config) : config_(config) {}

  ModelParameters build() {
    const std::size_t C = config_.width, V = config_.vocab_size;
    const bool gpt2 = config_.family == Family::gpt2;
    out_.token_table = matrix(gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight", {V, C});
    if (gpt2) out_.position_table = matrix("transformer.wpe.weight", {config_.max_positions, C});
    for (std::size_t n = 0; n < config_.layers; ++n) {
      block_ = narrow<int>(n);
      out_.blocks.push_back(gpt2 ? gpt2_block(format("transformer.h.{}.", n)) : llama_block(format("model.layers.{}.", n)));
    }
    block_ = -1;
    out_.final_norm = norm(gpt2 ? "transformer.ln_f" : "model.norm");
    out_.head = config_.tied_embeddings ? out_.token_table : matrix("lm_head.weight", {V, C});
    return std::move(out_);
  }

 private:
  int add(std::string name, Shape shape, Init init) {
    const bool decayed = shape.size() >= 2;
    out_.parameters.push_back({std::move(name), std::move(shape), init, decayed, block_});
    return narrow<int>(out_.parameters.size()) - 1;
  }
  int matrix(std::string name, Shape shape, float scale = 1) {
    return add(std::move(name), std::move(shape), {Init::Kind::normal, config_.initializer_range * scale});
  }
  int vector(std::string name, std::size_t n, float value) { return add(std::move(name), {n}, {Init::Kind::constant, value}); }

  Norm norm(const std::string& name) {
    Norm norm;
    norm.gain = vector(name + ".weight", config_.width, 1);
    if (config_.family == Family::gpt2) norm.bias = vector(name + ".bias", config_.width, 0);
    return norm;
  }
  Linear linear(const std::string& name, std::size_t in, std::size_t out, bool bias, float scale = 1) {
    Linear linear{.in = in, .out = out};
    linear.weight = matrix(name + ".weight", config_.family == Family::gpt2 ? Shape{in, out} : Shape{out, in}, scale);
    if (bias) linear.bias = vector(name + ".bias", out, 0);
    return linear;
  }

  BlockParameters gpt2_block(const std::string& name) {
    const std::size_t C = config_.width, F = config_.ffn_width;
    const float residual = 1 / std::sqrt(2 * static_cast<float>(config_.layers));
    BlockParameters block;
    block.norm1 = norm(name + "ln_1");
    block.qkv = {{linear(name + "attn.c_attn", C, 3 * C, true)}, 1};
    block.attention_out = linear(name + "attn.c_proj", C, C, true, residual);
    block.norm2 = norm(name + "ln_2");
    block.ffn_in = {{linear(name + "mlp.c_fc", C, F, true)}, 1};
    block.ffn_out = linear(name + "mlp.c_proj", F, C, true, residual);
    return block;
  }

  BlockParameters llama_block(const std::string& name) {
    const std::size_t C = config_.width, F = config_.ffn_width, D = config_.head_size;
    const bool attention_bias = config_.attention_bias, mlp_bias = config_.mlp_bias;
    const std::string attention = name + "self_attn.", mlp = name + "mlp.";
    BlockParameters block;
    block.norm1 = norm(name + "input_layernorm");
    block.qkv = {{linear(attention + "q_proj", C, config_.heads * D, attention_bias),
                  linear(attention + "k_proj", C, config_.kv_heads * D, attention_bias),
                  linear(attention + "v_proj", C, config_.kv_heads * D, attention_bias)},
                 3};
    block.attention_out = linear(attention + "o_proj", config_.heads * D, C, attention_bias);
    block.norm2 = norm(name + "post_attention_layernorm");
    block.ffn_in = {{linear(mlp + "gate_proj", C, F, mlp_bias), linear(mlp + "up_proj", C, F, mlp_bias)}, 2};
    block.ffn_out = linear(mlp + "down_proj", F, C, mlp_bias);
    return block;
  }

  const TransformerConfig& config_;
  ModelParameters out_;
  int block_ = -1;
};

}  // namespace

std::vector<std::vector<std::size_t>> parameters_by_stage(const ModelParameters& model) {
  std::vector<std::vector<std::size_t>> stages(model.blocks.size() + 2);
  const auto use = [](std::vector<std::size_t>& stage, int index) {
    if (index >= 0) stage.push_back(static_cast<std::size_t>(index));
  };
  for (const int index : {model.token_table, model.position_table}) use(stages.front(), index);
  for (std::size_t p = 0; p < model.parameters.size(); ++p)
    if (model.parameters[p].block >= 0) stages[static_cast<std::size_t>(model.parameters[p].block) + 1].push_back(p);
  for (const int index : {model.final_norm.gain, model.final_norm.bias, model.head}) use(stages.back(), index);
  return stages;
}

ModelParameters list_parameters(const TransformerConfig& config) { return Builder(config).build(); }

std::size_t parameter_count(const TransformerConfig& config) {
  std::size_t count = 0;
  for (const Parameter& parameter : list_parameters(config).parameters) count += numel(parameter.shape);
  return count;
}

}  // namespace fsdp
