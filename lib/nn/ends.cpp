// The first and the last stage of a Transformer: the embedding and the LM head. The head is final norm, projection to the
// vocabulary and cross-entropy in one stage, so that only some rows of logits are in memory at once. All logits would be the
// largest tensor of the run.
#include <algorithm>
#include <cmath>

#include "base/narrow.hpp"
#include "nn/stages.hpp"
#include "tensor/columns.hpp"

namespace fsdp {

using namespace stages;

namespace {

/// The factor that the embedding of a token is multiplied by; E is the type of the weights.
template <class E>
float embedding_scale(const TransformerConfig& config) {
  const float root = config.scaled_embedding ? std::sqrt(static_cast<float>(config.width)) : 1;
  return config.rounded_scale ? static_cast<float>(E(root)) : root;
}

/// The row of the first token in the table of learned positions; null if the model has no such table.
template <class E>
const E* learned_positions(const StageKernels<E>& stage) {
  const E* const table = stage.weight(stage.uses.position_table);
  return table ? table + stage.config.position_offset * stage.config.width : nullptr;
}

const float* sinusoids(const TransformerConfig& config, const StageContext& context) {
  if (config.positions != Positions::sinusoidal) return nullptr;
  expect(context.tables != nullptr, "the table of sinusoidal positions exists");
  return context.tables;
}

kernels::TokenRange tokens_of(const TableRows& rows) {
  return {narrow<std::int32_t>(rows.first), narrow<std::int32_t>(rows.first + rows.count)};
}

/// The token whose row has no gradient, or -1.
std::int32_t padding_of(const TransformerConfig& config) {
  return config.padding_token ? narrow<std::int32_t>(*config.padding_token) : -1;
}

/// x = the rows of the tokens, with their positions.
template <class E>
void look_up(const StageKernels<E>& stage, E* x, const std::int32_t* tokens, std::size_t B, std::size_t T,
             const std::int32_t* positions) {
  const TransformerConfig& config = stage.config;
  for (const TableRows& rows : stage.uses.embedding_rows)
    kernels::embedding_forward(stage.context.stream, x, tokens, stage.weight(rows.parameter) + rows.row * config.width,
                               learned_positions(stage), B, T, config.width, positions, embedding_scale<E>(config),
                               sinusoids(config, stage.context), tokens_of(rows));
}

/// The adapter of the embedding. Row k of A[rank,V] is a table of one number per token, so that the kernels of the embedding
/// look it up: hidden[rank,R] = scale * A[:,tokens], and x += hidden^T B^T.
template <class E>
struct EmbeddingAdapter {
  const StageKernels<E>& stage;
  const std::int32_t* tokens;
  const Linear& linear = stage.uses.embedding_adapter;
  std::size_t R = stage.R(), V = linear.in, C = linear.out, rank = linear.rank;
  float scale = linear.scale * embedding_scale<E>(stage.config);
  E *hidden = stage.scratch_values(stage.scratch.hidden), *d_hidden = stage.scratch_values(stage.scratch.d_hidden);

  void look_up() const {
    for (std::size_t k = 0; k < rank; ++k)
      kernels::embedding_forward(stage.context.stream, hidden + k * R, tokens, stage.weight(linear.lora_a) + k * V, nullptr, 1,
                                 R, 1, nullptr, scale);
  }
  void forward(E* x) const {
    look_up();
    kernels::gemm(stage.context.stream, Trans::yes, Trans::yes, R, C, rank, hidden, R, stage.weight(linear.lora_b), rank, x, C,
                  Write::add);
  }
  void backward(const E* dx, Write write) const {
    Stream& stream = stage.context.stream;
    const std::int32_t skipped = padding_of(stage.config);
    if (float* const d_b = stage.gradient(linear.lora_b)) {
      look_up();
      kernels::gemm(stream, Trans::yes, Trans::yes, C, rank, R, dx, C, hidden, R, d_b, rank, write);
    }
    float* const d_a = stage.gradient(linear.lora_a);
    if (!d_a) return;
    kernels::gemm(stream, Trans::yes, Trans::yes, rank, R, C, stage.weight(linear.lora_b), rank, dx, C, d_hidden, R,
                  Write::overwrite);
    for (std::size_t k = 0; k < rank; ++k)
      kernels::embedding_backward(stream, d_a + k * V, d_hidden + k * R, tokens, R, 1, V, write, scale, skipped);
  }
};

/// Calls `work(rows, begin, end)` for the tokens from `begin` to before `end`, divided by the parameter that has their rows.
template <class Work>
void for_each_rows(const std::vector<TableRows>& all, std::size_t begin, std::size_t end, const Work& work) {
  for (const TableRows& rows : all)
    if (const std::size_t from = std::max(begin, rows.first), to = std::min(end, rows.first + rows.count); from < to)
      work(rows, from, to);
}

class Embedding final : public InputStage {
 public:
  Embedding(const Transformer& model, std::vector<std::size_t> read)
      : InputStage("the embedding", std::move(read)), model_(model) {}

