#include "layers/attention.hpp"

#include <algorithm>
#include <cmath>

#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "kernels/kernels.hpp"
#include "kernels/plain_attention.hpp"
#include "kernels/threads.hpp"
#include "layers/composition.hpp"
#include "layers/layers.hpp"
#include "layers/ops.hpp"
#include "layers/place.hpp"
#include "nn/attention.hpp"

namespace fsdp {

namespace {

using ops::Out;
using ops::Transpose;

/// A matrix of weights, as Hugging Face's models store it: [outputs, inputs] in torch.nn.Linear, [inputs, outputs] in GPT-2.
enum class Stored { out_in, in_out };

Transpose forward_transpose(Stored stored) { return stored == Stored::out_in ? Transpose::yes : Transpose::no; }
Transpose backward_transpose(Stored stored) { return stored == Stored::out_in ? Transpose::no : Transpose::yes; }

/// d_weight += the gradient of a weight, if it is trained.
void add_weight_gradient(const Pass& pass, Stored stored, const Tensor& x, const Tensor& dy, const Tensor& d_weight) {
  if (!d_weight) return;
  const Tensor &rows = stored == Stored::out_in ? dy : x, &columns = stored == Stored::out_in ? x : dy;
  ops::matmul(pass, rows, Transpose::yes, columns, Transpose::no, d_weight, Out::add);
}

/// d_bias += the sums of the columns of dy, if the bias is trained. Rows of dy may be any distance apart.
void add_bias_gradient(const Pass& pass, const Tensor& dy, const Tensor& d_bias) {
  ops::linear_backward(pass, {}, {}, dy, {}, {}, d_bias);
}

void add_bias(const Pass& pass, const Tensor& y, const Tensor& bias) {
  with_element(y.type, [&]<class E>() {
    kernels::add_bias(*pass.stream, static_cast<E*>(y.data), static_cast<const E*>(bias.data), y.rows, y.columns);
  });
}

LayerParameter weight_of(const std::string& name, Stored stored, std::size_t in, std::size_t out, float deviation) {
  return {name, stored == Stored::out_in ? Shape{out, in} : Shape{in, out},
          normal(deviation > 0 ? deviation : 1 / std::sqrt(static_cast<float>(in)))};
}

/// The columns of part `part` of a matrix whose rows have several parts.
struct ProjectedColumns {
  std::size_t begin, count;
};

/// Memory of the CPU's attention kernels, which depends on the length of sequences and the number of threads.
float* attention_memory(const kernels::AttentionShape& shape) {
  thread_local Buffer memory;
  const std::size_t bytes = kernels::attention_scratch(shape, kernels::traits_of_cpu()) * sizeof(float);
  if (memory.bytes() < bytes) memory = allocate_host(bytes);
  return reinterpret_cast<float*>(memory.data());
}

class Attention final : public Layer {
 public:
  /// If `leaves_out_bias` is true, the caller adds the bias of the output projection, which is then not one of the layer's
  /// parameters.
  Attention(std::size_t width, const AttentionOptions& options, bool leaves_out_bias = false)
      : C(width),
        o_(options),
        stored_(options.fused_qkv ? Stored::in_out : Stored::out_in),
        out_bias_(o_.bias && !leaves_out_bias) {
    const auto require = [&](bool ok, const std::string& what) {
      if (!ok) throw UserError(format("attention of width {} with {} heads {}", as_given(width), as_given(o_.heads), what));
    };
    require(C > 0 && o_.heads > 0, "is empty (both must be at least 1); correct them");
    require(std::max({C, o_.heads, o_.kv_heads, o_.head_size}) <= std::size_t{1} << 30,
            "has a size that is negative or above 2^30; correct it");
    require(o_.standard_deviation >= 0 && o_.out_standard_deviation >= 0,
            "has a wrong standard deviation (both must be at least 0); correct it");
    if (o_.kv_heads == 0) o_.kv_heads = o_.heads;
    require(o_.heads % o_.kv_heads == 0,
            format("and {} heads of keys is not possible (each head of keys needs the same number of heads); correct kv_heads",
                   o_.kv_heads));
    require(o_.head_size > 0 || C % o_.heads == 0, "does not divide evenly; correct heads, or give head_size");
    if (o_.head_size == 0) o_.head_size = C / o_.heads;
    H = o_.heads, K = o_.kv_heads, D = o_.head_size;
    parts_ = {{0, H * D}, {H * D, K * D}, {(H + K) * D, K * D}};
    if (o_.fused_qkv) parts_ = {{0, qkv_width()}};
    if (o_.rope_theta == 0) return;
    require(o_.rope_theta > 0 && std::isfinite(o_.rope_theta),
            "has a wrong rope_theta (frequencies are powers of it); give a positive number");
    require(D % 2 == 0 && D / 2 <= kernels::RotaryFrequencies::most,
            format("has heads of {} numbers (rotary positions need an even number, at most {}); correct head_size", D,
                   2 * kernels::RotaryFrequencies::most));
    frequencies_.pairs = D / 2;
    for (std::size_t i = 0; i < D / 2; ++i)  // in fp32, as in transformers
      frequencies_.value[i] =
          1 / static_cast<float>(std::pow(o_.rope_theta, static_cast<float>(2 * i) / static_cast<float>(D)));
  }

