// A model with its weights, gradients and buffers, run stage by stage as an executor would, without sharding.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "nn/transformer.hpp"

namespace fsdp::test {

/// The activations that forward keeps for backward: all; the inputs of blocks; also those that block_recompute_cheap cannot
/// recompute.
enum class Keep { all, inputs, selected };

struct ModelRun {
  explicit ModelRun(const TransformerConfig& config, std::size_t longest = 64, std::shared_ptr<Stream> on = make_host_stream(),
                    const DeviceTraits& device = kernels::traits_of_cpu())
      : model(config, device), stream(std::move(on)) {
    for (const Parameter& parameter : model.parameters()) {
      weights.emplace_back(numel(parameter.shape));
      gradients.emplace_back(numel(parameter.shape));
    }
    tables.resize(model.table_numel(longest));
    model.fill_tables(tables, longest, longest, DType::f32);
  }

  /// Sets weights different from 0 and 1, so that a missing or a swapped one changes the result.
  void randomize(std::uint32_t seed, float scale) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    for (std::size_t p = 0; p < weights.size(); ++p) {
      const bool gain = model.parameters()[p].init.kind == Init::Kind::constant && model.parameters()[p].init.value == 1;
      for (float& w : weights[p]) w = (gain ? 1 : 0) + scale * normal(generator);
    }
  }

  StageContext context(BatchShape shape, bool with_gradients) {
    weight_pointers.clear();
    gradient_pointers.clear();
    for (std::size_t p = 0; p < weights.size(); ++p) {
      weight_pointers.push_back(weights[p].data());
      gradient_pointers.push_back(with_gradients && !frozen(p) ? gradients[p].data() : nullptr);
    }
    scratch.assign(std::max(model.scratch_numel(shape), model.decoding_scratch_numel({1, 1})), std::nanf(""));
    return {*stream,        weight_pointers, gradient_pointers,
            scratch.data(), tables.data(),   shape,
            dropout,        DType::f32,      positions.empty() ? nullptr : positions.data()};
  }

  /// Runs embedding and blocks; x[L] is the last block's output.
  void forward(const StageContext& context, const std::int32_t* tokens, Keep keep = Keep::all) {
    const std::size_t numel = context.shape.rows() * model.config().width, all = model.saved_numel(context.shape),
                      kept = model.kept_numel(context.shape);
    x.assign(model.blocks() + 1, std::vector<float>(numel));
    saved.assign(model.blocks(), std::vector<float>(keep == Keep::selected ? kept : all, std::nanf("")));
    cheap.assign(keep == Keep::selected ? all - kept : 0, std::nanf(""));
    model.embedding_forward(context, tokens, x[0].data());
    for (std::size_t b = 0; b < model.blocks(); ++b)
      model.block_forward(context, b, x[b].data(), x[b + 1].data(), saved[b].data(), shared_cheap());
  }

  /// Returns the sum of the losses.
  double loss(const std::int32_t* tokens, const std::int32_t* targets, BatchShape shape) {
    const StageContext stage = context(shape, false);
    forward(stage, tokens);
    kernels::LossSum loss;
    model.head_loss(stage, x.back().data(), targets, loss);
    return loss.value();
  }

  /// Returns the sum of the losses, and writes or adds the gradients of `scale` times this sum.
  double loss_and_gradients(const std::int32_t* tokens, const std::int32_t* targets, BatchShape shape, float scale,
                            kernels::Write write, Keep keep = Keep::all) {
    const StageContext stage = context(shape, true);
    forward(stage, tokens, keep);
    dx.assign(x[0].size(), std::nanf(""));
    kernels::LossSum loss;
    model.head_forward_backward(stage, x.back().data(), targets, scale, loss, dx.data(), write);
    for (std::size_t b = model.blocks(); b-- > 0;) {
      if (keep == Keep::inputs) {
        saved[b].assign(saved[b].size(), std::nanf(""));
        model.block_forward(stage, b, x[b].data(), nullptr, saved[b].data());
      }
      if (keep == Keep::selected) {
        cheap.assign(cheap.size(), std::nanf(""));
        model.block_recompute_cheap(stage, b, x[b].data(), saved[b].data(), shared_cheap());
      }
      model.block_backward(stage, b, x[b].data(), saved[b].data(), dx.data(), write, shared_cheap());
    }
    model.embedding_backward(stage, tokens, dx.data(), write);
    return loss.value();
  }

  bool frozen(std::size_t p) const { return !trainable.empty() && !trainable[p]; }

  float* shared_cheap() { return cheap.empty() ? nullptr : cheap.data(); }

  Transformer model;
  Dropout dropout;
  std::vector<std::int32_t> positions;  // for a batch with documents; else empty
  std::shared_ptr<Stream> stream;
  std::vector<std::vector<float>> weights, gradients;
  std::vector<bool> trainable;  // empty: all
  std::vector<float> tables, scratch, dx, cheap;
  std::vector<std::vector<float>> x, saved;
  std::vector<const void*> weight_pointers;
  std::vector<float*> gradient_pointers;
};

}  // namespace fsdp::test
