// The operations of a transformer on plain pointers. Matrices are row-major; every size is in elements. Weights and activations
// are of type E, which is float, bf16 or f16. Sums, statistics, parameter gradients, the loss and all arithmetic are in fp32.
// Letters as in docs/glossary.md:
//   B sequences, T tokens per sequence, R = B*T rows, C width, H query heads, K key/value heads, D head size, F inner width,
//   V vocabulary.
// Each call runs, or is queued, on the device of `stream`. No function allocates memory, except gemm(), gemm_bias_gelu() and
// gemm_gelu_backward(); gemm_workspace_bytes() in threads.hpp returns how much these allocate.
// Sums over rows (bias and gain gradients) have one fixed order that depends only on the sizes and the kind of device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "base/element.hpp"
#include "device/device.hpp"
#include "device/traits.hpp"
#include "tensor/shape.hpp"

namespace fsdp::kernels {

struct LossSum;

/// A pointer that may be null. The compiler does not deduce E from such an argument, so that callers can pass nullptr.
template <class E>
using Nullable = std::type_identity_t<const E*>;

/// Selects whether a kernel overwrites its output or adds to it. The first kernel that computes a part of a gradient overwrites
/// the memory, and later kernels add to it. In the formulas below, `(=, +=)` means that this argument selects = or +=.
enum class Write { overwrite, add };

// --- gemm.cpp ----------------------------------------------------------------------------------------------------------
enum class Trans { no, yes };
/// out[m,n] (=, +=) op(a)[m,k] op(b)[k,n]. With `Trans::yes`, op() transposes: a is then stored as [k,m], and b as [n,k]. lda,
/// ldb and ldo are the numbers of elements from one stored row to the next (at least the row's length). Products of 16-bit
/// operands are summed in fp32; `out` has the operands' type or fp32.
template <class E, class Out>
void gemm(Stream& stream, Trans trans_a, Trans trans_b, std::size_t m, std::size_t n, std::size_t k, const E* a,
          std::size_t lda, const E* b, std::size_t ldb, Out* out, std::size_t ldo, Write write);
/// Work that a GPU's library does in the same pass as a product (cuBLASLt calls it an epilogue). `operand` has numbers of the
/// type of `out`; sums are written to it.
struct Epilogue {
  enum class Kind {
    none,
    bias,           // adds operand[n] to each row of the product before it is rounded
    gelu_gradient,  // multiplies the product, before it is rounded, by gelu'(operand[m,n]), tanh form; its rows are ldo apart
    sums_of_a,      // overwrites operand[m] with the sums over k of op(a)
    sums_of_b       // overwrites operand[n] with the sums over k of op(b)
  } kind = Kind::none;
  const void* operand = nullptr;
};
/// gemm() with an epilogue. If the device cannot compute both in one pass, returns false and computes nothing; that depends
/// only on types, sizes and alignment. Always false on a CPU.
template <class E, class Out>
bool gemm_with_epilogue(Stream& stream, const Epilogue& epilogue, Trans trans_a, Trans trans_b, std::size_t m, std::size_t n,
                        std::size_t k, const E* a, std::size_t lda, const E* b, std::size_t ldb, Out* out, std::size_t ldo,
                        Write write);
/// tanh: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) ("gelu_new"); erf: 0.5 x (1 + erf(x/sqrt 2)) ("gelu").
enum class Gelu { tanh, erf };
/// gemm() and bias_gelu_forward() in one call: computes pre[m,n] = a[m,k] op(b)[k,n] + bias, and then out = gelu(pre). `bias`
/// may be null. All matrices are dense and none overlap.
template <class E>
void gemm_bias_gelu(Stream& stream, Gelu form, Trans trans_b, std::size_t m, std::size_t n, std::size_t k, const E* a,
                    const E* b, Nullable<E> bias, E* pre, E* out);
/// gemm() and gelu_backward() in one call: d_pre[m,n] = (a[m,k] op(b)[k,n]) * gelu'(pre). All matrices are dense and none
/// overlap.
template <class E>
void gemm_gelu_backward(Stream& stream, Gelu form, Trans trans_b, std::size_t m, std::size_t n, std::size_t k, const E* a,
                        const E* b, const E* pre, E* d_pre);
/// Describes the library that runs gemm(), for example "oneDNN 2.6.3, avx512_core_amx (bf16 by AMX, fp16 by conversion to
/// fp32)".
std::string gemm_description();
/// Returns true if this machine multiplies numbers of this 16-bit type natively. Otherwise gemm() converts them to fp32, and
/// low precision saves memory and transfers but no time.
bool multiplies(DType type);

// --- embedding.cpp -----------------------------------------------------------------------------------------------------
/// The tokens from `first` to before `end`, of which a table has the rows. Other tokens are in other tables.
struct TokenRange {
  std::int32_t first = 0, end = std::numeric_limits<std::int32_t>::max();
};
/// x[r,:] = scale * token_table[tokens[r] - range.first,:], if the token is in `range`. If `position_table` or `sinusoids` is
/// not null, also adds row p of this table, where p is the token's position: positions[r], or r mod T if `positions` is null.
template <class E>
void embedding_forward(Stream& stream, E* x, const std::int32_t* tokens, const E* token_table, Nullable<E> position_table,
                       std::size_t B, std::size_t T, std::size_t C, const std::int32_t* positions = nullptr, float scale = 1,
                       const float* sinusoids = nullptr, TokenRange range = {});
/// Adds scale * dx[r,:] to d_token_table[tokens[r] - range.first,:] for r = 0, 1, ..., except if the token is `skipped` or not
/// in `range`. `Write::overwrite`
/// sets the table to zero first.
template <class E>
void embedding_backward(Stream& stream, float* d_token_table, const E* dx, const std::int32_t* tokens, std::size_t R,
                        std::size_t C, std::size_t V, Write write, float scale = 1, std::int32_t skipped = -1,
                        TokenRange range = {});
/// d_position_table[t,:] (=, +=) the sum of dx[b,t,:] over b, for t < T. The table has P rows; `Write::overwrite` sets its rows
/// from T on to zero.
template <class E>
void position_backward(Stream& stream, float* d_position_table, const E* dx, std::size_t B, std::size_t T, std::size_t C,
                       std::size_t P, Write write);

// --- norm.cpp ----------------------------------------------------------------------------------------------------------
/// LayerNorm: y = (x - mean) * rstd * gain + bias. stats[R,2] receives {mean, rstd} of each row.
template <class E>
void layer_norm_forward(Stream& stream, E* y, float* stats, const E* x, const E* gain, const E* bias, std::size_t R,
                        std::size_t C, float eps);
/// Computes the gradients dx[R,C], d_gain[C] and d_bias[C]. `write_dx` is for dx, and `write_parameters` for d_gain and d_bias.
/// `scratch` has column_sum_scratch(C, device) floats.
template <class E>
void layer_norm_backward(Stream& stream, E* dx, Write write_dx, float* d_gain, float* d_bias, Write write_parameters,
                         const E* dy, const E* x, const float* stats, const E* gain, std::size_t R, std::size_t C,
                         float* scratch);
/// RMSNorm (Zhang and Sennrich 2019): y = x * rstd * (gain + offset). stats[R] receives rstd of each row. In the backward pass,
/// dx may be x.
template <class E>
void rms_norm_forward(Stream& stream, E* y, float* stats, const E* x, const E* gain, std::size_t R, std::size_t C, float eps,
                      float offset = 0);
template <class E>
void rms_norm_backward(Stream& stream, E* dx, Write write_dx, float* d_gain, Write write_parameters, const E* dy, const E* x,
                       const float* stats, const E* gain, std::size_t R, std::size_t C, float* scratch, float offset = 0);
/// RMSNorm of each head of queries or keys, in place. The heads are the first heads * D elements of each row of x; rows are
/// `stride` elements apart. All heads share gain[D]. before[R,heads,D] receives the input, and stats[R,heads] receives rstd of
/// each head.
template <class E>
void head_norm_forward(Stream& stream, E* x, E* before, float* stats, const E* gain, std::size_t R, std::size_t heads,
                       std::size_t D, std::size_t stride, float eps, float offset = 0);
/// dx has the layout of x. On entry it is the gradient of the output, on return the gradient of the input. `write_gain` is for
/// d_gain[D]. `scratch` has column_sum_scratch(D, device) floats.
template <class E>
void head_norm_backward(Stream& stream, E* dx, float* d_gain, Write write_gain, const E* before, const float* stats,
                        const E* gain, std::size_t R, std::size_t heads, std::size_t D, std::size_t stride, float* scratch,
                        float offset = 0);
/// The number of floats of scratch for the partial sums of gain and bias gradients.
std::size_t column_sum_scratch(std::size_t C, const DeviceTraits& device);

// --- dropout.cpp -------------------------------------------------------------------------------------------------------
/// Selects the elements of a tensor that dropout keeps. The mask is a function of only (seed, site, update, global index): the
/// backward pass and recomputation generate the same mask again, and the mask does not depend on how an update is divided into
/// micro-batches and ranks. Row r of a call is row r + first_row of the micro-batch; row n of the micro-batch is position n mod
/// T of the update's sequence first_sequence + n / T. The rate is rounded to a multiple of 2^-16.
struct DropoutMask {
  std::uint32_t key[2] = {};         // a hash of (seed, site, update)
  std::uint32_t first_sequence = 0;  // the first sequence's index in the update, over all ranks and micro-batches
  std::int32_t dropped = 0;          // the rate in units of 2^-16; 0: no dropout
  float scale = 1;                   // the factor of kept elements: 65536 / (65536 - dropped)
  std::size_t T = 1, first_row = 0;
};
/// `site` is a number that is different for each place of the model where dropout is applied.
DropoutMask dropout_mask(float rate, std::uint32_t seed, std::uint32_t site, std::uint64_t update, std::uint64_t first_sequence,
                         std::size_t T);
/// y[R,C] = x with dropped elements 0 and kept elements scaled. The backward pass applies the same call to the gradient. y may
/// be x.
template <class E>
void dropout(Stream& stream, E* y, const E* x, std::size_t R, std::size_t C, const DropoutMask& mask);

/// The noise of NEFTune (Jain et al. 2023, algorithm 1): independent numbers, uniform from -bound to bound with bound = alpha /
/// sqrt(T C), where T is the length of a sequence and C its width. Like a dropout mask, the noise is a function of only (seed,
/// update, global index).
struct EmbeddingNoise {
  std::uint32_t key[2] = {};
  std::uint32_t first_sequence = 0;  // as in DropoutMask
  float bound = 0;
  std::size_t T = 1;
};
EmbeddingNoise embedding_noise(float alpha, std::uint32_t seed, std::uint64_t update, std::uint64_t first_sequence,
                               std::size_t T, std::size_t C);
/// Adds the noise to x[R,C].
template <class E>
void add_noise(Stream& stream, E* x, std::size_t R, std::size_t C, const EmbeddingNoise& noise);

// --- pointwise.cpp -----------------------------------------------------------------------------------------------------
/// x[r,:] += bias, in place.
template <class E>
void add_bias(Stream& stream, E* x, const E* bias, std::size_t R, std::size_t C);
/// d_bias[C] (=, +=) the column sums of dy[R,C], whose rows are `stride` elements apart. `scratch` has column_sum_scratch(C,
/// device) floats.
template <class E>
void bias_backward(Stream& stream, float* d_bias, const E* dy, std::size_t R, std::size_t C, std::size_t stride, Write write,
                   float* scratch);
/// y = x + dropout(branch + bias), the residual connection; bias may be null. y may be x or branch.
template <class E>
void add_residual(Stream& stream, E* y, const E* x, const E* branch, Nullable<E> bias, std::size_t R, std::size_t C,
                  const DropoutMask& mask = {});
/// Computes pre += bias, unless `bias` is null, and then out = gelu(pre). The backward pass needs the new value of `pre`.
template <class E>
void bias_gelu_forward(Stream& stream, Gelu form, E* out, E* pre, Nullable<E> bias, std::size_t R, std::size_t F);
/// d_pre = d_out * gelu'(pre). d_pre may be d_out.
template <class E>
void gelu_backward(Stream& stream, Gelu form, E* d_pre, const E* d_out, const E* pre, std::size_t n);
/// As bias_gelu_forward() and gelu_backward(), with relu(x) = max(x, 0), whose slope at 0 counts as 0.
template <class E>
void bias_relu_forward(Stream& stream, E* out, E* pre, Nullable<E> bias, std::size_t R, std::size_t F);
template <class E>
void relu_backward(Stream& stream, E* d_pre, const E* d_out, const E* pre, std::size_t n);
/// As bias_gelu_forward() and gelu_backward(), with sigmoid(x) = 1 / (1 + e^-x).
template <class E>
void bias_sigmoid_forward(Stream& stream, E* out, E* pre, Nullable<E> bias, std::size_t R, std::size_t F);
template <class E>
void sigmoid_backward(Stream& stream, E* d_pre, const E* d_out, const E* pre, std::size_t n);
/// out (=, +=) a * b, element by element. out may be a or b.
template <class E>
void multiply(Stream& stream, E* out, const E* a, const E* b, std::size_t n, Write write);
/// SwiGLU (Shazeer 2020): out = silu(gate) * up. Each of the three has n elements.
template <class E>
void swiglu_forward(Stream& stream, E* out, const E* gate, const E* up, std::size_t n);
/// Computes d_gate and d_up from d_out. One of d_gate and d_up may be d_out.
template <class E>
void swiglu_backward(Stream& stream, E* d_gate, E* d_up, const E* d_out, const E* gate, const E* up, std::size_t n);
/// to = from on all threads, with stores that bypass the caches; for measurements of the memory's bandwidth. `to` is aligned to
/// 64 bytes.
void copy(Stream& stream, float* to, const float* from, std::size_t n);
/// Sets x to zero.
template <class E>
void fill_zero(Stream& stream, E* x, std::size_t n);
/// to[R,C] = from[R,C], whose rows begin to_stride and from_stride elements apart.
template <class E>
void copy_columns(Stream& stream, E* to, std::size_t to_stride, const E* from, std::size_t from_stride, std::size_t R,
                  std::size_t C);
/// to += from.
void add(Stream& stream, float* to, const float* from, std::size_t n);
/// to += factor * from.
void add_scaled(Stream& stream, float* to, const float* from, std::size_t n, float factor);
/// Limits x to [-most, most]. NaNs are unchanged.
void clip_values(Stream& stream, float* x, std::size_t n, float most);
/// to = from, converted to another type; 16-bit numbers are rounded to nearest. Does nothing if `to` and `from` are the same
/// memory and type.
template <class To, class From>
void convert(Stream& stream, To* to, const From* from, std::size_t n);

// --- ranks.cpp ---------------------------------------------------------------------------------------------------------
/// out[i] (=, +=) the sum of element i < n over `ranks` ranks, in canonical order (comm/tree_sum.hpp). `me` is the number of
/// this rank, and `own` has its elements. The rows of `received` have the elements of the other ranks, in order of ranks; rows
/// are `stride` elements apart. T and In are both float or both double, or T is float and In is bf16 or f16.
template <class T, class In>
void sum_ranks(Stream& stream, T* out, const In* own, const In* received, std::size_t stride, int ranks, int me, std::size_t n,
               Write write);
/// Copies elements [begin, begin + n) of each share of `whole`, rounded to type `In`. `whole` has `total` elements and is
/// divided into one share per rank by share() of tensor/shape.hpp. Share r is copied to row r of `out`; rows are `stride`
/// elements apart. Elements after a share's end are not written.
template <class In>
void round_shares(Stream& stream, In* out, const float* whole, std::size_t total, std::size_t begin, std::size_t n,
                  std::size_t stride, int ranks);
/// Rounds each element to the nearest number of `type`, in place.
void round_to(Stream& stream, DType type, float* x, std::size_t n);

// --- rope.cpp ----------------------------------------------------------------------------------------------------------
/// Rotary position embedding (Su et al. 2021) in Hugging Face's split-half form, in place. The heads are the first heads * D
/// elements of each row of x; rows are `stride` elements apart. Only the first `rotated` elements of a head change: their
/// halves, x1 and x2, become x1 cos - x2 sin and x2 cos + x1 sin. A row of cos_sin[T,rotated] has the cosines, then the sines;
/// rows are `table_stride` elements apart. `inverse` rotates back, for the backward pass. Row r has the position positions[r],
/// or r mod T if `positions` is null.
template <class E>
void rope(Stream& stream, E* x, std::size_t B, std::size_t T, std::size_t heads, std::size_t D, std::size_t rotated,
          std::size_t stride, const float* cos_sin, std::size_t table_stride, bool inverse,
          const std::int32_t* positions = nullptr);

// --- attention.cpp -----------------------------------------------------------------------------------------------------
/// Keys [begin, end) of a sequence.
struct Keys {
  std::size_t begin, end;
};
/// Causal attention with grouped queries: out[B,T,H,D] = softmax(q k^T / sqrt(D)) v, or with another divisor (`scaled_by`). The
/// strides q_stride (of q[B,T,H,D]) and kv_stride (of k and v[B,T,K,D]) are the numbers of elements from one token to the next,
/// so that q, k and v may be parts of a fused matrix. lse[B,H,T] receives the log of each row's sum of exponentials. The
/// kernels work in blocks of query rows and store no T x T matrix. `scratch` has attention_scratch() floats. `mask` drops
/// probabilities after the softmax, by (sequence, head, query, key); backward takes the same mask. `past` is the number of
/// earlier tokens, whose keys and values precede those of the queries' own tokens: k and v are [B,past+T,K,D]. Only
/// attention_forward() supports `past` > 0. `positions`, if it is not null, divides sequences into documents. positions[B,T]
/// are the tokens' positions in their documents: 0 at the first token of a document, and increasing by one. A token attends
/// only to its own document, and the kernels skip other documents' keys. `past` must be 0 if `positions` is not null. `window`,
/// if it is not 0, is the largest number of keys that a query attends to: its own and the window - 1 before it (Beltagy et al.
/// 2020, section 3.1). It may be longer than the sequence.
struct AttentionShape {
  std::size_t B, T, H, K, D, q_stride, kv_stride, past = 0;
  const std::int32_t* positions = nullptr;
  std::uint32_t window = 0;
  std::size_t scaled_by = 0;  // scores are divided by the root of this number; 0: of D
  /// On a GPU: cuDNN computes attention, and the backward pass in this many calls (kernels/cudnn.hpp). 0: our kernels do.
  std::size_t cudnn_parts = 0;