  void forward(const StageContext& context, const std::int32_t* tokens, void* x_out) const override {
    const TransformerConfig& config = model_.config();
    const auto [B, T] = context.shape;
    expect(model_.uses().position_table < 0 || T <= config.max_positions, "a sequence is no longer than the position table");
    with_element(context.type, [&, B = B, T = T]<class E>() {
      const StageKernels<E> stage(model_, context);
      auto* const x = static_cast<E*>(x_out);
      look_up(stage, x, tokens, B, T, context.positions);
      if (stage.uses.embedding_adapter.lora_a >= 0) EmbeddingAdapter<E>{stage, tokens}.forward(x);
      const Dropout& random = context.dropout;
      if (random.neftune_alpha != 0) {
        kernels::EmbeddingNoise noise = kernels::embedding_noise(random.neftune_alpha, random.seed, random.update,
                                                                 random.first_sequence, context.largest().T, config.width);
        noise.T = T;
        kernels::add_noise(context.stream, x, stage.R(), config.width, noise);
      }
      const kernels::DropoutMask mask = stage.dropout_mask(DropoutSite::embedding, 0);
      if (mask.dropped) kernels::dropout(context.stream, x, x, stage.R(), config.width, mask);
    });
  }

  void backward(const StageContext& context, const std::int32_t* tokens, const void* dx_out, Write write) const override {
    with_element(context.type, [&]<class E>() {
      const StageKernels<E> stage(model_, context);
      const TransformerConfig& config = stage.config;
      const E* const dx = stage.branch_gradient(DropoutSite::embedding, 0, static_cast<const E*>(dx_out));
      for (const TableRows& rows : stage.uses.embedding_rows)
        if (float* d_table = stage.gradient(rows.parameter))
          kernels::embedding_backward(context.stream, d_table + rows.row * config.width, dx, tokens, stage.R(), config.width,
                                      rows.count, config.tied_embeddings ? Write::add : write, embedding_scale<E>(config),
                                      padding_of(config), tokens_of(rows));
      if (stage.uses.embedding_adapter.lora_a >= 0) EmbeddingAdapter<E>{stage, tokens}.backward(dx, write);
      if (float* d_table = stage.gradient(stage.uses.position_table)) {
        const std::size_t unused = config.position_offset * config.width;
        if (write == Write::overwrite) kernels::fill_zero(context.stream, d_table, unused);
        if (context.positions)
          kernels::embedding_backward(context.stream, d_table + unused, dx, context.positions, stage.R(), config.width,
                                      config.max_positions, write);
        else
          kernels::position_backward(context.stream, d_table + unused, dx, context.shape.B, context.shape.T, config.width,
                                     config.max_positions, write);
      }
    });
  }

 private:
  const Transformer& model_;
};

/// The rows of a batch for which a CPU computes logits: all rows whose target counts, rounded up to one of a few numbers,
/// because oneDNN needs time for each new number of rows. The rows are moved to the beginning, and their results back. A GPU
/// computes all rows.
class LogitRows {
 public:
  LogitRows(const DeviceTraits& device, const std::int32_t* targets, std::size_t R) : targets_(targets), R_(R), count_(R) {
    if (!is_host(device.kind)) return;
    counted_ = static_cast<std::size_t>(std::count_if(targets, targets + R, [](std::int32_t target) { return target >= 0; }));
    count_ = ColumnRule{.B = 1, .T = R}.columns(counted_);
  }
  std::size_t count() const { return count_; }
  /// Moves the rows of x[R, width] together.
  template <class T>
  void gather(T* x, std::size_t width) const {
    for_each([&](std::size_t i, std::size_t row) {
      if (i != row) std::copy_n(x + row * width, width, x + i * width);
    });
  }
  void gather_targets(std::int32_t* to) const {
    for_each([&](std::size_t i, std::size_t row) { to[i] = targets_[row]; });
  }
  /// Moves x[count(), width] back to the rows, and fills the other rows with 0.
  template <class T>
  void scatter(T* x, std::size_t width) const {
    std::size_t i = count_, uncounted = R_ - counted_;
    for (std::size_t row = R_; row-- > 0 && count_ < R_;) {
      if (targets_[row] >= 0 || --uncounted < count_ - counted_)
        --i, std::copy_n(x + i * width, i < row ? width : 0, x + row * width);
      else
        std::fill_n(x + row * width, width, T());
    }
  }