  std::vector<LayerParameter> parameters() const override {
    std::vector<LayerParameter> all;
    const auto add = [&](const std::string& name, std::size_t in, std::size_t out, float deviation, bool bias) {
      all.push_back(weight_of(name + ".weight", stored_, in, out, deviation));
      if (bias) all.push_back({name + ".bias", {out}, constant(0)});
    };
    const float of_out = o_.out_standard_deviation > 0 ? o_.out_standard_deviation : o_.standard_deviation;
    constexpr const char* names[] = {"q_proj", "k_proj", "v_proj"};
    for (std::size_t i = 0; i < parts_.size(); ++i)
      add(o_.fused_qkv ? "c_attn" : names[i], C, parts_[i].count, o_.standard_deviation, o_.bias);
    add(o_.fused_qkv ? "c_proj" : "o_proj", H * D, C, of_out, out_bias_);
    return all;
  }
  std::size_t inputs() const override { return C + (o_.mask ? 1 : 0); }
  std::size_t outputs() const override { return C; }
  std::size_t saved() const override { return qkv_width() + H * D; }
  std::size_t saved_floats() const override { return can_fuse() ? 2 * H : 0; }
  std::size_t scratch() const override { return qkv_width() + H * D + std::max(2 * D, 4 * queries_per_row); }
  bool works_in(DType) const override { return true; }
  bool works_on_gpu() const override { return true; }
  bool looks_ahead() const override { return !o_.causal; }

  void forward(const ForwardPass& pass) const override {
    const Tensor x = input(pass), qkv = pass.saved.part(0, qkv_width()), attended = pass.saved.part(qkv_width(), H * D);
    for (std::size_t i = 0; i < parts_.size(); ++i)
      ops::matmul(pass, x, Transpose::no, pass.parameter(weight(i)), forward_transpose(stored_),
                  qkv.columns_from(parts_[i].begin, parts_[i].count));
    if (o_.bias) add_bias(pass, qkv, qkv_bias(pass));
    rotate(pass, qkv, false);
    with_element(pass.type, [&]<class E>() {
      if (fuses<E>(pass, {qkv, attended}))
        CausalAttention{shape(pass)}.forward(*pass.stream, at<E>(qkv), at<E>(attended), pass.stats.floats(), memory(pass));
      else
        plain_forward<E>(pass, at<E>(attended), at<E>(qkv));
    });
    ops::matmul(pass, attended, Transpose::no, pass.parameter(weight(parts_.size())), forward_transpose(stored_), pass.y);
    if (out_bias_) add_bias(pass, pass.y, pass.parameter(weight(parts_.size()) + 1));
  }

  void backward(const BackwardPass& pass) const override {
    const Tensor x = input(pass), qkv = pass.saved.part(0, qkv_width()), attended = pass.saved.part(qkv_width(), H * D);
    const Tensor d_qkv = pass.scratch.part(0, qkv_width()), d_attended = pass.scratch.part(qkv_width(), H * D);
    const std::size_t out = weight(parts_.size());
    add_weight_gradient(pass, stored_, attended, pass.dy, pass.gradient(out));
    if (out_bias_) add_bias_gradient(pass, pass.dy, pass.gradient(out + 1));
    ops::matmul(pass, pass.dy, Transpose::no, pass.parameter(out), backward_transpose(stored_), d_attended);
    with_element(pass.type, [&]<class E>() {
      if (fuses<E>(pass, {qkv, attended, d_qkv, d_attended}))
        CausalAttention{shape(pass)}.backward(*pass.stream, at<E>(d_qkv), at<E>(d_attended), at<E>(qkv), at<E>(attended),
                                              pass.stats.floats(), memory(pass));
      else
        plain_backward<E>(pass, at<E>(d_qkv), at<E>(d_attended), at<E>(qkv));
    });
    rotate(pass, d_qkv, true);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Tensor dy = d_qkv.columns_from(parts_[i].begin, parts_[i].count);
      add_weight_gradient(pass, stored_, x, dy, pass.gradient(weight(i)));
      if (o_.bias) add_bias_gradient(pass, dy, pass.gradient(weight(i) + 1));
    }
    if (!pass.dx) return;
    if (o_.mask) ops::fill_zero(pass, pass.dx);
    for (std::size_t i = 0; i < parts_.size(); ++i)
      ops::matmul(pass, d_qkv.columns_from(parts_[i].begin, parts_[i].count), Transpose::no, pass.parameter(weight(i)),
                  backward_transpose(stored_), pass.dx.columns_from(0, C), i == 0 ? Out::overwrite : Out::add);
  }

