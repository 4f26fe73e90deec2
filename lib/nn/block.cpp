// One block, forward and backward:
//
//   norm1 = norm(x_in);  qkv = norm1 Wqkv;  some models normalise q and k, and rotate them (RoPE)
//   mid = x_in + drop(attention(qkv) Wo)
//   norm2 = norm(mid);   pre = norm2 Win;   x_out = mid + drop(activation(pre) Wout)
//
// With branch_norms, drop(norm(...)) takes the place of drop(...).
//
// Backward runs these lines in reverse. It updates dx, the gradient of the residual stream, in place: each branch adds its
// gradient to dx. Gradients of other tensors overwrite saved tensors that are no longer needed, so that backward needs little
// scratch.
//
// With StageContext::in_pieces, the last of the lines above and its gradients are computed for some rows at a time, in scratch,
// and backward computes the line again before it needs it.
#include "base/format.hpp"
#include "nn/attention.hpp"
#include "nn/rope.hpp"
#include "nn/stages.hpp"

namespace fsdp {

using namespace stages;

namespace {

/// Pointers to the tensors that a block saves for backward.
template <class E>
struct SavedTensors {
  E *qkv, *q, *k, *attention, *attention_branch, *ffn_branch, *mid, *pre, *norm1, *norm2, *activated;
  float *q_stats, *k_stats, *lse, *attention_branch_stats, *ffn_branch_stats, *stats1, *stats2;

