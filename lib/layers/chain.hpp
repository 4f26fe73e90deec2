// Makes a Model (nn/model.hpp) of a user's layers and loss. The first stage prepares the input, each layer after it is a block,
// and the loss is the last stage. Internal; users describe models by Sequential.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "layers/composition.hpp"
#include "layers/layer.hpp"
#include "layers/proof.hpp"
#include "nn/model.hpp"

namespace fsdp {

/// Two parameters that are one: `name` is `same_as`, which belongs to an earlier layer.
struct TiedParameters {
  std::string name, same_as;
};

/// A layer of a model: the stage that it is (0 for one that takes tokens, 1 + b for block b), or the stage that it is inside.
struct FoundLayer {
  std::size_t stage;
  std::optional<std::uint64_t> place = {};  // of a layer inside the stage: Pass::place
};

class Chain final : public Model {
 public:
  /// If the first layer takes tokens, it is the first stage. Else the first stage copies the numbers of the batch, and all
  /// layers are blocks. Throws UserError if the sizes of adjacent layers differ, if a name is empty or used twice, or if an
  /// object with parameters is used as two layers.
  Chain(const NamedLayers& layers, const std::string& loss_name, LossPtr user_loss, const DeviceTraits& device,
        const std::vector<TiedParameters>& tied = {});

  ModelSizes sizes(BatchShape shape, DType type, const kernels::CacheShape& cache) const override;
  void check_batch(BatchShape shape, DType type, const kernels::CacheShape& cache) const override;

  const Loss& user_loss() const { return *loss_; }
  /// Checks the passes while its is_on() returns true. The passes of a chain must then run one after another.
  Proof& proof() const { return *proof_; }
  /// Returns true if all layers and the loss support this type.
  bool works_in(DType type) const;
  /// Throws UserError if there is no layer of that name, also inside others, or if there are several.
  FoundLayer find_layer(const std::string& layer) const;

 private:
  /// A layer or the loss, with its parameters, and the index of each among the parameters of the model. adds[i]: backward of a
  /// later part, or of this one, has already written the gradient of parameter i, because the parameters are tied.
  struct Part {
    std::string name;
    LayerPtr layer;
    std::vector<LayerParameter> parameters;
    std::vector<std::size_t> indices;
    std::vector<bool> adds;
  };
  struct Scratch;
  // The stages of a part.
  class First;
  class Block;
  class Last;

  Part make_part(const std::string& name, LayerPtr layer, std::vector<LayerParameter> parameters, int block,
                 std::vector<TiedParameters>& tied);
  BatchSizes batch_of(BatchShape shape, DType type) const;
  void find_ties();
  std::size_t index_of(const std::string& parameter) const;
  template <class P>
  P pass_of(const StageContext& context, const Part& part, const void* x) const;
  template <class P, class Work>
  void run_layer(P& pass, const StageContext& context, const Part& part, const char* function, const Work& work) const;
  void move_state(const BackwardPass& pass, const StageContext& context, const Part& part) const;
  void clear_gradients(const StageContext& context, const Part& part, kernels::Write write) const;
  void inspect_gradients(const StageContext& context, const Part& part, const char* function) const;
  void forward(const StageContext& context, const Part& part, const void* x, void* y, float* saved) const;
  void backward(const StageContext& context, const Part& part, const void* x, const void* dy, void* dx, float* saved,
                kernels::Write write) const;
  void evaluate(const StageContext& context, const void* x, const std::int32_t* targets, float scale, kernels::LossSum& total,
                void* dx, float* losses, std::optional<kernels::Write> write = {}) const;

  Part first_;
  std::vector<Part> blocks_;
  Part last_;  // the loss; its `layer` is null
  LossPtr loss_;
  const std::unique_ptr<Proof> proof_;
  std::size_t widest_ = 1, most_columns_ = 1;
  std::vector<std::size_t> next_at_;  // by parameter: where a state begins in the memory of BackwardPass::next()
  std::size_t most_state_ = 0;        // numbers of state of any layer
};

}  // namespace fsdp
