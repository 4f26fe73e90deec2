// Makes a Model (nn/model.hpp) of a user's layers and loss. The stages of a Model are named after those of a transformer.
// Here, the stage "embedding" prepares the input, each layer after it is a "block", and the loss is the "head". Internal;
// users describe models by Sequential.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "layers/composition.hpp"
#include "layers/layer.hpp"
#include "nn/model.hpp"

namespace fsdp {

/// Two parameters that are one: `name` is `same_as`, which belongs to an earlier layer.
struct TiedParameters {
  std::string name, same_as;
};

class Chain final : public Model {
 public:
  /// If the first layer takes tokens, it is the first stage. Else the first stage copies the numbers of the batch, and all
  /// layers are blocks. Throws UserError if the sizes of adjacent layers differ, if a name is empty or used twice, or if an
  /// object with parameters is used as two layers.
  Chain(const NamedLayers& layers, const std::string& loss_name, LossPtr loss, const DeviceTraits& device,
        const std::vector<TiedParameters>& tied = {});

  const DeviceTraits& device() const override { return device_; }
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  std::size_t blocks() const override { return blocks_.size(); }
  RowSizes row_sizes() const override;
  ModelSizes sizes(BatchShape shape, DType type, const kernels::CacheShape& cache) const override;
  void check_batch(BatchShape shape, DType type, const kernels::CacheShape& cache) const override;

  void embedding_forward(const StageContext& context, const std::int32_t* inputs, void* x) const override;
  void embedding_backward(const StageContext& context, const std::int32_t* inputs, const void* dx,
                          kernels::Write write) const override;
  void block_forward(const StageContext& context, std::size_t block, const void* x_in, void* x_out, float* saved,
                     float* cheap) const override;
  void block_recompute_cheap(const StageContext& context, std::size_t block, const void* x_in, float* saved,
                             float* cheap) const override;
  void block_backward(const StageContext& context, std::size_t block, const void* x_in, float* saved, void* dx,
                      kernels::Write write, float* cheap) const override;
  void head_forward_backward(const StageContext& context, const void* x, const std::int32_t* targets, float gradient_scale,
                             kernels::LossSum& loss, void* dx, kernels::Write write) const override;
  void head_loss(const StageContext& context, const void* x, const std::int32_t* targets, kernels::LossSum& loss,
                 float* losses) const override;

  /// The number of values per row of the input (1 for tokens), and whether the input is tokens.
  std::size_t input_width() const { return input_width_; }
  bool takes_tokens() const { return first_.layer != nullptr; }
  const Loss& loss() const { return *loss_; }
  /// Returns true if all layers and the loss support this type.
  bool works_in(DType type) const;
  /// The stage of a layer: 0 for one that takes tokens, 1 + b for block b. Throws UserError if there is none of that name.
  std::size_t stage_of(const std::string& layer) const;
  /// The number of values per row that a stage gives.
  std::size_t outputs_of(std::size_t stage) const;

 private:
  /// A layer or the loss, with its parameters, and the index of each among the parameters of the model. adds[i]: backward of a
  /// later stage, or of this one, has already written the gradient of parameter i, because the parameters are tied.
  struct Stage {
    std::string name;
    LayerPtr layer;
    std::vector<LayerParameter> parameters;
    std::vector<std::size_t> indices;
    std::vector<bool> adds;
  };
  struct Scratch;

  Stage make_stage(const std::string& name, LayerPtr layer, std::vector<LayerParameter> parameters, int block,
                   std::vector<TiedParameters>& tied);
  void find_ties();
  std::size_t index_of(const std::string& parameter) const;
  std::size_t saved_numel(const Layer& layer, BatchShape shape, DType type) const;
  Pass pass_of(const StageContext& context, const Stage& stage, const Scratch& scratch) const;
  void clear_gradients(const StageContext& context, const Stage& stage, kernels::Write write) const;
  void forward(const StageContext& context, const Stage& stage, const Pass& pass, void* y, float* saved) const;
  void backward(const StageContext& context, const Stage& stage, const Pass& pass, const void* dy, void* dx, float* saved,
                kernels::Write write) const;
  void evaluate(const StageContext& context, const void* x, const std::int32_t* targets, float scale, kernels::LossSum& total,
                void* dx, kernels::Write write, float* losses) const;

  const DeviceTraits device_;
  std::vector<Parameter> parameters_;
  Stage first_;
  std::vector<Stage> blocks_;
  Stage head_;  // the loss; its `layer` is null
  LossPtr loss_;
  std::size_t input_width_ = 1, widest_ = 1, most_scratch_ = 0, most_columns_ = 1;
};

}  // namespace fsdp