 private:
  /// Calls body(i, row) for the i-th row.
  template <class Body>
  void for_each(const Body& body) const {
    std::size_t i = 0, others = count_ - counted_;
    for (std::size_t row = 0; row < R_ && count_ < R_; ++row)
      if (targets_[row] >= 0 || (others > 0 && others-- > 0)) body(i++, row);
  }

  const std::int32_t* targets_;
  std::size_t R_, counted_ = 0, count_;
};

/// The adapter of the head, for a chunk of rows after the other. Its input is the output of the norm or, with dropout, this
/// output times the mask, in scratch.
template <class E>
class HeadAdapter {
 public:
  /// `norm`[R,C] is the output of the norm, of which the selected rows are used.
  HeadAdapter(const StageKernels<E>& stage, const LogitRows& selected, const E* norm)
      : stage_(stage), selected_(selected), mask_(is_there() ? stage.adapter_mask(linear_) : kernels::DropoutMask()) {
    if (mask_.dropped)
      kernels::dropout(stage.context.stream, dropped_, norm, stage.R(), C_, mask_), selected.gather(dropped_, C_);
  }

  /// Prepares the chunk of rows from `first` on. `norm` has its rows.
  void begin(std::size_t first, std::size_t rows, const E* norm) {
    first_ = first, rows_ = rows, input_ = mask_.dropped ? dropped_ + first * C_ : norm;
    if (is_there()) stage_.adapter_hidden(linear_, input_, rows, hidden_);
  }
  /// Adds to the logits of tokens `begin` to before `end`.
  void add_logits(E* logits, std::size_t stride, std::size_t begin, std::size_t end) const {
    if (!is_there()) return;
    kernels::gemm(stage_.context.stream, Trans::no, Trans::yes, rows_, end - begin, r_, hidden_, r_,
                  stage_.weight(linear_.lora_b) + begin * r_, r_, logits, stride, Write::add);
  }
  /// Computes the gradients of these rows of B, and adds to that of the hidden numbers.
  void backward(const E* d_logits, std::size_t stride, std::size_t begin, std::size_t end, Write write) const {
    if (!is_there()) return;
    Stream& stream = stage_.context.stream;
    if (float* const d_b = stage_.gradient(linear_.lora_b))
      kernels::gemm(stream, Trans::yes, Trans::no, end - begin, r_, rows_, d_logits, stride, hidden_, r_, d_b + begin * r_, r_,
                    first_ == 0 ? write : Write::add);
    kernels::gemm(stream, Trans::no, Trans::no, rows_, r_, end - begin, d_logits, stride,
                  stage_.weight(linear_.lora_b) + begin * r_, r_, d_hidden_, r_, begin == 0 ? Write::overwrite : Write::add);
  }
  /// Computes the gradient of A after all pieces of a chunk, and adds that of the input to d_norm. With dropout, it takes the
  /// place of the input.
  void end(float* d_norm, Write write) const {
    if (!is_there()) return;
    Stream& stream = stage_.context.stream;
    kernels::convert(stream, hidden_, d_hidden_, rows_ * r_);
    stage_.scale_hidden(linear_, hidden_, rows_);
    if (float* const d_a = stage_.gradient(linear_.lora_a))
      kernels::gemm(stream, Trans::yes, Trans::no, r_, C_, rows_, hidden_, r_, input_, C_, d_a, C_,
                    first_ == 0 ? write : Write::add);
    const E* const a = stage_.weight(linear_.lora_a);
    if (mask_.dropped)
      kernels::gemm(stream, Trans::no, Trans::no, rows_, C_, r_, hidden_, r_, a, C_, dropped_ + first_ * C_, C_,
                    Write::overwrite);
    else
      kernels::gemm(stream, Trans::no, Trans::no, rows_, C_, r_, hidden_, r_, a, C_, d_norm, C_, Write::add);
  }
  /// With dropout, adds the gradient of all rows of the input to d_norm[R,C].
  void finish(E* d_norm) const {
    if (!mask_.dropped) return;
    selected_.scatter(dropped_, C_);
    kernels::add_residual(stage_.context.stream, d_norm, d_norm, dropped_, nullptr, stage_.R(), C_, mask_);
  }

 private:
  bool is_there() const { return linear_.lora_a >= 0; }