 private:
  // The scores of at most queries_per_row * B queries are in scratch at a time, in up to three matrices.
  static constexpr std::size_t queries_per_row = 64;

  std::size_t qkv_width() const { return (H + 2 * K) * D; }
  /// The index of the parameter that is the weight of projection i.
  std::size_t weight(std::size_t i) const { return i * (o_.bias ? 2 : 1); }
  Tensor input(const Pass& pass) const { return o_.mask ? pass.x.columns_from(0, C) : pass.x; }
  /// The part of scratch after the gradients.
  void* work(const Pass& pass) const { return pass.scratch.part(qkv_width() + H * D, scratch() - qkv_width() - H * D).data; }
  template <class E>
  static E* at(const Tensor& tensor) {
    return static_cast<E*>(tensor.data);
  }

  bool can_fuse() const { return o_.causal && !o_.mask; }
  /// Returns true if the kernels for causal attention can run. On a GPU, those for 16-bit numbers need tensors that are aligned
  /// to 16 bytes.
  template <class E>
  bool fuses(const Pass& pass, std::initializer_list<Tensor> tensors) const {
    if (!can_fuse() || is_host(pass.stream->kind()) || sizeof(E) == sizeof(float)) return can_fuse();
    return H * D % 8 == 0 && K * D % 8 == 0 && std::all_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) {
             return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
           });
  }
  kernels::AttentionShape shape(const Pass& pass) const { return {pass.B, pass.T, H, K, D, qkv_width(), qkv_width()}; }
  /// Scratch of the kernels for causal attention. On a GPU it is the second half of `stats`.
  template <class AnyPass>
  float* memory(const AnyPass& pass) const {
    return is_host(pass.stream->kind()) ? attention_memory(shape(pass)) : pass.stats.part(H, H).floats();
  }

  /// The biases of queries, keys and values, next to each other. Forward calls this, which does not need the memory of
  /// gradients.
  Tensor qkv_bias(const Pass& pass) const {
    if (o_.fused_qkv) return pass.parameter(1);
    const Tensor all = {pass.scratch.data, 1, qkv_width(), qkv_width(), pass.type};
    for (std::size_t i = 0; i < parts_.size(); ++i)
      ops::copy(pass, all.columns_from(parts_[i].begin, parts_[i].count), pass.parameter(weight(i) + 1));
    return all;
  }

  void rotate(const Pass& pass, const Tensor& qkv, bool inverse) const {
    if (o_.rope_theta == 0) return;
    auto* const table = static_cast<float*>(work(pass));
    kernels::rotary_table(*pass.stream, table, pass.T, frequencies_, pass.type);
    const CausalAttention attention = {shape(pass), table, D, D};
    with_element(pass.type, [&]<class E>() { attention.rotate(*pass.stream, at<E>(qkv), inverse); });
  }

  /// Some queries of a sequence and head, and the memory for their scores.
  template <class E>
  struct Block {
    std::size_t b, h, kv, first, rows;
    float* scores;                // [rows,T]
    E *probabilities, *d_scores;  // [rows,T]; in fp32, `scores` and other memory
    kernels::ScoreShape<E> shape;
  };
  /// Calls each(block) for all queries, in the order of sequences and heads.
  template <class E, class Each>
  void each_block(const Pass& pass, Each each) const {
    const std::size_t T = pass.T, most = std::min(T, queries_per_row * pass.B);
    auto* const scores = static_cast<float*>(work(pass));
    E *const values = reinterpret_cast<E*>(scores + most * T), *const more = values + most * T;
    constexpr bool in_place = sizeof(E) == sizeof(float);
    for (std::size_t b = 0; b < pass.B; ++b)
      for (std::size_t h = 0; h < H; ++h)
        for (std::size_t first = 0; first < T; first += most) {
          Block<E> block = {b, h, h / (H / K), first, std::min(most, T - first), scores, values, more, {}};
          if constexpr (in_place) block.d_scores = scores;
          block.shape = {block.rows, T, o_.causal ? first + 1 : T};
          if (o_.mask) {
            block.shape.mask = at<E>(pass.x) + b * T * pass.x.stride + C;
            block.shape.mask_stride = pass.x.stride;
          }
          each(block);
        }
  }
  /// The head's columns of rows [first, first + rows) of sequence b in a matrix whose rows have `width` numbers.
  template <class E>
  static Tensor rows_of(const Pass& pass, E* matrix, std::size_t width, std::size_t b, std::size_t first, std::size_t rows,
                        std::size_t column, std::size_t count) {
    return {matrix + (b * pass.T + first) * width + column, rows, count, width, pass.type};
  }
  template <class E>
  void compute_probabilities(const Pass& pass, const Block<E>& block, E* qkv) const {
    const std::size_t W = qkv_width(), T = pass.T;
    const Tensor q = rows_of(pass, qkv, W, block.b, block.first, block.rows, block.h * D, D),
                 k = rows_of(pass, qkv, W, block.b, 0, T, (H + block.kv) * D, D);
    ops::matmul(pass, q, Transpose::no, k, Transpose::yes, {block.scores, block.rows, T, T, DType::f32});
    kernels::score_softmax(*pass.stream, block.probabilities, block.scores, block.shape, scale());
  }
  float scale() const { return 1 / std::sqrt(static_cast<float>(D)); }

  template <class E>
  void plain_forward(const Pass& pass, E* attended, E* qkv) const {
    each_block<E>(pass, [&](const Block<E>& block) {
      compute_probabilities(pass, block, qkv);
      ops::matmul(pass, {block.probabilities, block.rows, pass.T, pass.T, pass.type}, Transpose::no,
                  rows_of(pass, qkv, qkv_width(), block.b, 0, pass.T, (H + K + block.kv) * D, D), Transpose::no,
                  rows_of(pass, attended, H * D, block.b, block.first, block.rows, block.h * D, D));
    });
  }

  /// The gradients of keys and values are sums over queries and heads, in the type of the pass.
  template <class E>
  void plain_backward(const Pass& pass, E* d_qkv, E* d_attended, E* qkv) const {
    const std::size_t W = qkv_width(), T = pass.T;
    each_block<E>(pass, [&](const Block<E>& block) {
      const Out write = block.first == 0 && block.h % (H / K) == 0 ? Out::overwrite : Out::add;
      const Tensor p = {block.probabilities, block.rows, T, T, pass.type}, ds = {block.d_scores, block.rows, T, T, pass.type},
                   d_out = rows_of(pass, d_attended, H * D, block.b, block.first, block.rows, block.h * D, D);
      const auto of_keys = [&](E* matrix, std::size_t head) { return rows_of(pass, matrix, W, block.b, 0, T, head * D, D); };
      const auto of_queries = [&](E* matrix) {
        return rows_of(pass, matrix, W, block.b, block.first, block.rows, block.h * D, D);
      };
      compute_probabilities(pass, block, qkv);
      ops::matmul(pass, p, Transpose::yes, d_out, Transpose::no, of_keys(d_qkv, H + K + block.kv), write);
      ops::matmul(pass, d_out, Transpose::no, of_keys(qkv, H + K + block.kv), Transpose::yes,
                  {block.scores, block.rows, T, T, DType::f32});
      kernels::score_softmax_backward(*pass.stream, block.d_scores, block.scores, block.probabilities, block.rows, T, scale());
      ops::matmul(pass, ds, Transpose::no, of_keys(qkv, H + block.kv), Transpose::no, of_queries(d_qkv));
      ops::matmul(pass, ds, Transpose::yes, of_queries(qkv), Transpose::no, of_keys(d_qkv, H + block.kv), write);
    });
  }

  std::size_t C, H = 1, K = 1, D = 1;
  AttentionOptions o_;
  Stored stored_;
  bool out_bias_;
  kernels::RotaryFrequencies frequencies_ = {};
  std::vector<ProjectedColumns> parts_;  // the columns of qkv that each matrix computes
};

