// Code that the stages of a Transformer share; private to this folder. It defines offsets in the memory `saved` and `scratch`,
// and calls the kernels of norms and projections, for every kind of norm and layout of weights.
#pragma once

#include <algorithm>

#include "base/error.hpp"
#include "base/narrow.hpp"
#include "kernels/cudnn.hpp"
#include "kernels/offsets.hpp"
#include "kernels/quantized.hpp"
#include "nn/rope.hpp"
#include "nn/transformer.hpp"

namespace fsdp::stages {

using kernels::Trans;
using kernels::Write;

/// The address of numbers of type E. `offset` is from take_values().
template <class E>
E* values_at(float* memory, std::size_t offset) {
  return reinterpret_cast<E*>(memory + offset);
}

/// The number of floats per position of rotary tables: the cosines and sines of `rope`, then those of `window_rope`.
inline std::size_t table_width(const TransformerConfig& c) {
  return rotated_elements(c, c.rope) + (c.window_rope ? rotated_elements(c, *c.window_rope) : 0);
}
inline std::size_t attention_width(const TransformerConfig& c) { return c.heads * c.head_size; }
inline std::size_t qkv_width(const TransformerConfig& c) { return (c.heads + 2 * c.kv_heads) * c.head_size; }
/// The number of elements per token in a block's key-value cache. Keys and values are adjacent at the end of a row of qkv.
inline std::size_t cached_width(const TransformerConfig& c) { return 2 * c.kv_heads * c.head_size; }
/// `window`: of the block.
inline kernels::AttentionShape attention_shape(const TransformerConfig& c, BatchShape shape, std::size_t window = 0,
                                               const std::int32_t* positions = nullptr) {
  kernels::AttentionShape attention{shape.B,      shape.T,      c.heads, c.kv_heads, c.head_size,
                                    qkv_width(c), qkv_width(c), 0,       positions};
  attention.window = narrow<std::uint32_t>(window), attention.scaled_by = c.scores_scaled_by;
  return attention;
}
/// attention_shape() of blocks in training. cuDNN computes their attention if the device has it.
inline kernels::AttentionShape block_attention(const TransformerConfig& c, BatchShape shape, DType type,
                                               const DeviceTraits& device, std::size_t window = 0,
                                               const std::int32_t* positions = nullptr) {
  kernels::AttentionShape attention = attention_shape(c, shape, window, positions);
  if (c.head_size <= device.cudnn_head_size) attention.cudnn_parts = kernels::cudnn_parts(type, attention);
  return attention;
}
/// The shape of a block's cache. With a window, it holds only the last keys and values, those of position p at p mod positions.
inline kernels::CacheShape cache_of(const TransformerConfig& c, const kernels::CacheShape& cache, std::size_t block) {
  const std::size_t window = c.window_of(block);
  return {cache.sequences, window == 0 ? cache.positions : std::min(window, cache.positions)};
}

/// The offsets of a block's saved activations: in the part that selective checkpointing keeps (`kept` is its size), then in the
/// part that is cheap to recompute (`cheap` is its size). Backward overwrites most of them with gradients: see block.cpp.
/// `in_pieces`: nothing of the MLP is saved, which has `M` rows.
struct Saved {
  const TransformerConfig& c;
  BatchShape shape;
  DType type;
  bool in_pieces = false;
  std::size_t R = shape.rows(), M = in_pieces ? 0 : R, C = c.width, F = c.ffn_width;
  Offsets at{size_of(type)}, again = at;
  std::size_t qkv = at.take_values(R * qkv_width(c));  // [R,(H+2K)D], after bias, norm and rotation
  // Queries and keys before their norm, if they have one: [R,HD], [R,KD].
  std::size_t q = at.take_values(c.qk_norm ? R * attention_width(c) : 0);
  std::size_t k = at.take_values(c.qk_norm ? R * c.kv_heads * c.head_size : 0);
  std::size_t q_stats = at.take(c.qk_norm ? R * c.heads : 0), k_stats = at.take(c.qk_norm ? R * c.kv_heads : 0);
  std::size_t attention = at.take_values(R * attention_width(c)), lse = at.take(R * c.heads);  // [R,HD], [B,H,T]
  // The branches before their norms, if they have some: [R,C] each.
  std::size_t attention_branch = at.take_values(c.branch_norms ? R * C : 0);
  std::size_t ffn_branch = at.take_values(c.branch_norms ? M * C : 0);
  std::size_t attention_branch_stats = at.take(c.branch_norms ? R : 0), ffn_branch_stats = at.take(c.branch_norms ? M : 0);
  // The residual stream after attention, [R,C]; in backward the gradient of `attention`, [R,HD].
  std::size_t mid = at.take_values(R * std::max(C, attention_width(c)));
  // The input of the activation function: [R,F], or gate and up [2,R,F].
  std::size_t pre = at.take_values(M * F * (is_gated(c.activation) ? 2 : 1));
  std::size_t kept = at.end();
  std::size_t norm1 = again.take_values(R * C), stats1 = again.take(2 * R);  // [R,C], [R,2] at most; in the cheap part
  std::size_t norm2 = again.take_values(M * C), stats2 = again.take(2 * M);  // likewise
  std::size_t activated = again.take_values(M * F);                          // [R,F]
  std::size_t cheap = again.end();
};

/// The number of rows of logits in memory at once: R rows are divided into equal chunks. The number depends only on the sizes
/// and the kind of device, so that a run is reproducible.
inline std::size_t head_chunk_rows(std::size_t R, std::size_t V, const DeviceTraits& device) {
  const std::size_t most = std::max(device.piece_rows, device.logits_bytes / sizeof(float) / V);
  const std::size_t chunks = (R + most - 1) / most;
  if (chunks <= 1) return R;
  // gemm over an odd number of rows is slower
  return std::min(R, round_up((R + chunks - 1) / chunks, std::min<std::size_t>(device.piece_rows, 16)));
}

/// The number of rows of a recomputed block's MLP in memory at once, by the same rule: a row has the norm's output, the inputs
/// and the output of the activation function, and the gradient of a gate's product.
inline std::size_t mlp_row_numel(const TransformerConfig& c) {
  return c.width + (is_gated(c.activation) ? 4 : 2) * c.ffn_width;
}
inline std::size_t mlp_piece_rows(const TransformerConfig& c, std::size_t R, const DeviceTraits& device) {
  return head_chunk_rows(R, mlp_row_numel(c), device);
}
/// At least mlp_piece_rows() of any number of rows.
inline std::size_t most_mlp_rows(const TransformerConfig& c, const DeviceTraits& device) {
  return round_up(std::max(device.piece_rows, device.logits_bytes / sizeof(float) / mlp_row_numel(c)), 16);
}

/// The number of columns of logits that one matrix product computes, as a matrix of its own; the last piece may have fewer.
/// On CPUs, such pieces have two advantages. They avoid long rows of an odd length, for which oneDNN's bf16 products take twice
/// as long. And the gradient of a piece is still in cache when it is used. On GPUs, cuBLASLt's fast products need a number of
/// columns that is a multiple of 8 (16 bytes): for GPT-2's 50,257 tokens, one product takes up to ten times as long as two
/// with 50,240 and 17 columns.
inline std::size_t head_piece(std::size_t V, const DeviceTraits& device) {
  const std::size_t alignment = device.logits_alignment;
  if (device.logits_columns >= V) return V % 8 == 0 || V < alignment ? V : V / alignment * alignment;
  const std::size_t pieces = (V + device.logits_columns - 1) / device.logits_columns;
  return round_up((V + pieces - 1) / pieces, 32);
}

/// The number of elements of the largest matrix in a block.
inline std::size_t largest_matrix(const TransformerConfig& c) { return c.width * std::max(c.ffn_width, qkv_width(c)); }

/// Offsets in the scratch memory of all stages: first small areas, then one large area that each stage divides differently.
/// `largest_rows`: those that the memory was sized for. A chunk of logits has no more rows than it would have then.
struct Scratch {
  const TransformerConfig& c;
  BatchShape shape;
  DType type;
  const DeviceTraits& device;
  std::size_t largest_rows = 0;  // 0: those of `shape`
  std::size_t R = shape.rows(), C = c.width, F = c.ffn_width;
  Offsets small{size_of(type)};
  // For the gradients of biases and norms.
  std::size_t column_sums = small.take(kernels::column_sum_scratch(std::max({C, F, qkv_width(c)}), device));
  std::size_t bias = small.take_values(qkv_width(c));               // biases of q, then k, then v
  std::size_t unwanted = small.take(std::max(2 * C, c.head_size));  // [2,C] or [D]: gradients of norms that are not needed
  std::size_t small_end = small.end();
  // Block with quantized matrices: the largest one. Block with adapters: [R,rank], then [R,rank] for each projection.
  Offsets adapters = small;
  std::size_t matrix = adapters.take_values(c.base_type ? largest_matrix(c) + kernels::quantized_block : 0);
  std::size_t hidden = adapters.take_values(R * c.lora.most_rank());
  std::size_t hidden_distance = adapters.end() - hidden;
  std::size_t d_hidden = adapters.take(most_projections * hidden_distance);  // of projection i: i * hidden_distance later
  // Block with adapters and dropout: [R,in], for the widest input of a projection.
  std::size_t dropped =
      adapters.take_values(c.lora.rank > 0 && c.lora.dropout > 0 ? R * std::max({C, F, attention_width(c)}) : 0);
  // Block: [R,(H+2K)D], and scratch of the attention kernel. d_up [R,F] and d_branch [R,C], which is dx times a branch's
  // dropout mask, overlap d_qkv, which is written later.
  Offsets block = adapters, activation = adapters, branch = adapters;
  std::size_t d_qkv = block.take_values(R * qkv_width(c));
  std::size_t attention = block.take(kernels::attention_scratch(block_attention(c, shape, type, device), device));
  std::size_t d_up = activation.take_values(is_gated(c.activation) ? R * F : 0);
  std::size_t d_branch = branch.take_values(R * C);
  // Head: [R,C], [R,2], [R], on CPUs targets [R], [chunk]; then [chunk, aligned V] or, if that is larger, [V] in fp32; then
  // fp32 [chunk,C]. Its adapter: [chunk,rank], fp32 [chunk,rank] and, with dropout, [R,C].
  Offsets head = small;
  std::size_t norm = head.take_values(R * C), stats = head.take(2 * R), loss = head.take(R);
  std::size_t targets = head.take(is_host(device.kind) ? R : 0);
  std::size_t chunk = std::min(R, head_chunk_rows(std::max(R, largest_rows), c.vocab_size, device));
  std::size_t softmax = head.take(chunk * sizeof(kernels::SoftmaxStats) / sizeof(float));
  std::size_t logits =
      head.take_values(std::max(chunk, sizeof(float) / size_of(type)) * round_up(c.vocab_size, device.logits_alignment));
  std::size_t d_norm = head.take(chunk * C);
  std::size_t head_rank = c.lora.rank > 0 ? table_rank(c, find_family(c.family).names.head) : 0;
  std::size_t head_hidden = head.take_values(chunk * head_rank), head_d_hidden = head.take(chunk * head_rank);
  std::size_t head_dropped = head.take_values(head_rank > 0 && c.lora.dropout > 0 ? R * C : 0);
  std::size_t without_mlp = std::max({block.end(), branch.end(), head.end()}), numel = std::max(without_mlp, activation.end());
};

/// Offsets in scratch of a piece of an MLP's rows, after what its projections use: `others` is the scratch of these rows. The
/// tensors are those of Saved.
struct PieceScratch {
  const Scratch others;
  const TransformerConfig& c = others.c;
  std::size_t R = others.R, C = c.width, F = c.ffn_width;
  Offsets at{size_of(others.type), std::max(others.activation.end(), others.branch.end())};
  std::size_t norm2 = at.take_values(R * C), stats2 = at.take(2 * R);
  std::size_t pre = at.take_values(R * F * (is_gated(c.activation) ? 2 : 1)), activated = at.take_values(R * F);
  std::size_t ffn_branch = at.take_values(c.branch_norms ? R * C : 0), ffn_branch_stats = at.take(c.branch_norms ? R : 0);
  std::size_t numel = at.end();
};

/// Offsets in the scratch memory of decoding, after the small areas of Scratch.
struct DecodingScratch {
  const Scratch& others;
  kernels::CacheShape cache;
  const TransformerConfig& c = others.c;
  std::size_t S = cache.sequences;
  Offsets prompt{size_of(others.type), others.small_end}, answer = prompt, head = prompt;
  // Block: for attention of prompts; keys and values of a window, [positions,2KD]; for attention of single tokens,
  // [S,H,positions].
  std::size_t attention =
      prompt.take(kernels::attention_forward_scratch(attention_shape(c, {1, cache.positions}), others.device));
  std::size_t joined =
      prompt.take_values(c.sliding_window > 0 && c.sliding_window < cache.positions ? cache.positions * cached_width(c) : 0);
  std::size_t scores = answer.take(S * c.heads * cache.positions);
  // Head: [S,C], [S,2], fp32 [S,V]; its adapter: [S,rank].
  std::size_t norm = head.take_values(S * c.width), stats = head.take(2 * S), logits = head.take(S * c.vocab_size);
  std::size_t head_hidden = head.take_values(S * others.head_rank);
  std::size_t numel = std::max({prompt.end(), answer.end(), head.end()});
};

/// Where a model applies dropout, besides the inputs of adapters. The value and the block number are parts of the random key.
enum class DropoutSite : std::uint32_t { embedding, attention_probabilities, attention_out, ffn_out };
inline constexpr std::uint32_t first_adapter_site = std::uint32_t{1} << 31;

/// The operations of a stage on its tensors; E is the type of weights and activations. Weights must not be null. Gradients are
/// null if they are not needed. The stage may have only some rows of a batch, from `first` on, of sequences of T tokens.
template <class E>
class StageKernels {
 public:
  StageKernels(const Transformer& model, const StageContext& stage_context)
      : StageKernels(model, stage_context, 0, stage_context.shape.T) {}
  StageKernels(const Transformer& model, const StageContext& stage_context, std::size_t first, std::size_t T)
      : transformer(model),
        config(model.config()),
        uses(model.uses()),
        device(model.device()),
        context(stage_context),
        scratch{config, context.shape, dtype_of<E>, device, context.largest().rows()},
        first_row(first),
        sequence_length(T) {
    expect(device.kind == context.stream.kind(), "a model runs on the kind of device that it was sized for");
    expect(!is_host(device.kind) || static_cast<std::size_t>(kernels::threads()) <= device.threads,
           "there is scratch memory for each thread");
  }