  const StageKernels<E>& stage_;
  const LogitRows& selected_;
  const Linear& linear_ = stage_.uses.head_adapter;
  const std::size_t C_ = stage_.config.width, r_ = linear_.rank;
  E *const hidden_ = stage_.scratch_values(stage_.scratch.head_hidden), *const dropped_ =
                                                                            stage_.scratch_values(stage_.scratch.head_dropped);
  float* const d_hidden_ = stage_.scratch_at(stage_.scratch.head_d_hidden);
  const kernels::DropoutMask mask_;
  const E* input_ = nullptr;
  std::size_t first_ = 0, rows_ = 0;
};

/// Adds up the losses and, if dx is not null, computes the gradients. The losses then have the terms of the context.
template <class E>
void head(const StageKernels<E>& stage, const E* x, const std::int32_t* targets, float gradient_scale, kernels::LossSum& total,
          E* dx, Write write) {
  Stream& stream = stage.context.stream;
  const ModelParameters& uses = stage.uses;
  const LogitRows selected(stage.device, targets, stage.R());
  const std::size_t R = selected.count(), C = stage.config.width, V = stage.config.vocab_size;
  const std::size_t chunk = stage.scratch.chunk, piece = head_piece(V, stage.device);
  const auto weight_from = [&](const TableRows& rows, std::size_t token) {
    return stage.weight(rows.parameter) + (rows.row + token - rows.first) * C;
  };
  const kernels::LossTerms& terms = stage.context.loss_terms;
  // On GPUs one kernel computes the loss and the gradients of logits, unless the loss has more terms. On CPUs a piece is read
  // while it is in cache.
  const bool at_once = dx && !terms.any() && !is_host(stage.device.kind) && V <= 2 * piece;
  E* const norm = stage.scratch_values(stage.scratch.norm);
  float *const stats = stage.scratch_at(stage.scratch.stats), *const loss = stage.scratch_at(stage.scratch.loss),
               *const d_norm = stage.scratch_at(stage.scratch.d_norm);

  stage.norm_forward(uses.final_norm, norm, stats, x, stage.R());
  HeadAdapter<E> adapter(stage, selected, norm);
  if (R < stage.R()) {
    auto* const of_rows = reinterpret_cast<std::int32_t*>(stage.scratch_at(stage.scratch.targets));
    selected.gather(norm, C), selected.gather_targets(of_rows);
    targets = of_rows;
  }
  for (std::size_t row = 0; row < R; row += chunk) {
    const std::size_t rows = std::min(chunk, R - row);
    const kernels::Logits<E> logits = {
        .values = stage.scratch_values(stage.scratch.logits),
        .stats = reinterpret_cast<kernels::SoftmaxStats*>(stage.scratch_at(stage.scratch.softmax)),
        .targets = targets + row,
        .R = rows,
        .V = V,
        .piece = piece,
        .alignment = stage.device.logits_alignment};
    E* const norm_rows = norm + row * C;
    adapter.begin(row, rows, norm_rows);
    for (std::size_t begin = 0; begin < V; begin += piece) {
      const std::size_t columns = std::min(piece, V - begin);
      for_each_rows(uses.head_rows, begin, begin + columns, [&](const TableRows& some, std::size_t from, std::size_t to) {
        kernels::gemm(stream, Trans::no, Trans::yes, rows, to - from, C, norm_rows, C, weight_from(some, from), C,
                      logits.values_from(begin) + (from - begin), logits.stride_from(begin), Write::overwrite);
      });
      adapter.add_logits(logits.values_from(begin), logits.stride_from(begin), begin, begin + columns);
      if (!at_once) kernels::cross_entropy(stream, loss + row, logits, begin);
    }
    if (at_once) kernels::loss_and_gradient(stream, loss + row, logits, gradient_scale);
    kernels::add_predictions(stream, total, logits);
    if (!dx) continue;
    for (std::size_t begin = 0; begin < V; begin += piece) {
      const std::size_t columns = std::min(piece, V - begin), stride = logits.stride_from(begin);
      E* const d_logits = logits.values_from(begin);
      if (terms.any())
        kernels::logit_gradient(stream, logits, begin, gradient_scale, terms, loss + row);
      else if (!at_once)
        kernels::logit_gradient(stream, logits, begin, gradient_scale);
      for_each_rows(uses.head_rows, begin, begin + columns, [&](const TableRows& some, std::size_t from, std::size_t to) {
        const E* const d_some = d_logits + (from - begin);
        if (float* const d_weight = stage.gradient(some.parameter))
          kernels::gemm(stream, Trans::yes, Trans::no, to - from, C, rows, d_some, stride, norm_rows, C,
                        d_weight + (some.row + from - some.first) * C, C, row == 0 ? write : Write::add);
        kernels::gemm(stream, Trans::no, Trans::no, rows, C, to - from, d_some, stride, weight_from(some, from), C, d_norm, C,
                      from == 0 ? Write::overwrite : Write::add);
      });
      adapter.backward(d_logits, stride, begin, begin + columns, write);
    }
    adapter.end(d_norm, write);
    kernels::convert(stream, norm_rows, d_norm, rows * C);
  }
  selected.scatter(loss, 1);
  if (dx) {
    selected.scatter(norm, C), adapter.finish(norm);
    stage.norm_backward(uses.final_norm, dx, Write::overwrite, norm, x, stats, write);
  }
  kernels::add_losses(stream, total, loss, stage.R());
}

class Head final : public LossStage {
 public:
  Head(const Transformer& model, std::vector<std::size_t> read) : LossStage("the head", std::move(read)), model_(model) {}