/// y = x W (+ b), with W stored as weight[in, out], as in Hugging Face's Conv1D.
class TransposedLinear final : public Layer {
 public:
  TransposedLinear(std::size_t in, std::size_t out, bool bias, float deviation)
      : in_(in), out_(out), bias_(bias), deviation_(deviation) {}
  std::vector<LayerParameter> parameters() const override {
    std::vector<LayerParameter> all = {weight_of("weight", Stored::in_out, in_, out_, deviation_)};
    if (bias_) all.push_back({"bias", {out_}, constant(0)});
    return all;
  }
  std::size_t inputs() const override { return in_; }
  std::size_t outputs() const override { return out_; }
  bool works_in(DType) const override { return true; }
  bool works_on_gpu() const override { return true; }
  bool looks_ahead() const override { return false; }
  void forward(const ForwardPass& pass) const override {
    ops::matmul(pass, pass.x, Transpose::no, pass.parameter(0), Transpose::no, pass.y);
    if (bias_) add_bias(pass, pass.y, pass.parameter(1));
  }
  void backward(const BackwardPass& pass) const override {
    add_weight_gradient(pass, Stored::in_out, pass.x, pass.dy, pass.gradient(0));
    if (bias_) add_bias_gradient(pass, pass.dy, pass.gradient(1));
    if (pass.dx) ops::matmul(pass, pass.dy, Transpose::no, pass.parameter(0), Transpose::yes, pass.dx);
  }