  const Transformer& transformer;
  const TransformerConfig& config;
  const ModelParameters& uses;
  const DeviceTraits& device;
  const StageContext& context;
  const Scratch scratch;
  const std::size_t first_row, sequence_length;

  std::size_t R() const { return context.shape.rows(); }
  float* scratch_at(std::size_t offset) const { return context.scratch + offset; }
  E* scratch_values(std::size_t offset) const { return values_at<E>(context.scratch, offset); }
  const E* weight(int index) const {
    if (index < 0) return nullptr;
    const void* found = context.weights[static_cast<std::size_t>(index)];
    expect(found != nullptr, "a stage runs with its parameters gathered");
    return static_cast<const E*>(found);
  }
  /// The matrix of a projection, in its stored layout; it may be only some rows of the stored one. A quantized one is expanded
  /// in scratch, where the next call overwrites it.
  const E* matrix(const Linear& linear) const {
    const std::size_t begin = linear.first * linear.in;
    if (!config.base_type) return weight(linear.weight) + begin;
    const void* const quantized = context.weights[static_cast<std::size_t>(linear.weight)];
    expect(quantized != nullptr, "a stage runs with its parameters gathered");
    const bool in_out = linear.layout == WeightLayout::in_out;
    const std::size_t surplus = *config.base_type == kernels::Quantization::nf4 ? begin % kernels::quantized_block : 0;
    E* const expanded = scratch_values(scratch.matrix);
    kernels::dequantize(context.stream, *config.base_type,
                        {in_out ? linear.in : linear.stored, in_out ? linear.stored : linear.in}, quantized,
                        {begin - surplus, begin + linear.in * linear.out}, expanded);
    return expanded + surplus;
  }
  /// The number of outputs of a projection that one product computes. If a quantized matrix is used for a few rows only, as
  /// when a text is generated, a CPU expands so much of it at a time as its second-level caches hold.
  std::size_t outputs_at_once(const Linear& linear) const {
    constexpr std::size_t few = 32, cache = std::size_t{512} << 10;  // rows; bytes for each thread
    if (!config.base_type || linear.layout == WeightLayout::in_out || R() > few || device.threads == 0) return linear.out;
    return std::max<std::size_t>(1, device.threads * cache / (linear.in * sizeof(E)));
  }
  /// The gradient of a projection's matrix; null if it is not needed.
  float* gradient(const Linear& linear) const {
    float* const whole = gradient(linear.weight);
    return whole ? whole + linear.first * linear.in : nullptr;
  }
  float* gradient(int index) const { return index < 0 ? nullptr : context.gradients[static_cast<std::size_t>(index)]; }

