// A user's layers and loss as a Model: what is given to the first layer, the layers behind it as blocks, and the loss as head.
// Not for users: they give a Sequential.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/layer.hpp"
#include "nn/model.hpp"

namespace fsdp {

struct NamedLayer {
  std::string name;
  LayerPtr layer;
};

class Chain final : public Model {
 public:
  /// The first layer is the first stage if it takes tokens; else that stage copies the batch's numbers, and all layers are
  /// blocks. Throws UserError where layers do not fit each other, and for names that are empty or come twice.
  Chain(std::vector<NamedLayer> layers, std::string loss_name, LossPtr loss, const DeviceTraits& device);

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
  void block_refill(const StageContext& context, std::size_t block, const void* x_in, float* saved,
                    float* cheap) const override;
  void block_backward(const StageContext& context, std::size_t block, const void* x_in, float* saved, void* dx,
                      kernels::Write write, float* cheap) const override;
  void head_forward_backward(const StageContext& context, const void* x, const std::int32_t* targets, float gradient_scale,
                             kernels::LossSum& loss, void* dx, kernels::Write write) const override;
  void head_loss(const StageContext& context, const void* x, const std::int32_t* targets, kernels::LossSum& loss,
                 float* losses) const override;

  /// Numbers of a row that the first stage is given, and whether they are tokens.
  std::size_t input_width() const { return input_width_; }
  bool takes_tokens() const { return first_.layer != nullptr; }
  const Loss& loss() const { return *loss_; }
  /// All layers and the loss.
  bool works_in(DType type) const;

 private:
  /// A layer, or the loss, with its parameters: those of the model from `begin` on.
  struct Stage {
    std::string name;
    LayerPtr layer;
    std::vector<LayerParameter> parameters;
    std::size_t begin = 0;
  };
  struct Scratch;

  Stage stage_of(const std::string& name, LayerPtr layer, std::vector<LayerParameter> parameters, int block);
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
  Stage head_;  // without a layer
  LossPtr loss_;
  std::size_t input_width_ = 1, widest_ = 1, most_scratch_ = 0, most_columns_ = 1;
};

}  // namespace fsdp