  SavedTensors(const StageKernels<E>& stage, float* saved) {
    const Saved at{stage.config, stage.context.shape, dtype_of<E>, stage.context.in_pieces};
    float* const cheap = stage.context.cheap ? stage.context.cheap : saved + at.kept;
    q = values_at<E>(saved, at.q), k = values_at<E>(saved, at.k), q_stats = saved + at.q_stats, k_stats = saved + at.k_stats;
    qkv = values_at<E>(saved, at.qkv), attention = values_at<E>(saved, at.attention), mid = values_at<E>(saved, at.mid);
    pre = values_at<E>(saved, at.pre), lse = saved + at.lse;
    attention_branch = values_at<E>(saved, at.attention_branch), ffn_branch = values_at<E>(saved, at.ffn_branch);
    attention_branch_stats = saved + at.attention_branch_stats, ffn_branch_stats = saved + at.ffn_branch_stats;
    norm1 = values_at<E>(cheap, at.norm1), norm2 = values_at<E>(cheap, at.norm2), activated = values_at<E>(cheap, at.activated);
    stats1 = cheap + at.stats1, stats2 = cheap + at.stats2;
  }
};

/// Calls f(stage, at, first row, write) with all rows of the stage or, with context.in_pieces, for one piece of rows after the
/// other: then `at` has the MLP's tensors in scratch. `write` is that of the first piece; later ones add.
template <class E, class F>
void for_rows_of_mlp(const StageKernels<E>& stage, const SavedTensors<E>& at, Write write, F f) {
  if (!stage.context.in_pieces) return f(stage, at, std::size_t{0}, write);
  const std::size_t R = stage.R(), most = mlp_piece_rows(stage.config, stage.context.largest().rows(), stage.device);
  for (std::size_t first = 0; first < R; first += most) {
    StageContext context = stage.context;
    context.shape = {1, std::min(most, R - first)};
    const StageKernels<E> rows(stage.transformer, context, stage.first_row + first, stage.sequence_length);
    const PieceScratch piece{rows.scratch};
    SavedTensors<E> of_rows = at;
    of_rows.mid += first * stage.config.width;
    of_rows.norm2 = rows.scratch_values(piece.norm2), of_rows.stats2 = rows.scratch_at(piece.stats2);
    of_rows.pre = rows.scratch_values(piece.pre), of_rows.activated = rows.scratch_values(piece.activated);
    of_rows.ffn_branch = rows.scratch_values(piece.ffn_branch),
    of_rows.ffn_branch_stats = rows.scratch_at(piece.ffn_branch_stats);
    f(rows, of_rows, first, first == 0 ? write : Write::add);
  }
}

/// Computes qkv[R,(H+2K)D]. Each row has q, then k, then v.
template <class E>
void qkv_forward(const StageKernels<E>& stage, const LinearGroup& group, const E* x, E* qkv) {
  const std::size_t width = qkv_width(stage.config);
  Stream& stream = stage.context.stream;
  E* bias = stage.scratch_values(stage.scratch.bias);
  std::array<const E*, 3> left = {};  // biases that are not added yet
  std::size_t column = 0;
  for (std::size_t i = 0; i < group.size; column += group.part[i].out, ++i)
    left[i] = stage.linear_bias_forward(group.part[i], x, qkv + column, width);
  if (left == std::array<const E*, 3>()) return;
  if (group.size == 1) return kernels::add_bias(stream, qkv, left[0], stage.R(), width);
  column = 0;  // copies the biases next to each other, so that one pass adds all
  for (std::size_t i = 0; i < group.size; column += group.part[i].out, ++i) {
    kernels::fill_zero(stream, bias + column, group.part[i].out);
    if (left[i]) kernels::add_bias(stream, bias + column, left[i], 1, group.part[i].out);
  }
  kernels::add_bias(stream, qkv, bias, stage.R(), width);
}

/// Computes the gradients of the weights and biases from x[R,C], then overwrites x with its gradient.
template <class E>
void qkv_backward(const StageKernels<E>& stage, const LinearGroup& group, E* x, const E* d_qkv, Write write) {
  const std::size_t width = qkv_width(stage.config);
  std::size_t column = 0;
  for (std::size_t i = 0; i < group.size; column += group.part[i].out, ++i)
    stage.linear_backward_parameters(group.part[i], x, d_qkv + column, width, write);
  column = 0;
  for (std::size_t i = 0; i < group.size; column += group.part[i].out, ++i)
    stage.linear_backward_input(group.part[i], d_qkv + column, width, x, i == 0 ? Write::overwrite : Write::add);
}

/// Normalises each head of queries and keys in place. Their values before the norm are saved.
template <class E>
void qk_norm_forward(const StageKernels<E>& stage, const BlockParameters& parameters, const SavedTensors<E>& at) {
  const TransformerConfig& c = stage.config;
  if (!c.qk_norm) return;
  Stream& stream = stage.context.stream;
  kernels::head_norm_forward(stream, at.qkv, at.q, at.q_stats, stage.weight(parameters.q_norm.gain), stage.R(), c.heads,
                             c.head_size, qkv_width(c), c.norm_eps, c.gain_offset);
  kernels::head_norm_forward(stream, at.qkv + attention_width(c), at.k, at.k_stats, stage.weight(parameters.k_norm.gain),
                             stage.R(), c.kv_heads, c.head_size, qkv_width(c), c.norm_eps, c.gain_offset);
}

/// Replaces the gradient of the norms' outputs in d_qkv by the gradient of their inputs.
template <class E>
void qk_norm_backward(const StageKernels<E>& stage, const BlockParameters& parameters, const SavedTensors<E>& at, E* d_qkv,
                      Write write) {
  const TransformerConfig& c = stage.config;
  if (!c.qk_norm) return;
  const auto backward = [&](const Norm& norm, E* dx, const E* before, const float* stats, std::size_t heads) {
    float* d_gain = stage.gradient(norm.gain);
    if (!d_gain) d_gain = stage.scratch_at(stage.scratch.unwanted);
    kernels::head_norm_backward(stage.context.stream, dx, d_gain, write, before, stats, stage.weight(norm.gain), stage.R(),
                                heads, c.head_size, qkv_width(c), stage.scratch_at(stage.scratch.column_sums), c.gain_offset);
  };
  backward(parameters.q_norm, d_qkv, at.q, at.q_stats, c.heads);
  backward(parameters.k_norm, d_qkv + attention_width(c), at.k, at.k_stats, c.kv_heads);
}

/// The attention of a block. `positions` of rows that are not adjacent in a sequence; null: context.positions.
template <class E>
CausalAttention attention_of(const StageKernels<E>& stage, std::size_t block, const std::int32_t* positions = nullptr) {
  const TransformerConfig& c = stage.config;
  CausalAttention attention{block_attention(c, stage.context.shape, dtype_of<E>, stage.device, c.window_of(block),
                                            positions ? positions : stage.context.positions)};
  if (c.positions != Positions::rotary) return attention;
  expect(stage.context.tables != nullptr, "the tables of rotary positions exist");
  const Rope& rope = c.rope_of(block);
  attention.table = stage.context.tables + (&rope == &c.rope ? 0 : rotated_elements(c, c.rope));
  attention.rotated = rotated_elements(c, rope), attention.table_stride = table_width(c);
  return attention;
}

/// A block's cache in a step of decoding. `whole` is the shape for which scratch was sized, `shape` that of this cache.
template <class E>
struct Cache {
  E* values;
  kernels::CacheShape whole, shape;
  std::size_t window;
};

/// Adjacent wanted rows of a decoding step: `count` rows from `row` on. If `single` is true, each row is a token of another
/// sequence. Otherwise the rows are consecutive tokens of one sequence.
struct RowRun {
  std::size_t row, count;
  bool single;
  std::size_t position = 0;  // of the first row
  bool fits = true;          // the positions of the rows and of all earlier ones are also their places in the cache
};
/// Returns the run that begins with wanted row number `first`. A run of single rows has at most as many as the cache has
/// sequences, because the scratch is not larger.
template <class E>
RowRun run_of(const DecodedRows& rows, std::size_t first, const Cache<E>& cache) {
  const auto sequence = [&](std::size_t i) { return rows.sequences[rows.wanted_row(i)]; };
  const auto continues = [&](std::size_t i) { return i < rows.wanted_count() && sequence(i) == sequence(i - 1); };
  RowRun run{rows.wanted_row(first), 1, !continues(first + 1)};
  const auto next = [&] { return first + run.count; };
  while (run.single ? run.count < cache.shape.sequences && next() < rows.wanted_count() && !continues(next() + 1) &&
                          rows.wanted_row(next()) == run.row + run.count
                    : continues(next()))
    ++run.count;
  run.position = static_cast<std::size_t>(rows.positions[run.row]);
  run.fits = run.position + run.count <= cache.shape.positions;
  return run;
}

/// Computes attention over the cache for the wanted rows of a step. Writes it to the first rows of at.attention. Several rows
/// of one sequence (a prompt) are computed by the kernel for whole sequences. If `appended` is false, the cache does not have
/// the rows' keys and values yet. Then this function computes only the prompts that are longer than the cache, which holds a
/// window: their new keys will overwrite earlier ones that their first tokens see. Afterwards it computes all other rows.
template <class E>
void attend(const StageKernels<E>& stage, const SavedTensors<E>& at, const DecodedRows& rows, const Cache<E>& cache,
            bool appended) {
  const TransformerConfig& c = stage.config;
  const DecodingScratch scratch{stage.scratch, cache.whole};
  Stream& stream = stage.context.stream;
  RowRun run{};
  for (std::size_t i = 0; i < rows.wanted_count(); i += run.count) {
    run = run_of(rows, i, cache);
    if (appended == (!run.single && !run.fits)) continue;
    E* const out = at.attention + i * attention_width(c);
    const E* const qkv = at.qkv + run.row * qkv_width(c);
    if (run.single) {
      kernels::cached_attention(stream, out, qkv, cache.values, cache.shape, attention_shape(c, {run.count, 1}, cache.window),
                                rows.sequences_there + run.row, rows.positions_there + run.row,
                                stage.scratch_at(scratch.scores));
      continue;
    }
    const auto sequence = static_cast<std::size_t>(rows.sequences[run.row]);
    kernels::AttentionShape tokens = attention_shape(c, {1, run.count}, cache.window);
    tokens.kv_stride = cached_width(c), tokens.past = run.position;
    const E* keys = cache.values + sequence * cache.shape.positions * cached_width(c);
    if (!run.fits) {
      tokens.past = std::min(run.position, cache.window - 1);
      E* const joined = stage.scratch_values(scratch.joined);
      kernels::join_cache(stream, joined, cache.values, cache.shape, sequence, run.position - tokens.past, tokens.past,
                          qkv + attention_width(c), run.count, cached_width(c), qkv_width(c));
      keys = joined;
    }
    kernels::attention_forward(stream, out, at.lse + run.row * c.heads, qkv, keys, keys + cached_width(c) / 2, tokens,
                               stage.scratch_at(scratch.attention));
  }
}

kernels::Gelu gelu_form(Activation activation) {
  return activation == Activation::gelu_tanh ? kernels::Gelu::tanh : kernels::Gelu::erf;
}

/// Computes activated[R,F] from pre, after adding `bias` if it is not null.
template <class E>
void activate(const StageKernels<E>& stage, E* pre, E* activated, const E* bias = nullptr) {
  Stream& stream = stage.context.stream;
  const std::size_t R = stage.R(), F = stage.config.ffn_width;
  switch (stage.config.activation) {
    case Activation::gelu_tanh:
    case Activation::gelu_erf:
      return kernels::bias_gelu_forward(stream, gelu_form(stage.config.activation), activated, pre, bias, R, F);
    case Activation::relu:
      return kernels::bias_relu_forward(stream, activated, pre, bias, R, F);
    case Activation::swiglu:
      return kernels::swiglu_forward(stream, activated, pre, pre + R * F, R * F);
    case Activation::geglu_tanh:
      kernels::bias_gelu_forward(stream, kernels::Gelu::tanh, activated, pre, nullptr, R, F);
      return kernels::multiply(stream, activated, activated, pre + R * F, R * F, Write::overwrite);
  }
}

/// Computes pre and activated[R,F] from x[R,C]. `pre` has [R,F] or, with a gate, gate[R,F] and then up[R,F].
template <class E>
void ffn_in_forward(const StageKernels<E>& stage, const LinearGroup& group, const E* x, E* pre, E* activated) {
  const std::size_t R = stage.R(), F = stage.config.ffn_width;
  switch (stage.config.activation) {
    case Activation::gelu_tanh:
    case Activation::gelu_erf:
      return stage.linear_gelu_forward(group.part[0], gelu_form(stage.config.activation), x, pre, activated);
    case Activation::relu:
      return activate(stage, pre, activated, stage.linear_bias_forward(group.part[0], x, pre, F));
    case Activation::swiglu:
    case Activation::geglu_tanh:
      for (std::size_t i = 0; i < group.size; ++i) {
        E* const part = pre + i * R * F;
        if (const E* const bias = stage.linear_bias_forward(group.part[i], x, part, F))
          kernels::add_bias(stage.context.stream, part, bias, R, F);
      }
      return activate(stage, pre, activated);
  }
}

/// Computes d_pre[R,F], the gradient of `pre`, from dy[R,C], the gradient of the output of projection `out`. With a gate, d_pre
/// is its gradient, and the gradient of the up projection is written to scratch.d_up.
template <class E>
void activation_backward(const StageKernels<E>& stage, const Linear& out, const E* dy, const E* pre, E* d_pre) {
  const std::size_t R = stage.R(), F = stage.config.ffn_width;
  switch (stage.config.activation) {
    case Activation::gelu_tanh:
    case Activation::gelu_erf:
      return stage.linear_gelu_backward(out, gelu_form(stage.config.activation), dy, pre, d_pre);
    case Activation::relu:
      stage.linear_backward_input(out, dy, stage.config.width, d_pre, Write::overwrite);
      return kernels::relu_backward(stage.context.stream, d_pre, d_pre, pre, R * F);
    case Activation::swiglu:
      stage.linear_backward_input(out, dy, stage.config.width, d_pre, Write::overwrite);
      return kernels::swiglu_backward(stage.context.stream, d_pre, stage.scratch_values(stage.scratch.d_up), d_pre, pre,
                                      pre + R * F, R * F);
    case Activation::geglu_tanh: {
      E* const d_up = stage.scratch_values(stage.scratch.d_up);
      E* const gate = const_cast<E*>(pre);  // without a bias, it does not change
      stage.linear_backward_input(out, dy, stage.config.width, d_pre, Write::overwrite);
      kernels::bias_gelu_forward(stage.context.stream, kernels::Gelu::tanh, d_up, gate, nullptr, R, F);
      kernels::multiply(stage.context.stream, d_up, d_up, d_pre, R * F, Write::overwrite);
      kernels::multiply(stage.context.stream, d_pre, d_pre, pre + R * F, R * F, Write::overwrite);
      return kernels::gelu_backward(stage.context.stream, kernels::Gelu::tanh, d_pre, d_pre, pre, R * F);
    }
  }
}

/// Runs after activation_backward(). Computes the gradients of weights and biases, then overwrites x[R,C] with its gradient.
template <class E>
void ffn_in_backward(const StageKernels<E>& stage, const LinearGroup& group, E* x, const E* d_gate, Write write) {
  const std::size_t F = stage.config.ffn_width;
  const E* const d_pre[] = {d_gate, stage.scratch_values(stage.scratch.d_up)};
  for (std::size_t i = 0; i < group.size; ++i) stage.linear_backward_parameters(group.part[i], x, d_pre[i], F, write);
  for (std::size_t i = 0; i < group.size; ++i)
    stage.linear_backward_input(group.part[i], d_pre[i], F, x, i == 0 ? Write::overwrite : Write::add);
}

/// The first part of a block: norm, queries, keys and values.
template <class E>
void make_qkv(const StageKernels<E>& stage, const BlockParameters& parameters, const SavedTensors<E>& at, const E* x_in) {
  stage.norm_forward(parameters.norm1, at.norm1, at.stats1, x_in, stage.R());
  qkv_forward(stage, parameters.qkv, at.norm1, at.qkv);
  qk_norm_forward(stage, parameters, at);
}

/// Adds the bias, which may be null, to a branch's output, and writes its norm to y. Returns null: the bias that is left to
/// add.
template <class E>
const E* normalise_branch(const StageKernels<E>& stage, const Norm& norm, E* y, float* stats, E* branch, const E* bias) {
  if (bias) kernels::add_bias(stage.context.stream, branch, bias, stage.R(), stage.config.width);
  stage.norm_forward(norm, y, stats, branch, stage.R());
  return nullptr;
}

/// Returns the gradient of a branch's output before its norm, if it has one, and computes that of the norm's gain. `branch` is
/// overwritten.
template <class E>
const E* branch_norm_backward(const StageKernels<E>& stage, const Norm& norm, const E* dy, E* branch, const float* stats,
                              Write write) {
  if (!stage.config.branch_norms) return dy;
  stage.norm_backward(norm, branch, Write::overwrite, dy, branch, stats, write);
  return branch;
}

/// The MLP of a block, from the residual stream after attention. If x_out is null, it ends when all that backward needs is
/// computed.
template <class E>
void mlp_forward(const StageKernels<E>& stage, const BlockParameters& parameters, std::size_t block, const SavedTensors<E>& at,
                 E* x_out) {
  const std::size_t R = stage.R(), C = stage.config.width;
  const bool norms = stage.config.branch_norms;
  stage.norm_forward(parameters.norm2, at.norm2, at.stats2, at.mid, R);
  ffn_in_forward(stage, parameters.ffn_in, at.norm2, at.pre, at.activated);
  if (x_out == nullptr && !norms) return;
  E* const ffn_branch = norms ? at.ffn_branch : x_out;
  const E* bias = stage.weight(parameters.ffn_out.bias);
  stage.linear_forward(parameters.ffn_out, at.activated, ffn_branch, C);
  if (norms)
    bias = normalise_branch(stage, parameters.ffn_norm, x_out ? x_out : stage.scratch_values(stage.scratch.d_branch),
                            at.ffn_branch_stats, ffn_branch, bias);
  if (x_out == nullptr) return;
  kernels::add_residual(stage.context.stream, x_out, at.mid, x_out, bias, R, C,
                        stage.dropout_mask(DropoutSite::ffn_out, block));
}

/// The part of a block after attention. If x_out is null, it ends when all saved tensors are computed. x_out may be x_in.
template <class E>
void add_branches(const StageKernels<E>& stage, const BlockParameters& parameters, std::size_t block, const SavedTensors<E>& at,
                  const E* x_in, E* x_out) {
  const std::size_t R = stage.R(), C = stage.config.width;
  const bool norms = stage.config.branch_norms;
  E* const attention_branch = norms ? at.attention_branch : at.mid;
  const E* bias = stage.weight(parameters.attention_out.bias);
  stage.linear_forward(parameters.attention_out, at.attention, attention_branch, C);
  if (norms)
    bias = normalise_branch(stage, parameters.attention_norm, at.mid, at.attention_branch_stats, attention_branch, bias);
  kernels::add_residual(stage.context.stream, at.mid, x_in, at.mid, bias, R, C,
                        stage.dropout_mask(DropoutSite::attention_out, block));
  if (x_out == nullptr && stage.context.in_pieces) return;
  for_rows_of_mlp(stage, at, Write::overwrite,
                  [&](const StageKernels<E>& rows, const SavedTensors<E>& at_rows, std::size_t first, Write) -> void {
                    mlp_forward(rows, parameters, block, at_rows, x_out ? x_out + first * C : nullptr);
                  });
}

template <class E>
void mlp_backward(const StageKernels<E>& stage, const BlockParameters& parameters, std::size_t block, const SavedTensors<E>& at,
                  E* dx, Write write) {
  E* const d_pre = at.activated;
  const E* const d_branch =
      branch_norm_backward(stage, parameters.ffn_norm, stage.branch_gradient(DropoutSite::ffn_out, block, dx), at.ffn_branch,
                           at.ffn_branch_stats, write);
  stage.linear_backward_parameters(parameters.ffn_out, at.activated, d_branch, stage.config.width, write);
  activation_backward(stage, parameters.ffn_out, d_branch, at.pre, d_pre);
  ffn_in_backward(stage, parameters.ffn_in, at.norm2, d_pre, write);
  stage.norm_backward(parameters.norm2, dx, Write::add, at.norm2, at.mid, at.stats2, write);
}

class Block final : public BlockStage {
 public:
  Block(const Transformer& model, std::size_t number, std::vector<std::size_t> read)
      : BlockStage(format("block {}", number), std::move(read)), model_(model), number_(number) {}