  kernels::DropoutMask dropout_mask(DropoutSite site, std::size_t block) const {
    const Dropout& dropout = context.dropout;
    const float rate = site == DropoutSite::attention_probabilities ? dropout.attention : dropout.residual;
    if (rate == 0) return {};
    return mask_of(rate, narrow<std::uint32_t>(4 * block) + static_cast<std::uint32_t>(site));
  }
  /// The mask of the input of a projection's adapter.
  kernels::DropoutMask adapter_mask(const Linear& linear) const {
    const Dropout& dropout = context.dropout;
    if (dropout.adapters == 0) return {};
    return mask_of(dropout.adapters, first_adapter_site + narrow<std::uint32_t>(linear.lora_a));
  }
  /// The gradient of a branch's output (embedding, attention or MLP), from dx, the gradient of the residual stream. It is dx
  /// itself or, with dropout, dx times the mask.
  const E* branch_gradient(DropoutSite site, std::size_t block, const E* dx) const {
    const kernels::DropoutMask mask = dropout_mask(site, block);
    if (!mask.dropped) return dx;
    E* const d_branch = scratch_values(scratch.d_branch);
    kernels::dropout(context.stream, d_branch, dx, R(), config.width, mask);
    return d_branch;
  }

  void norm_forward(const Norm& norm, E* y, float* stats, const E* x, std::size_t rows) const {
    if (config.norm == NormKind::layer) {
      kernels::layer_norm_forward(context.stream, y, stats, x, weight(norm.gain), weight(norm.bias), rows, config.width,
                                  config.norm_eps);
    } else {
      kernels::rms_norm_forward(context.stream, y, stats, x, weight(norm.gain), rows, config.width, config.norm_eps,
                                config.gain_offset);
    }
  }