  void forward_backward(const StageContext& context, const void* x, const std::int32_t* targets, float gradient_scale,
                        kernels::LossSum& loss, void* dx, Write write) const override {
    expect(gradient_scale != 0, "the scale of the gradients is not 0");
    with_element(context.type, [&]<class E>() {
      head(StageKernels<E>(model_, context), static_cast<const E*>(x), targets, gradient_scale, loss, static_cast<E*>(dx),
           write);
    });
  }

  void forward(const StageContext& context, const void* x, const std::int32_t* targets, kernels::LossSum& loss,
               float* losses) const override {
    with_element(context.type, [&]<class E>() {
      const StageKernels<E> stage(model_, context);
      head<E>(stage, static_cast<const E*>(x), targets, 0, loss, nullptr, Write::overwrite);
      if (losses) context.stream.copy(losses, stage.scratch_at(stage.scratch.loss), stage.R() * sizeof(float));
    });
  }

 private:
  const Transformer& model_;
};

}  // namespace

std::unique_ptr<const InputStage> stages::make_embedding(const Transformer& model, std::vector<std::size_t> read) {
  return std::make_unique<Embedding>(model, std::move(read));
}
std::unique_ptr<const LossStage> stages::make_head(const Transformer& model, std::vector<std::size_t> read) {
  return std::make_unique<Head>(model, std::move(read));
}

std::size_t Transformer::head_rows(BatchShape shape) const {
  return head_chunk_rows(shape.rows(), config_.vocab_size, device_);
}
std::size_t Transformer::head_columns() const { return head_piece(config_.vocab_size, device_); }

void Transformer::embedding_decode(const StageContext& context, const std::int32_t* tokens, const DecodedRows& rows,
                                   void* x) const {
  with_element(context.type, [&]<class E>() {
    const StageKernels<E> stage(*this, context);
    look_up(stage, static_cast<E*>(x), tokens, 1, stage.R(), rows.positions_there);
    if (uses_.embedding_adapter.lora_a >= 0) EmbeddingAdapter<E>{stage, tokens}.forward(static_cast<E*>(x));
  });
}

void Transformer::head_logits(const StageContext& context, const void* x, std::span<const std::int32_t> rows,
                              float* logits) const {
  if (rows.empty()) return;
  with_element(context.type, [&]<class E>() {
    const StageKernels<E> stage(*this, context);
    const std::size_t C = config_.width, V = config_.vocab_size;
    const DecodingScratch scratch{stage.scratch, {rows.size(), 0}};
    E* const norm = stage.scratch_values(scratch.norm);
    float *const stats = stage.scratch_at(scratch.stats), *const made = stage.scratch_at(scratch.logits);
    for (std::size_t i = 0; i < rows.size(); ++i)
      stage.norm_forward(uses_.final_norm, norm + i * C, stats + 2 * i,
                         static_cast<const E*>(x) + static_cast<std::size_t>(rows[i]) * C, 1);
    for (const TableRows& some : uses_.head_rows)
      kernels::gemm(context.stream, Trans::no, Trans::yes, rows.size(), some.count, C, norm, C,
                    stage.weight(some.parameter) + some.row * C, C, made + some.first, V, Write::overwrite);
    if (const Linear& adapter = uses_.head_adapter; adapter.lora_a >= 0) {
      E* const hidden = stage.scratch_values(scratch.head_hidden);
      stage.adapter_hidden(adapter, norm, rows.size(), hidden);
      kernels::gemm(context.stream, Trans::no, Trans::yes, rows.size(), V, adapter.rank, hidden, adapter.rank,
                    stage.weight(adapter.lora_b), adapter.rank, made, V, Write::add);
    }
    context.stream.copy(logits, made, rows.size() * V * sizeof(float));
  });
}

}  // namespace fsdp