 private:
  std::size_t in_, out_;
  bool bias_;
  float deviation_;
};

/// y = (silu(x gate_proj^T) * (x up_proj^T)) down_proj^T (Shazeer 2020).
class GatedMlp final : public Layer {
 public:
  GatedMlp(std::size_t width, std::size_t inner, float deviation, float out_deviation)
      : C(width), F(inner), deviation_(deviation), out_deviation_(out_deviation) {}
  std::vector<LayerParameter> parameters() const override {
    return {weight_of("gate_proj.weight", Stored::out_in, C, F, deviation_),
            weight_of("up_proj.weight", Stored::out_in, C, F, deviation_),
            weight_of("down_proj.weight", Stored::out_in, F, C, out_deviation_)};
  }
  std::size_t inputs() const override { return C; }
  std::size_t outputs() const override { return C; }
  std::size_t saved() const override { return 3 * F; }
  std::size_t scratch() const override { return 2 * F; }
  bool works_in(DType) const override { return true; }
  bool works_on_gpu() const override { return true; }
  bool looks_ahead() const override { return false; }
  void forward(const ForwardPass& pass) const override {
    const Tensor gate = pass.saved.part(0, F), up = pass.saved.part(F, F), product = pass.saved.part(2 * F, F);
    ops::linear(pass, pass.x, pass.parameter(0), {}, gate);
    ops::linear(pass, pass.x, pass.parameter(1), {}, up);
    ops::swiglu(pass, gate, up, product);
    ops::linear(pass, product, pass.parameter(2), {}, pass.y);
  }
  void backward(const BackwardPass& pass) const override {
    const Tensor gate = pass.saved.part(0, F), up = pass.saved.part(F, F), product = pass.saved.part(2 * F, F);
    const Tensor d_gate = pass.scratch.part(0, F), d_up = pass.scratch.part(F, F);
    ops::linear_backward(pass, product, pass.parameter(2), pass.dy, d_gate, pass.gradient(2), {});
    ops::swiglu_backward(pass, gate, up, d_gate, d_gate, d_up);
    ops::linear_backward(pass, pass.x, pass.parameter(0), d_gate, pass.dx, pass.gradient(0), {});
    ops::linear_backward(pass, pass.x, pass.parameter(1), d_up, pass.dx, pass.gradient(1), {}, Out::add);
  }

 private:
  std::size_t C, F;
  float deviation_, out_deviation_;
};

/// A layer that has another one inside, with the same sizes.
class Wrapper : public Layer {
 public:
  explicit Wrapper(LayerPtr layer) : inner_(std::move(layer)) {}
  std::size_t inputs() const final { return inner_->inputs(); }
  std::size_t outputs() const final { return inner_->outputs(); }
  std::size_t saved() const final { return inner_->saved(); }
  std::size_t saved_floats() const final { return inner_->saved_floats(); }
  std::size_t scratch() const final { return inner_->scratch(); }
  MemorySizes sizes(const BatchSizes& batch) const final { return inner_->sizes(batch); }
  bool works_in(DType type) const final { return inner_->works_in(type); }
  bool works_on_gpu() const final { return inner_->works_on_gpu(); }
  bool looks_ahead() const final { return inner_->looks_ahead(); }