  /// If x_out is null (recomputation), the last matrix product is left out.
  void forward(const StageContext& context, const void* x_in, void* x_out, float* saved) const override {
    with_element(context.type, [&]<class E>() {
      const StageKernels<E> stage(model_, context);
      const SavedTensors<E> at(stage, saved);
      const BlockParameters& parameters = stage.uses.blocks[number_];
      const auto* const x = static_cast<const E*>(x_in);
      make_qkv(stage, parameters, at, x);
      const CausalAttention attention = attention_of(stage, number_);
      attention.rotate(context.stream, at.qkv, false);
      attention.forward(context.stream, at.qkv, at.attention, at.lse, stage.scratch_at(stage.scratch.attention),
                        stage.dropout_mask(DropoutSite::attention_probabilities, number_));
      add_branches(stage, parameters, number_, at, x, static_cast<E*>(x_out));
    });
  }

  void backward(const StageContext& context, const void* x_in, float* saved, void* dx, Write write) const override {
    with_element(context.type, [&]<class E>() {
      backward_of(StageKernels<E>(model_, context), static_cast<const E*>(x_in), saved, static_cast<E*>(dx), write);
    });
  }

 private:
  template <class E>
  void backward_of(const StageKernels<E>& stage, const E* x_in, float* saved, E* dx, Write write) const {
    const SavedTensors<E> at(stage, saved);
    const BlockParameters& parameters = stage.uses.blocks[number_];
    const std::size_t C = stage.config.width;
    for_rows_of_mlp(stage, at, write,
                    [&](const StageKernels<E>& rows, const SavedTensors<E>& at_rows, std::size_t first, Write how) -> void {
                      if (stage.context.in_pieces) mlp_forward(rows, parameters, number_, at_rows, static_cast<E*>(nullptr));
                      mlp_backward(rows, parameters, number_, at_rows, dx + first * C, how);
                    });

    E* const d_attention = at.mid;
    E* const d_qkv = stage.scratch_values(stage.scratch.d_qkv);
    const E* const d_branch =
        branch_norm_backward(stage, parameters.attention_norm, stage.branch_gradient(DropoutSite::attention_out, number_, dx),
                             at.attention_branch, at.attention_branch_stats, write);
    stage.linear_backward_parameters(parameters.attention_out, at.attention, d_branch, C, write);
    stage.linear_backward_input(parameters.attention_out, d_branch, C, d_attention, Write::overwrite);
    attention_of(stage, number_)
        .backward(stage.context.stream, d_qkv, d_attention, at.qkv, at.attention, at.lse,
                  stage.scratch_at(stage.scratch.attention), stage.dropout_mask(DropoutSite::attention_probabilities, number_));
    qk_norm_backward(stage, parameters, at, d_qkv, write);
    qkv_backward(stage, parameters.qkv, at.norm1, d_qkv, write);
    stage.norm_backward(parameters.norm1, dx, Write::add, at.norm1, x_in, at.stats1, write);
  }