  /// From dy, computes the gradients of x and of the norm's parameters. By `write_dx`, the gradient of x overwrites dx or is
  /// added to it.
  void norm_backward(const Norm& norm, E* dx, Write write_dx, const E* dy, const E* x, const float* stats, Write write) const {
    float* d_gain = gradient(norm.gain);
    if (!d_gain) d_gain = scratch_at(scratch.unwanted);
    float* sums = scratch_at(scratch.column_sums);
    if (config.norm == NormKind::layer) {
      float* d_bias = gradient(norm.bias);
      if (!d_bias) d_bias = scratch_at(scratch.unwanted) + config.width;
      kernels::layer_norm_backward(context.stream, dx, write_dx, d_gain, d_bias, write, dy, x, stats, weight(norm.gain), R(),
                                   config.width, sums);
    } else {
      kernels::rms_norm_backward(context.stream, dx, write_dx, d_gain, write, dy, x, stats, weight(norm.gain), R(),
                                 config.width, sums, config.gain_offset);
    }
  }

  /// y[R,out] = x[R,in] W, without the bias. Rows of y are `stride` elements apart.
  void linear_forward(const Linear& linear, const E* x, E* y, std::size_t stride) const {
    const bool in_out = linear.layout == WeightLayout::in_out;
    Linear part = linear;  // the outputs from `begin` on
    for (std::size_t begin = 0; begin < linear.out; begin += part.out) {
      part.first = linear.first + begin;
      part.out = std::min(linear.out - begin, outputs_at_once(linear));
      kernels::gemm(context.stream, Trans::no, in_out ? Trans::no : Trans::yes, R(), part.out, linear.in, x, linear.in,
                    matrix(part), in_out ? linear.out : linear.in, y + begin, stride, Write::overwrite);
    }
    if (linear.lora_a < 0) return;
    const std::size_t rank = linear.rank;
    kernels::gemm(context.stream, Trans::no, Trans::yes, R(), linear.out, rank,
                  adapter_hidden(linear, adapter_input(linear, x)), rank, weight(linear.lora_b), rank, y, stride, Write::add);
  }
  /// Computes hidden[rows,rank] = scale * input[rows,in] A^T, the hidden numbers of a projection's adapter.
  void adapter_hidden(const Linear& linear, const E* input, std::size_t rows, E* hidden) const {
    kernels::gemm(context.stream, Trans::no, Trans::yes, rows, linear.rank, linear.in, input, linear.in, weight(linear.lora_a),
                  linear.in, hidden, linear.rank, Write::overwrite);
    scale_hidden(linear, hidden, rows);
  }
  /// Multiplies x[rows,rank] by the scale of the adapter, in place.
  void scale_hidden(const Linear& linear, E* x, std::size_t rows) const {
    const kernels::DropoutMask drops_nothing = {.scale = linear.scale};
    kernels::dropout(context.stream, x, x, rows, linear.rank, drops_nothing);
  }
  /// linear_forward(), and adds the bias in the same pass if the device fuses biases. Returns the bias that is left to add, or
  /// null.
  const E* linear_bias_forward(const Linear& linear, const E* x, E* y, std::size_t stride) const {
    const bool in_out = linear.layout == WeightLayout::in_out;
    const E* const bias = weight(linear.bias);
    if (bias && fuses(linear) &&
        kernels::gemm_with_epilogue(context.stream, {kernels::Epilogue::Kind::bias, bias}, Trans::no,
                                    in_out ? Trans::no : Trans::yes, R(), linear.out, linear.in, x, linear.in, matrix(linear),
                                    in_out ? linear.out : linear.in, y, stride, Write::overwrite))
      return nullptr;
    linear_forward(linear, x, y, stride);
    return bias;
  }
  /// Computes dy W^T. By `write`, the product overwrites dx[R,in] or is added to it. If the projection has an adapter,
  /// linear_backward_parameters() must have run before.
  void linear_backward_input(const Linear& linear, const E* dy, std::size_t stride, E* dx, Write write) const {
    const bool in_out = linear.layout == WeightLayout::in_out;
    kernels::gemm(context.stream, Trans::no, in_out ? Trans::yes : Trans::no, R(), linear.in, linear.out, dy, stride,
                  matrix(linear), in_out ? linear.out : linear.in, dx, linear.in, write);
    if (linear.lora_a < 0) return;
    const std::size_t rank = linear.rank;
    const kernels::DropoutMask mask = adapter_mask(linear);
    E* const d_input = mask.dropped ? scratch_values(scratch.dropped) : dx;
    kernels::gemm(context.stream, Trans::no, Trans::no, R(), linear.in, rank, d_hidden(linear), rank, weight(linear.lora_a),
                  linear.in, d_input, linear.in, mask.dropped ? Write::overwrite : Write::add);
    if (mask.dropped) kernels::add_residual(context.stream, dx, dx, d_input, nullptr, R(), linear.in, mask);
  }
  /// pre[R,out] = x[R,in] W + bias, y = gelu(pre).
  void linear_gelu_forward(const Linear& linear, kernels::Gelu form, const E* x, E* pre, E* y) const {
    if (linear.lora_a >= 0 || device.fuses_biases) {
      const E* const bias = linear_bias_forward(linear, x, pre, linear.out);
      return kernels::bias_gelu_forward(context.stream, form, y, pre, bias, R(), linear.out);
    }
    kernels::gemm_bias_gelu(context.stream, form, linear.layout == WeightLayout::in_out ? Trans::no : Trans::yes, R(),
                            linear.out, linear.in, x, matrix(linear), weight(linear.bias), pre, y);
  }
  /// The input of this projection is gelu(pre). Computes d_pre[R,in] = (dy[R,out] W^T) * gelu'(pre), elementwise.
  void linear_gelu_backward(const Linear& linear, kernels::Gelu form, const E* dy, const E* pre, E* d_pre) const {
    if (linear.lora_a >= 0) {
      linear_backward_input(linear, dy, linear.out, d_pre, Write::overwrite);
      return kernels::gelu_backward(context.stream, form, d_pre, d_pre, pre, R() * linear.in);
    }
    const bool in_out = linear.layout == WeightLayout::in_out;
    const Trans trans_b = in_out ? Trans::yes : Trans::no;
    const E* const w = matrix(linear);
    if (form == kernels::Gelu::tanh && fuses(linear) &&
        kernels::gemm_with_epilogue(context.stream, {kernels::Epilogue::Kind::gelu_gradient, pre}, Trans::no, trans_b, R(),
                                    linear.in, linear.out, dy, linear.out, w, in_out ? linear.out : linear.in, d_pre, linear.in,
                                    Write::overwrite))
      return;
    kernels::gemm_gelu_backward(context.stream, form, trans_b, R(), linear.in, linear.out, dy, w, pre, d_pre);
  }
  /// Computes gradients of weight, bias and adapter from the input and the gradient of the output.
  void linear_backward_parameters(const Linear& linear, const E* x, const E* dy, std::size_t stride, Write write) const {
    float *const d_weight = gradient(linear), *d_bias = gradient(linear.bias);
    if (d_weight) {
      const bool in_out = linear.layout == WeightLayout::in_out;
      struct Side {
        const E* rows;
        std::size_t width, stride;
      };
      const Side in = {x, linear.in, linear.in}, out = {dy, linear.out, stride};
      const Side &left = in_out ? in : out, &right = in_out ? out : in;
      float* const sums = write == Write::add ? scratch_at(scratch.column_sums) : d_bias;  // an epilogue overwrites its sums
      using enum kernels::Epilogue::Kind;
      if (d_bias && fuses(linear) &&
          kernels::gemm_with_epilogue(context.stream, {in_out ? sums_of_b : sums_of_a, sums}, Trans::yes, Trans::no, left.width,
                                      right.width, R(), left.rows, left.stride, right.rows, right.stride, d_weight, right.width,
                                      write)) {
        if (sums != d_bias) kernels::add(context.stream, d_bias, sums, linear.out);
        d_bias = nullptr;
      } else {
        kernels::gemm(context.stream, Trans::yes, Trans::no, left.width, right.width, R(), left.rows, left.stride, right.rows,
                      right.stride, d_weight, right.width, write);
      }
    }
    if (d_bias)
      kernels::bias_backward(context.stream, d_bias, dy, R(), linear.out, stride, write, scratch_at(scratch.column_sums));
    if (linear.lora_a >= 0) adapter_backward(linear, x, dy, stride, write);
  }

