// One block, forward and backward:
//
//   norm1 = norm(x_in);  qkv = norm1 Wqkv (rotated);  mid = x_in + drop(attention(qkv) Wo)
//   norm2 = norm(mid);   pre = norm2 Win;             x_out = mid + drop(activation(pre) Wout)
//
// Backward walks it in reverse with dx, the gradient of the residual stream, in place: each branch adds its share. A gradient
// takes the place of the saved tensor that was needed last just before, so that backward needs little scratch.
#include "nn/stages.hpp"

namespace fsdp {

using namespace stages;

std::size_t Transformer::saved_numel(BatchShape shape) const {
  const Saved at(config_, shape);
  return at.kept + at.cheap;
}

std::size_t Transformer::kept_numel(BatchShape shape) const { return Saved(config_, shape).kept; }

std::size_t Transformer::scratch_numel(BatchShape shape) const { return Scratch(config_, shape).numel; }

namespace {

/// qkv[R,(H+2K)D]: the parts of each row side by side.
void qkv_forward(const Stage& stage, const LinearGroup& group, const float* x, float* qkv) {
  const std::size_t width = qkv_width(stage.config);
  Stream& stream = stage.context.stream;
  float* bias = stage.scratch_at(stage.scratch.bias);
  std::size_t column = 0;
  for (std::size_t i = 0; i < group.size; ++i) {
    const Linear& part = group.part[i];
    stage.linear_forward(part, x, qkv + column, width);
    if (part.bias >= 0 && group.size > 1) {  // side by side as well: then one pass adds all
      kernels::fill_zero(stream, bias + column, part.out);
      kernels::add_bias(stream, bias + column, stage.weight(part.bias), 1, part.out);
    }
    column += part.out;
  }
  if (group.part[0].bias >= 0)
    kernels::add_bias(stream, qkv, group.size > 1 ? bias : stage.weight(group.part[0].bias), stage.R(), width);
}

/// dx[R,C] over x, which is needed for the gradients of the weights first.
void qkv_backward(const Stage& stage, const LinearGroup& group, float* x, const float* d_qkv, Write write) {
  const std::size_t width = qkv_width(stage.config);
  std::size_t column = 0;
  for (std::size_t i = 0; i < group.size; column += group.part[i].out, ++i)
    stage.linear_backward_parameters(group.part[i], x, d_qkv + column, width, write);
  column = 0;
  for (std::size_t i = 0; i < group.size; column += group.part[i].out, ++i)
    stage.linear_backward_input(group.part[i], d_qkv + column, width, x, i == 0 ? Write::overwrite : Write::add);
}

/// Rotary positions of queries and keys, which lie side by side, in one call.
void rotate(const Stage& stage, const float* tables, float* qkv, bool inverse) {
  const TransformerConfig& c = stage.config;
  if (c.family != Family::llama) return;
  expect(tables != nullptr, "rotary positions have their tables");
  kernels::rope(stage.context.stream, qkv, stage.context.shape.B, stage.context.shape.T, c.heads + c.kv_heads, c.head_size,
                qkv_width(c), tables, inverse);
}

kernels::Gelu gelu_form(Activation activation) {
  return activation == Activation::gelu_tanh ? kernels::Gelu::tanh : kernels::Gelu::erf;
}

/// activated[R,F] from pre, to which `bias` is added first unless null.
void activate(const Stage& stage, float* pre, const float* bias, float* activated) {
  Stream& stream = stage.context.stream;
  const std::size_t R = stage.R(), F = stage.config.ffn_width;
  if (stage.config.activation != Activation::swiglu)
    kernels::bias_gelu_forward(stream, gelu_form(stage.config.activation), activated, pre, bias, R, F);
  else
    kernels::swiglu_forward(stream, activated, pre, pre + R * F, R * F);
}

/// activated[R,F] from x[R,C]; pre: [R,F], or gate and up one behind the other.
void ffn_in_forward(const Stage& stage, const LinearGroup& group, const float* x, float* pre, float* activated) {
  const std::size_t R = stage.R(), F = stage.config.ffn_width;
  for (std::size_t i = 0; i < group.size; ++i) stage.linear_forward(group.part[i], x, pre + i * R * F, F);
  if (stage.config.activation == Activation::swiglu)
    for (std::size_t i = 0; i < group.size; ++i)
      if (group.part[i].bias >= 0)
        kernels::add_bias(stage.context.stream, pre + i * R * F, stage.weight(group.part[i].bias), R, F);
  activate(stage, pre, stage.weight(group.part[0].bias), activated);
}

/// dx[R,C] over x; d_activated is lost.
void ffn_in_backward(const Stage& stage, const LinearGroup& group, float* x, const float* pre, float* d_activated,
                     Write write) {
  Stream& stream = stage.context.stream;
  const std::size_t R = stage.R(), F = stage.config.ffn_width;
  float* const d_pre[] = {d_activated, stage.scratch_at(stage.scratch.d_up)};
  if (stage.config.activation != Activation::swiglu) {
    kernels::gelu_backward(stream, gelu_form(stage.config.activation), d_pre[0], d_activated, pre, R * F);
  } else {
    kernels::swiglu_backward(stream, d_pre[0], d_pre[1], d_activated, pre, pre + R * F, R * F);
  }
  for (std::size_t i = 0; i < group.size; ++i) stage.linear_backward_parameters(group.part[i], x, d_pre[i], F, write);
  for (std::size_t i = 0; i < group.size; ++i)
    stage.linear_backward_input(group.part[i], d_pre[i], F, x, i == 0 ? Write::overwrite : Write::add);
}

}  // namespace

void Transformer::block_forward(const StageContext& context, std::size_t block, const float* x_in, float* x_out, float* saved,
                                float* cheap) const {
  const Stage stage(config_, context);
  const Saved at(config_, context.shape);
  const BlockParameters& parameters = model_.blocks[block];
  const std::size_t R = stage.R(), C = config_.width;
  const std::size_t k = config_.heads * config_.head_size, v = k + config_.kv_heads * config_.head_size;  // columns of qkv
  float *const mid = saved + at.mid, *const qkv = saved + at.qkv;
  if (!cheap) cheap = saved + at.kept;

  stage.norm_forward(parameters.norm1, cheap + at.norm1, cheap + at.stats1, x_in, R);
  qkv_forward(stage, parameters.qkv, cheap + at.norm1, qkv);
  rotate(stage, tables_, qkv, false);
  kernels::attention_forward(context.stream, saved + at.attention, saved + at.lse, qkv, qkv + k, qkv + v,
                             attention_shape(config_, context.shape), stage.scratch_at(stage.scratch.attention),
                             stage.dropout_mask(DropoutSite::attention_probabilities, block));
  stage.linear_forward(parameters.attention_out, saved + at.attention, mid, C);
  kernels::add_residual(context.stream, mid, x_in, mid, stage.weight(parameters.attention_out.bias), R, C,
                        stage.dropout_mask(DropoutSite::attention_out, block));

  stage.norm_forward(parameters.norm2, cheap + at.norm2, cheap + at.stats2, mid, R);
  ffn_in_forward(stage, parameters.ffn_in, cheap + at.norm2, saved + at.pre, cheap + at.activated);
  if (x_out == nullptr) return;
  stage.linear_forward(parameters.ffn_out, cheap + at.activated, x_out, C);
  kernels::add_residual(context.stream, x_out, mid, x_out, stage.weight(parameters.ffn_out.bias), R, C,
                        stage.dropout_mask(DropoutSite::ffn_out, block));
}

void Transformer::block_refill(const StageContext& context, std::size_t block, const float* x_in, float* saved,
                               float* cheap) const {
  const Stage stage(config_, context);
  const Saved at(config_, context.shape);
  const BlockParameters& parameters = model_.blocks[block];
  if (!cheap) cheap = saved + at.kept;
  stage.norm_forward(parameters.norm1, cheap + at.norm1, cheap + at.stats1, x_in, stage.R());
  stage.norm_forward(parameters.norm2, cheap + at.norm2, cheap + at.stats2, saved + at.mid, stage.R());
  activate(stage, saved + at.pre, nullptr, cheap + at.activated);
}

void Transformer::block_backward(const StageContext& context, std::size_t block, const float* x_in, float* saved, float* dx,
                                 Write write, float* cheap) const {
  const Stage stage(config_, context);
  const Saved at(config_, context.shape);
  const BlockParameters& parameters = model_.blocks[block];
  const std::size_t C = config_.width;
  const std::size_t k = config_.heads * config_.head_size, v = k + config_.kv_heads * config_.head_size;  // columns of qkv
  float *const mid = saved + at.mid, *const qkv = saved + at.qkv, *const attention = saved + at.attention;
  if (!cheap) cheap = saved + at.kept;

  float* const d_activated = cheap + at.activated;
  const float* d_branch = stage.branch_gradient(DropoutSite::ffn_out, block, dx);
  stage.linear_backward_parameters(parameters.ffn_out, cheap + at.activated, d_branch, C, write);
  stage.linear_backward_input(parameters.ffn_out, d_branch, C, d_activated, Write::overwrite);
  ffn_in_backward(stage, parameters.ffn_in, cheap + at.norm2, saved + at.pre, d_activated, write);
  stage.norm_backward(parameters.norm2, dx, Write::add, cheap + at.norm2, mid, cheap + at.stats2, write);

  float* const d_attention = mid;
  float* const d_qkv = stage.scratch_at(stage.scratch.d_qkv);
  d_branch = stage.branch_gradient(DropoutSite::attention_out, block, dx);
  stage.linear_backward_parameters(parameters.attention_out, attention, d_branch, C, write);
  stage.linear_backward_input(parameters.attention_out, d_branch, C, d_attention, Write::overwrite);
  kernels::attention_backward(context.stream, d_qkv, d_qkv + k, d_qkv + v, d_attention, attention, saved + at.lse, qkv, qkv + k,
                              qkv + v, attention_shape(config_, context.shape), stage.scratch_at(stage.scratch.attention),
                              stage.dropout_mask(DropoutSite::attention_probabilities, block));
  rotate(stage, tables_, d_qkv, true);
  qkv_backward(stage, parameters.qkv, cheap + at.norm1, d_qkv, write);
  stage.norm_backward(parameters.norm1, dx, Write::add, cheap + at.norm1, x_in, cheap + at.stats1, write);
}

}  // namespace fsdp