  const Transformer& model_;
  const std::size_t number_;
};

}  // namespace

std::unique_ptr<const BlockStage> stages::make_block(const Transformer& model, std::size_t number,
                                                     std::vector<std::size_t> read) {
  return std::make_unique<Block>(model, number, std::move(read));
}

void Transformer::recompute_cheap(const StageContext& context, std::size_t block, const void* x_in, float* saved) const {
  with_element(context.type, [&]<class E>() {
    const StageKernels<E> stage(*this, context);
    const SavedTensors<E> at(stage, saved);
    stage.norm_forward(uses_.blocks[block].norm1, at.norm1, at.stats1, static_cast<const E*>(x_in), stage.R());
    stage.norm_forward(uses_.blocks[block].norm2, at.norm2, at.stats2, at.mid, stage.R());
    activate(stage, at.pre, at.activated);
  });
}

void Transformer::block_decode(const StageContext& context, std::size_t block, const DecodedRows& rows, const void* x_in,
                               void* x_out, float* saved, const kernels::CacheShape& shape, void* cache) const {
  expect(context.shape.B == 1 && context.shape.T == rows.sequences.size(), "a step of decoding has a row for each token");
  with_element(context.type, [&]<class E>() {
    const BlockParameters& parameters = uses_.blocks[block];
    const Cache<E> kept = {static_cast<E*>(cache), shape, cache_of(config_, shape, block), config_.window_of(block)};
    const auto* const x = static_cast<const E*>(x_in);
    auto* const y = static_cast<E*>(x_out);
    // The keys and values of all rows.
    const StageKernels<E> all(*this, context);
    const SavedTensors<E> at(all, saved);
    make_qkv(all, parameters, at, x);
    attention_of(all, block, rows.positions_there).rotate(context.stream, at.qkv, false);
    attend(all, at, rows, kept, false);
    kernels::append_to_cache(context.stream, kept.values, kept.shape, at.qkv + attention_width(config_), all.R(),
                             cached_width(config_), qkv_width(config_), rows.sequences_there, rows.positions_there);
    // The rest, for the wanted rows.
    attend(all, at, rows, kept, true);
    const std::size_t wanted = rows.wanted_count(), C = config_.width;
    if (wanted == all.R()) return add_branches(all, parameters, block, at, x, y);
    if (wanted == 0) return;
    StageContext of_wanted = context;
    of_wanted.shape = {1, wanted};
    E* const wanted_x = at.norm1;  // [wanted,C]: inputs, then outputs
    RowRun run{};
    for (std::size_t i = 0; i < wanted; i += run.count) {
      run = run_of(rows, i, kept);
      context.stream.copy(wanted_x + i * C, x + run.row * C, run.count * C * sizeof(E));
    }
    add_branches(StageKernels<E>(*this, of_wanted), parameters, block, at, wanted_x, wanted_x);
    for (std::size_t i = 0; i < wanted; i += run.count) {
      run = run_of(rows, i, kept);
      context.stream.copy(y + run.row * C, wanted_x + i * C, run.count * C * sizeof(E));
    }
  });
}

}  // namespace fsdp