  [[gnu::always_inline]] constexpr float squared_divisor() const { return static_cast<float>(scaled_by > 0 ? scaled_by : D); }
  /// Returns the keys that a query attends to. `own` is the index of the query's own key in the sequence, and `position` the
  /// query's position in its document. All kernels derive their bounds from this function. They assume only that a query
  /// attends to its own key and to no later key, and that neither bound decreases from one query to the next.
  [[gnu::always_inline]] constexpr Keys visible_keys(std::size_t own, std::size_t position) const {
    // 32-bit integers, to save registers on a GPU. Without a window, `most` is the largest number.
    const std::uint32_t before = static_cast<std::uint32_t>(position), most = window - 1;
    return {own - (before < most ? before : most), own + 1};
  }
  /// Returns the keys that token t of sequence b attends to.
  [[gnu::always_inline]] constexpr Keys seen_by(std::size_t b, std::size_t t) const {
    return visible_keys(past + t, positions ? static_cast<std::size_t>(positions[b * T + t]) : past + t);
  }
  /// Returns true if all queries attend to the first key of their sequence.
  constexpr bool all_see_the_first() const { return !positions && (window == 0 || past + T <= window); }
};
/// The approximate number of (query, visible key) pairs in a sequence of one document, for estimates of attention's cost.
constexpr double visible_pairs(std::size_t T, std::size_t window) {
  const auto all = static_cast<double>(T), most = static_cast<double>(window == 0 ? T : std::min(window, T));
  return all * most - most * most / 2;
}
template <class E>
void attention_forward(Stream& stream, E* out, float* lse, const E* q, const E* k, const E* v, const AttentionShape& shape,
                       float* scratch, const DropoutMask& mask = {});
/// dq, dk and dv have the strides of q, k and v and are overwritten. `out` and `lse` are results of the forward pass.
template <class E>
void attention_backward(Stream& stream, E* dq, E* dk, E* dv, const E* d_out, const E* out, const float* lse, const E* q,
                        const E* k, const E* v, const AttentionShape& shape, float* scratch, const DropoutMask& mask = {});
/// Prepares for attention of this shape. `backward`: for both passes. On a GPU, cuDNN then compiles its kernels. Throws
/// UserError if the stream's device cannot compute attention of this shape.
void prepare_attention(const Stream& stream, DType type, const AttentionShape& shape, bool backward);
/// The number of floats of scratch for the forward and the backward pass. On a CPU each thread has its own part of the scratch.
/// On a GPU the scratch holds the sum of d_out * out for each query and head (D in algorithm 2 of Dao 2023,
/// "FlashAttention-2"), or cuDNN's workspace.
std::size_t attention_scratch(const AttentionShape& shape, const DeviceTraits& device);
/// The number of floats of scratch for only attention_forward().
std::size_t attention_forward_scratch(const AttentionShape& shape, const DeviceTraits& device);

// --- cached_attention.cpp ----------------------------------------------------------------------------------------------
/// The shape of a key-value cache: [sequences, positions, 2, K, D]. Each position of a sequence holds the keys of one token,
/// then its values.
struct CacheShape {
  std::size_t sequences = 0, positions = 0;  // 0 positions: no cache
  bool operator==(const CacheShape&) const = default;
};
/// Copies row r of kv[R, n], n = 2KD, to position positions[r] of sequence sequences[r]. Rows of kv are `stride` elements
/// apart. If the position is not below shape.positions, the row goes to position mod shape.positions, so that the cache keeps
/// the newest shape.positions tokens. The rows of a sequence are adjacent and in order.
template <class E>
void append_to_cache(Stream& stream, E* cache, const CacheShape& shape, const E* kv, std::size_t R, std::size_t n,
                     std::size_t stride, const std::int32_t* sequences, const std::int32_t* positions);
/// Copies to to[past + count, n] the keys and values of consecutive tokens: `past` cached ones of a sequence, from position
/// `first` on, then rows of kv[count, n], which are `stride` elements apart.
template <class E>
void join_cache(Stream& stream, E* to, const E* cache, const CacheShape& shape, std::size_t sequence, std::size_t first,
                std::size_t past, const E* kv, std::size_t count, std::size_t n, std::size_t stride);
/// Attention of R single tokens, with the result in out[R,H,D]. The query of row r of q[R,H,D] attends to the cached keys of
/// sequence sequences[r] up to position positions[r], that of the query's own token. `rows` describes R sequences of one token;
/// its kv_stride is ignored. With a window, shape.positions is the window, or all positions if there are fewer. `scratch` has
/// R * H * shape.positions floats.
template <class E>
void cached_attention(Stream& stream, E* out, const E* q, const E* cache, const CacheShape& shape, const AttentionShape& rows,
                      const std::int32_t* sequences, const std::int32_t* positions, float* scratch);

// --- cross_entropy.cpp -------------------------------------------------------------------------------------------------
/// The running statistics of a row of logits over the pieces that have been processed: the largest logit, the sum of exp(logit
/// - largest), the target's logit, and the sum of logit * exp(logit - largest), which gives the entropy.
struct SoftmaxStats {
  float top, total, at_target, weighted = 0;
};
/// Logits of R rows, divided along the vocabulary into pieces of `piece` columns (the last one may have fewer). The pieces are
/// stored one after another; each is a matrix with R rows, whose distance is the number of columns, rounded up to a multiple of
/// `alignment`. If there are several pieces, `piece` is such a multiple. `stats` and `targets` have one element per row.
template <class E>
struct Logits {
  E* values;
  SoftmaxStats* stats;
  const std::int32_t* targets;
  std::size_t R, V, piece, alignment = 1;
  /// The first value of the piece that starts at column `begin`, and the distance between the rows of this piece.
  E* values_from(std::size_t begin) const { return values + R * begin; }
  std::size_t stride_from(std::size_t begin) const { return round_up(std::min(piece, V - begin), alignment); }
};
/// Processes the piece that starts at column `begin`. Call this for each piece in order. The last call writes, for each row,
/// loss[r] = log(sum(exp(logits[r,:]))) - logits[r,target], or 0 if target < 0 (the token is masked).
template <class E>
void cross_entropy(Stream& stream, float* loss, const Logits<E>& logits, std::size_t begin);
/// Call this after cross_entropy() of all pieces. Overwrites the logits of the piece that starts at column `begin` with
/// gradient_scale * (softmax - onehot). Rows with target < 0 become zeros.
template <class E>
void logit_gradient(Stream& stream, const Logits<E>& logits, std::size_t begin, float gradient_scale);
/// As cross_entropy() and then logit_gradient() of all pieces, with the same bits, for at most two pieces that are in memory at
/// once.
template <class E>
void loss_and_gradient(Stream& stream, float* loss, const Logits<E>& logits, float gradient_scale);
/// Call this after cross_entropy() of all pieces, or after loss_and_gradient(). Adds to `sum` the entropies of the predictions
/// of rows whose target counts, and the number of those rows in which no logit is larger than the target's.
template <class E>
void add_predictions(Stream& stream, LossSum& sum, const Logits<E>& logits);

/// The loss of a target in training, with logZ = log(sum(exp(logits))):
///   (1 - label_smoothing) (logZ - logit of the target) + label_smoothing (logZ - mean of the logits) + z_loss logZ^2.
/// The first two terms are torch.nn.CrossEntropyLoss(label_smoothing=...) (Szegedy et al. 2016, section 7); the third one is
/// PaLM's (Chowdhery et al. 2022, section 5).
struct LossTerms {
  float label_smoothing = 0, z_loss = 0;
  bool any() const { return label_smoothing != 0 || z_loss != 0; }
};
/// As logit_gradient(), for a loss with `terms`. After the last piece, loss[r] is that loss instead of the cross-entropy.
template <class E>
void logit_gradient(Stream& stream, const Logits<E>& logits, std::size_t begin, float gradient_scale, const LossTerms& terms,
                    float* loss);

// --- initial.cpp -------------------------------------------------------------------------------------------------------
/// x[i] = mean + stddev * z(global_begin + i), with z standard normal, computed by the method of Box and Muller from
/// philox(counter = index/4, key = (seed, tensor)). So any part of a tensor can be filled independently.
void fill_normal(Stream& stream, float* x, std::size_t n, std::size_t global_begin, std::uint32_t seed, std::uint32_t tensor,
                 float mean, float stddev);
/// As fill_normal(), with numbers that are uniform from -bound to bound. Each element uses one word of philox.
void fill_uniform(Stream& stream, float* x, std::size_t n, std::size_t global_begin, std::uint32_t seed, std::uint32_t tensor,
                  float bound);
void fill_constant(Stream& stream, float* x, std::size_t n, float value);

}  // namespace fsdp::kernels
