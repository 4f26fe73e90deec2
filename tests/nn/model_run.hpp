// A model with its weights, gradients and buffers, run stage by stage as an executor would, without sharding.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "nn/transformer.hpp"

namespace fsdp::test {

/// The activations that forward keeps for backward: all; the inputs of blocks; also those that recompute_cheap() cannot
/// recompute; those of attention, while the MLP is computed in pieces of rows.
enum class Keep { all, inputs, selected, attention };

/// A CPU whose pieces of logits and MLPs have this many rows.
inline DeviceTraits with_pieces_of(std::size_t rows, DeviceTraits device = kernels::traits_of_cpu()) {
  device.piece_rows = rows, device.logits_bytes = 1;
  return device;
}

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
    const ModelSizes sizes = model.sizes(shape, DType::f32, {1, 1});
    scratch.assign(std::max(sizes.scratch, sizes.scratch_in_pieces) / sizeof(float), std::nanf(""));
    return {*stream,        weight_pointers, gradient_pointers,
            scratch.data(), tables.data(),   shape,
            dropout,        DType::f32,      positions.empty() ? nullptr : positions.data()};
  }

  /// Runs embedding and blocks; x[L] is the last block's output.
  void forward(const StageContext& context, const std::int32_t* tokens, Keep keep = Keep::all) {
    const ModelSizes sizes = model.sizes(context.shape);
    const std::size_t numel = context.shape.rows() * model.config().width, all = sizes.saved.front() / sizeof(float),
                      kept = sizes.kept.front() / sizeof(float);
    x.assign(model.blocks.size() + 1, std::vector<float>(numel));
    saved.assign(model.blocks.size(), std::vector<float>(keep == Keep::selected    ? kept
                                                         : keep == Keep::attention ? sizes.saved_in_pieces.at(0) / sizeof(float)
                                                                                   : all,
                                                         std::nanf("")));
    cheap.assign(keep == Keep::selected ? all - kept : 0, std::nanf(""));
    StageContext stage = context;
    stage.cheap = shared_cheap(), stage.in_pieces = keep == Keep::attention;
    model.first->forward(stage, tokens, x[0].data());
    for (std::size_t b = 0; b < model.blocks.size(); ++b)
      model.blocks[b]->forward(stage, x[b].data(), x[b + 1].data(), saved[b].data());
  }

  /// Returns the sum of the losses.
  double loss(const std::int32_t* tokens, const std::int32_t* targets, BatchShape shape) {
    const StageContext stage = context(shape, false);
    forward(stage, tokens);
    kernels::LossSum loss;
    model.loss->forward(stage, x.back().data(), targets, loss);
    return loss.value();
  }

  /// Returns the sum of the losses, and writes or adds the gradients of `scale` times this sum.
  double loss_and_gradients(const std::int32_t* tokens, const std::int32_t* targets, BatchShape shape, float scale,
                            kernels::Write write, Keep keep = Keep::all) {
    StageContext stage = context(shape, true);
    forward(stage, tokens, keep);
    stage.cheap = shared_cheap(), stage.in_pieces = keep == Keep::attention;
    dx.assign(x[0].size(), std::nanf(""));
    kernels::LossSum loss;
    model.loss->forward_backward(stage, x.back().data(), targets, scale, loss, dx.data(), write);
    for (std::size_t b = model.blocks.size(); b-- > 0;) {
      if (keep == Keep::inputs || (keep == Keep::attention && b % 2 == 0)) {
        saved[b].assign(saved[b].size(), std::nanf(""));
        model.blocks[b]->forward(stage, x[b].data(), nullptr, saved[b].data());
      }
      if (keep == Keep::selected) {
        cheap.assign(cheap.size(), std::nanf(""));
        model.recompute_cheap(stage, b, x[b].data(), saved[b].data());
      }
      model.blocks[b]->backward(stage, x[b].data(), saved[b].data(), dx.data(), write);
    }
    model.first->backward(stage, tokens, dx.data(), write);
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
