// Attention and transformer blocks as layers. They support fp32, bf16 and fp16 on CPUs and GPUs.
#pragma once

#include <cstddef>

#include "layers/layer.hpp"

namespace fsdp {

/// The heads, the mask and the initial values of multi_head_attention().
struct AttentionOptions {
  std::size_t heads = 1;         // heads of queries
  std::size_t kv_heads = 0;      // heads of keys and values, of which `heads` is a multiple (grouped queries); 0: `heads`
  std::size_t head_size = 0;     // 0: width / heads
  bool causal = false;           // a position attends to itself and earlier positions of its sequence; false: to all positions
  bool bias = true;              // all projections have a bias
  double rope_theta = 0;         // rotary positions with this base, as in Llama; 0: none
  bool mask = false;             // the input has a column more, the padding mask; see below
  bool fused_qkv = false;        // one matrix for queries, keys and values; see below
  float standard_deviation = 0;  // of the initial matrices; 0: 1/sqrt(inputs of the matrix)
  float out_standard_deviation = 0;  // of the initial output projection; 0: as standard_deviation
};

/// Multi-head attention (Vaswani et al. 2017) over the positions of each sequence: y = o_proj(softmax(q k^T / sqrt(head_size))
/// v), with q = q_proj(x), k = k_proj(x) and v = v_proj(x). Position r mod T of a sequence is also its rotary position (Su et
/// al. 2021): the halves of each head are rotated, as in Hugging Face's Llama.
///
/// Parameters: q_proj, k_proj, v_proj and o_proj, each with weight[outputs, inputs] and bias[outputs], as in Hugging Face's
/// Llama. In torch.nn.MultiheadAttention, in_proj_weight has the rows of q_proj, k_proj and v_proj, in_proj_bias their biases,
/// and out_proj is o_proj. With `fused_qkv`, they are those of Hugging Face's GPT-2: c_attn.weight[width, (heads + 2 kv_heads)
/// head_size], whose columns are queries, keys and values, c_attn.bias, c_proj.weight[heads head_size, width], and c_proj.bias.
///
/// With `mask`, a row of the input has width + 1 numbers: the last one is 0 for a position that is padding, and 1 for others.
/// Padding is not attended to; the outputs of padding positions mean nothing. The mask's gradient is 0. A sequence in which all
/// positions are padding gives the output projection's bias.
///
/// Causal attention without a mask stores no matrix of scores (Dao et al. 2022). On a CPU, its kernels keep scratch memory
/// outside the memory plan, about 1 MB per thread for 1,024 positions and heads of 64. Other attention computes the scores of
/// up to 64 B queries at a time, by matrix products for each sequence and head, one after another; this is slow on GPUs.
/// Gradients of keys and values are then added up in the type of the pass. On a GPU, heads have at most 256 numbers. In 16
/// bits, the causal kernels of a GPU need memory that is aligned to 16 bytes, which it is if all sizes of the model are
/// multiples of 8; otherwise attention is computed like other attention.
LayerPtr multi_head_attention(std::size_t width, const AttentionOptions& options = {});

/// The model whose blocks transformer_block() makes.
enum class BlockStyle { gpt2, llama };

/// The style, the heads, the width of the MLP and the initial values of transformer_block().
struct TransformerBlockOptions {
  BlockStyle style = BlockStyle::gpt2;                       // norms, activation, biases and names
  std::size_t heads = 1, kv_heads = 0, head_size = 0;        // as in AttentionOptions
  std::size_t inner = 0;                                     // the width between the matrices of the MLP; 0: 4 * width
  bool causal = true;                                        // as in AttentionOptions
  double rope_theta = 0;                                     // as in AttentionOptions
  float norm_eps = 0;                                        // 0: 1e-5 for gpt2, 1e-6 for llama
  float standard_deviation = 0, out_standard_deviation = 0;  // as in AttentionOptions; out: also of the MLP's last matrix
};

/// A transformer block with norms before its two branches: x + attention(norm(x)), and then y + mlp(norm(y)). Names, shapes and
/// order of its parameters are those of a block in Hugging Face's models:
///   gpt2   LayerNorm, GELU (tanh), biases: ln_1, attn.c_attn, attn.c_proj, ln_2, mlp.c_fc, mlp.c_proj. The weights of the four
///          matrices are stored as [inputs, outputs].
///   llama  RMSNorm, SwiGLU, no biases: input_layernorm, self_attn.{q,k,v,o}_proj, post_attention_layernorm,
///          mlp.{gate,up,down}_proj.
/// On CPUs in fp32, results have the same bits as those of the block of a TransformerDescription.
LayerPtr transformer_block(std::size_t width, const TransformerBlockOptions& options = {});

}  // namespace fsdp