 protected:
  const Layer& inner() const { return *inner_; }

 private:
  LayerPtr inner_;
};

/// y = branch(x) + (x + bias): the bias of the branch's last matrix is added as in nn/block.cpp, so that the results have the
/// same bits. The branch does not write its dy.
class BiasedBranch final : public Wrapper {
 public:
  BiasedBranch(LayerPtr branch, std::string bias) : Wrapper(std::move(branch)), name_(std::move(bias)) {}
  std::vector<LayerParameter> parameters() const override {
    std::vector<LayerParameter> all = inner().parameters();
    all.push_back({name_, {outputs()}, constant(0)});
    return all;
  }
  void forward(const ForwardPass& pass) const override {
    inner().forward(pass);
    with_element(pass.type, [&]<class E>() {
      auto* const y = static_cast<E*>(pass.y.data);
      kernels::add_residual(*pass.stream, y, static_cast<const E*>(pass.x.data), y,
                            static_cast<const E*>(pass.parameter(bias(pass)).data), pass.rows(), outputs());
    });
  }
  void backward(const BackwardPass& pass) const override {
    add_bias_gradient(pass, pass.dy, pass.gradient(bias(pass)));
    inner().backward(pass);
    if (pass.dx) ops::add(pass, pass.dx, pass.dx, pass.dy);
  }

 private:
  static std::size_t bias(const Pass& pass) { return pass.parameters.size() - 1; }
  std::string name_;
};

/// The layer with shorter names of parameters: what is before the first dot is left out.
class ShorterNames final : public Wrapper {
 public:
  using Wrapper::Wrapper;
  std::vector<LayerParameter> parameters() const override {
    std::vector<LayerParameter> all = inner().parameters();
    for (LayerParameter& parameter : all) parameter.name.erase(0, parameter.name.find('.') + 1);
    return all;
  }
  void forward(const ForwardPass& pass) const override { inner().forward(pass); }
  void backward(const BackwardPass& pass) const override { inner().backward(pass); }
};

}  // namespace

LayerPtr multi_head_attention(std::size_t width, const AttentionOptions& options) {
  return std::make_shared<Attention>(width, options);
}

LayerPtr transformer_block(std::size_t width, const TransformerBlockOptions& options) {
  const bool gpt2 = options.style == BlockStyle::gpt2;
  const std::size_t inner = options.inner > 0 ? options.inner : 4 * width;
  const float deviation = options.standard_deviation,
              of_out = options.out_standard_deviation == 0 ? deviation : options.out_standard_deviation,
              eps = options.norm_eps != 0 ? options.norm_eps  // the norms refuse a wrong one
                    : gpt2                ? 1e-5f
                                          : 1e-6f;
  const auto attention = std::make_shared<Attention>(width,
                                                     AttentionOptions{.heads = options.heads,
                                                                      .kv_heads = options.kv_heads,
                                                                      .head_size = options.head_size,
                                                                      .causal = options.causal,
                                                                      .bias = gpt2,
                                                                      .rope_theta = options.rope_theta,
                                                                      .fused_qkv = gpt2,
                                                                      .standard_deviation = deviation,
                                                                      .out_standard_deviation = of_out},
                                                     gpt2);
  LayerPtr first, second;
  if (gpt2) {
    const auto mlp = sequential({{"c_fc", std::make_shared<TransposedLinear>(width, inner, true, deviation)},
                                 {"gelu", gelu(inner)},
                                 {"c_proj", std::make_shared<TransposedLinear>(inner, width, false, of_out)}});
    first =
        std::make_shared<BiasedBranch>(sequential({{"ln_1", layer_norm(width, eps)}, {"attn", attention}}), "attn.c_proj.bias");
    second = std::make_shared<BiasedBranch>(sequential({{"ln_2", layer_norm(width, eps)}, {"mlp", mlp}}), "mlp.c_proj.bias");
  } else {
    const auto mlp = std::make_shared<GatedMlp>(width, inner, deviation, of_out);
    first = residual(sequential({{"input_layernorm", rms_norm(width, eps)}, {"self_attn", attention}}));
    second = residual(sequential({{"post_attention_layernorm", rms_norm(width, eps)}, {"mlp", mlp}}));
  }
  return std::make_shared<ShorterNames>(sequential({{"attention", first}, {"mlp", second}}));
}

}  // namespace fsdp
