#include "nn/work.hpp"

#include "nn/transformer.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

namespace {

double real(std::size_t n) { return static_cast<double>(n); }

}  // namespace

StageWork::StageWork(const Transformer& model, const std::vector<bool>& trained, BatchShape shape, DType type)
    : c_(model.config()), R_(real(shape.rows())), T_(shape.T), size_(real(size_of(type))) {
  for (const auto& stage : model.parameters_by_stage()) {
    for (std::vector<double>* sums : {&matrices_, &trained_matrices_, &inputs_, &outputs_, &expansion_, &last_expansion_})
      sums->push_back(0);
    for (const std::size_t p : stage) {
      const Shape& shape_of = model.parameters()[p].shape;
      if (shape_of.size() != 2) continue;
      matrices_.back() += real(numel(shape_of));
      if (trained[p]) trained_matrices_.back() += real(numel(shape_of));
      if (const Parameter& parameter = model.parameters()[p]; parameter.quantized) {
        last_expansion_.back() = real(parameter.kept_numel()) * sizeof(float) + real(numel(shape_of)) * size_;
        expansion_.back() += last_expansion_.back();
      }
    }
  }
  const ModelParameters listed = list_parameters(c_);
  for (std::size_t block = 0; block < listed.blocks.size(); ++block) {
    const BlockParameters& parameters = listed.blocks[block];
    const auto add = [&](const Linear& linear) {
      inputs_[1 + block] += real(linear.in + (linear.lora_a < 0 ? 0 : linear.rank + linear.in));
      outputs_[1 + block] += real(linear.out + (linear.lora_a < 0 ? 0 : linear.rank + linear.out));
    };
    for (const LinearGroup* const group : {&parameters.qkv, &parameters.ffn_in})
      for (std::size_t i = 0; i < group->size; ++i) add(group->part[i]);
    add(parameters.attention_out), add(parameters.ffn_out);
  }
  inputs_.back() = real(c_.width), outputs_.back() = real(c_.vocab_size);
}

Cost StageWork::forward(std::size_t block) const {
  const double C = real(c_.width);
  const double norms = (c_.branch_norms ? 4 : 2) * 2 * C, residuals = 2 * 3 * C;
  return {.product_flops = 2 * R_ * matrices_[1 + block],
          .product_outputs = 2 * R_ * outputs_[1 + block],
          .attention_forward_flops = 2 * attention(block),
          .memory_bytes = numbers(norms + residuals + activation() + heads() + biases()) + expansion_[1 + block],
          .attention_tokens = T_,
          .head_size = c_.head_size};
}

Cost StageWork::recompute(std::size_t block, bool in_pieces) const {
  const double C = real(c_.width);
  Cost cost = forward(block);
  if (!c_.branch_norms) {  // else backward needs the last product
    cost.product_flops -= 2 * R_ * real(c_.ffn_width) * C;
    cost.product_outputs -= 2 * R_ * C;
    cost.memory_bytes -= numbers(3 * C) + last_expansion_[1 + block];
  }
  if (!in_pieces) return cost;
  const Cost later = mlp_again();
  cost.product_flops -= later.product_flops, cost.product_outputs -= later.product_outputs;
  cost.memory_bytes -= later.memory_bytes;
  return cost;
}
/// What backward needs of an MLP: its norm, its products, the last one only if a norm follows, and its activation function.
Cost StageWork::mlp_again() const {
  const double C = real(c_.width), products = (is_gated(c_.activation) ? 2 : 1) + (c_.branch_norms ? 1 : 0);
  const double outputs = (is_gated(c_.activation) ? 2 : 1) * real(c_.ffn_width) + (c_.branch_norms ? C : 0);
  return {.product_flops = 2 * R_ * products * real(c_.ffn_width) * C,
          .product_outputs = 2 * R_ * outputs,
          .memory_bytes = numbers((c_.branch_norms ? 4 : 2) * C + activation())};
}

Cost StageWork::recompute_cheap() const { return {.memory_bytes = numbers(2 * 2 * real(c_.width) + activation())}; }

/// In attention, forward has 2 matrix products, and backward has 5, because it recomputes the probabilities.
Cost StageWork::backward(std::size_t block, bool in_pieces) const {
  const Cost again = in_pieces ? mlp_again() : Cost();
  const double C = real(c_.width), F = real(c_.ffn_width);
  const double norms = (c_.branch_norms ? 4 : 2) * 4 * C, activations = (is_gated(c_.activation) ? 5 : 3) * F;
  return {.product_flops = 2 * R_ * (matrices_[1 + block] + trained_matrices_[1 + block]) + again.product_flops,
          .product_outputs = 2 * R_ * inputs_[1 + block] + 2 * trained_matrices_[1 + block] + again.product_outputs,
          .attention_backward_flops = 5 * attention(block),
          .memory_bytes = numbers(norms + activations + heads() + biases()) + expansion_[1 + block] + again.memory_bytes,
          .attention_tokens = T_,
          .head_size = c_.head_size};
}

Cost StageWork::embedding_forward() const {
  return {.memory_bytes = numbers(real(c_.positions == Positions::learned ? 3 : 2) * real(c_.width))};
}
Cost StageWork::embedding_backward() const {
  return {.memory_bytes = numbers(real(c_.width)) + 2 * R_ * real(c_.width) * sizeof(float)};
}

/// Logits are written, read for the loss, and replaced by their gradient, which two matrix products read.
Cost StageWork::head() const {
  return {.product_flops = 2 * R_ * (2 * matrices_.back() + trained_matrices_.back()),
          .product_outputs = 2 * R_ * (inputs_.back() + outputs_.back()) + 2 * trained_matrices_.back(),
          .memory_bytes = numbers(6 * real(c_.width) + 3 * real(c_.vocab_size))};
}

/// The FLOPs of one matrix product of attention, such as q k^T.
double StageWork::attention(std::size_t block) const {
  return 2 * R_ / static_cast<double>(T_) * kernels::visible_pairs(T_, c_.window_of(block)) * real(c_.heads * c_.head_size);
}
double StageWork::activation() const { return 3 * real(c_.ffn_width); }
/// The numbers per row that norms and rotations of queries and keys read and write.
double StageWork::heads() const {
  return (c_.positions == Positions::rotary ? 2 : 0) * real((c_.heads + c_.kv_heads) * c_.head_size) +
         (c_.qk_norm ? 3 : 0) * real((c_.heads + c_.kv_heads) * c_.head_size);
}
/// The numbers per row for the biases of q, k and v: they are added in forward, and their gradients are summed in backward.
/// Other biases are part of the kernels for residuals and GELU.
double StageWork::biases() const { return c_.qkv_bias ? 2 * real((c_.heads + 2 * c_.kv_heads) * c_.head_size) : 0; }

}  // namespace fsdp
