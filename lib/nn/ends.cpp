// The two ends of the chain: the embedding, and the head, which is final norm, projection to the vocabulary and cross-entropy
// in one stage, because all logits at once would be the largest tensor of the run.
#include "nn/stages.hpp"

namespace fsdp {

using namespace stages;

void Transformer::embedding_forward(const StageContext& context, const std::int32_t* tokens, float* x) const {
  const Stage stage(config_, context);
  const auto [B, T] = context.shape;
  expect(model_.position_table < 0 || T <= config_.max_positions, "a sequence is no longer than the position table");
  kernels::embedding_forward(context.stream, x, tokens, stage.weight(model_.token_table), stage.weight(model_.position_table),
                             B, T, config_.width);
  const kernels::DropoutMask mask = stage.dropout_mask(DropoutSite::embedding, 0);
  if (mask.dropped) kernels::dropout(context.stream, x, x, stage.R(), config_.width, mask);
}

void Transformer::embedding_backward(const StageContext& context, const std::int32_t* tokens, const float* dx,
                                     Write write) const {
  const Stage stage(config_, context);
  const auto [B, T] = context.shape;
  dx = stage.branch_gradient(DropoutSite::embedding, 0, dx);
  if (float* d_table = stage.gradient(model_.token_table))
    kernels::embedding_backward(context.stream, d_table, dx, tokens, stage.R(), config_.width, config_.vocab_size,
                                config_.tied_embeddings ? Write::add : write);
  if (float* d_table = stage.gradient(model_.position_table))
    kernels::position_backward(context.stream, d_table, dx, B, T, config_.width, config_.max_positions, write);
}

namespace {

/// The sum of the losses; with dx also the gradients.
double head(const Stage& stage, const ModelParameters& model, const float* x, const std::int32_t* targets, float gradient_scale,
            float* dx, Write write) {
  Stream& stream = stage.context.stream;
  const std::size_t R = stage.R(), C = stage.config.width, V = stage.config.vocab_size;
  const std::size_t chunk = head_chunk_rows(R, V);
  const float* weight = stage.weight(model.head);
  float* const d_weight = dx ? stage.gradient(model.head) : nullptr;
  float *const norm = stage.scratch_at(stage.scratch.norm), *const stats = stage.scratch_at(stage.scratch.stats);
  float *const loss = stage.scratch_at(stage.scratch.loss), *const logits = stage.scratch_at(stage.scratch.logits);

  stage.norm_forward(model.final_norm, norm, stats, x, R);
  for (std::size_t row = 0; row < R; row += chunk) {
    const std::size_t rows = std::min(chunk, R - row);
    float* const norm_rows = norm + row * C;
    kernels::gemm(stream, Trans::no, Trans::yes, rows, V, C, norm_rows, C, weight, C, logits, V, Write::overwrite);
    kernels::cross_entropy(stream, loss + row, logits, targets + row, rows, V, gradient_scale);
    if (!dx) continue;
    if (d_weight)
      kernels::gemm(stream, Trans::yes, Trans::no, V, C, rows, logits, V, norm_rows, C, d_weight, C,
                    row == 0 ? write : Write::add);
    kernels::gemm(stream, Trans::no, Trans::no, rows, C, V, logits, V, weight, C, norm_rows, C, Write::overwrite);
  }
  if (dx) stage.norm_backward(model.final_norm, dx, Write::overwrite, norm, x, stats, write);
  return kernels::sum(stream, loss, R);
}

}  // namespace

double Transformer::head_forward_backward(const StageContext& context, const float* x, const std::int32_t* targets,
                                          float gradient_scale, float* dx, Write write) const {
  expect(gradient_scale != 0, "gradients have a scale");
  return head(Stage(config_, context), model_, x, targets, gradient_scale, dx, write);
}

double Transformer::head_loss(const StageContext& context, const float* x, const std::int32_t* targets) const {
  return head(Stage(config_, context), model_, x, targets, 0, nullptr, Write::overwrite);
}

void Transformer::head_logits(const StageContext& context, const float* x_row, float* logits) const {
  const Stage stage(config_, context);
  const std::size_t C = config_.width, V = config_.vocab_size;
  float* const norm = stage.scratch_at(stage.scratch.norm);
  stage.norm_forward(model_.final_norm, norm, stage.scratch_at(stage.scratch.stats), x_row, 1);
  kernels::gemm(context.stream, Trans::no, Trans::yes, 1, V, C, norm, C, stage.weight(model_.head), C, logits, V,
                Write::overwrite);
}

}  // namespace fsdp