 private:
  kernels::DropoutMask mask_of(float rate, std::uint32_t site) const {
    const Dropout& dropout = context.dropout;
    kernels::DropoutMask mask =
        kernels::dropout_mask(rate, dropout.seed, site, dropout.update, dropout.first_sequence, sequence_length);
    mask.first_row = first_row;
    return mask;
  }
  /// Returns true if the products of this projection may have epilogues.
  bool fuses(const Linear& linear) const { return device.fuses_biases && linear.lora_a < 0; }
  /// The input of a projection's adapter: x[R,in] or, with dropout, x times the mask, in scratch.
  const E* adapter_input(const Linear& linear, const E* x) const {
    const kernels::DropoutMask mask = adapter_mask(linear);
    if (!mask.dropped) return x;
    E* const dropped = scratch_values(scratch.dropped);
    kernels::dropout(context.stream, dropped, x, R(), linear.in, mask);
    return dropped;
  }
  /// Computes scale * input[R,in] A^T, in scratch.
  const E* adapter_hidden(const Linear& linear, const E* input) const {
    E* const hidden = scratch_values(scratch.hidden);
    adapter_hidden(linear, input, R(), hidden);
    return hidden;
  }
  /// The gradient of input A^T, which linear_backward_parameters() computes and linear_backward_input() reads.
  E* d_hidden(const Linear& linear) const { return scratch_values(scratch.d_hidden + linear.index * scratch.hidden_distance); }
  /// Computes d_hidden, and the gradients of A and B. The input's product with A is computed again, not saved.
  void adapter_backward(const Linear& linear, const E* x, const E* dy, std::size_t stride, Write write) const {
    const std::size_t rank = linear.rank;
    E* const d_hidden_of = d_hidden(linear);
    kernels::gemm(context.stream, Trans::no, Trans::no, R(), rank, linear.out, dy, stride, weight(linear.lora_b), rank,
                  d_hidden_of, rank, Write::overwrite);
    scale_hidden(linear, d_hidden_of, R());
    const E* const input = adapter_input(linear, x);
    if (float* d_a = gradient(linear.lora_a))
      kernels::gemm(context.stream, Trans::yes, Trans::no, rank, linear.in, R(), d_hidden_of, rank, input, linear.in, d_a,
                    linear.in, write);
    if (float* d_b = gradient(linear.lora_b))
      kernels::gemm(context.stream, Trans::yes, Trans::no, linear.out, rank, R(), dy, stride, adapter_hidden(linear, input),
                    rank, d_b, rank, write);
  }
};

/// The stages of a Transformer, which must outlive them. `read`: Stage::reads.
std::unique_ptr<const InputStage> make_embedding(const Transformer& model, std::vector<std::size_t> read);
std::unique_ptr<const BlockStage> make_block(const Transformer& model, std::size_t number, std::vector<std::size_t> read);
std::unique_ptr<const LossStage> make_head(const Transformer& model, std::vector<std::size_t> read);

}  // namespace fsdp::stages
