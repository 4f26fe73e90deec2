// Makes a Model (nn/model.hpp) of a user's layers and loss. The first stage prepares the input, each layer after it is a block,
// and the loss is the last stage. Internal; users describe models by Sequential.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "layers/composition.hpp"
#include "layers/layer.hpp"
#include "layers/proof.hpp"
#include "layers/tower.hpp"
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
  std::size_t first = 0;                    // the first stage that it depends on
  std::size_t carried = 0;                  // the numbers per example after its own in the output of the stage
  std::optional<std::size_t> input = {};    // of a layer of a tower: the number of the only input that it depends on
};

class Chain final : public Model {
 public:
  /// If the first layer takes tokens, it is the first stage. Else the first stage copies the numbers of the batch, and all
  /// layers are blocks. Throws UserError if the sizes of adjacent layers differ, if a name is empty or used twice, or if an
  /// object with parameters is used as two layers.
  ///
  /// Towers, if there are any, come before the layers, one after another. The output of a stage of a tower is that of its
  /// layer, [B rows, outputs], and then what the towers before it have given, which the stage passes on. The first stage of a
  /// tower reads its input from the batch. Its last stage joins its outputs and those of earlier towers as columns.
  Chain(const NamedLayers& layers, const std::string& loss_name, LossPtr user_loss, const DeviceTraits& device,
        const std::vector<TiedParameters>& tied = {}, const NamedTowers& towers = {});

  ModelSizes sizes(BatchShape shape, DType type, const kernels::CacheShape& cache) const override;
  void check_batch(BatchShape shape, DType type, const kernels::CacheShape& cache) const override;

  const Loss& user_loss() const { return *loss_; }
  /// Checks the passes while its is_on() returns true. The passes of a chain must then run one after another.
  Proof& proof() const { return *proof_; }
  /// Returns true if all layers and the loss support this type.
  bool works_in(DType type) const;
  /// Throws UserError if there is no layer of that name, also inside others, or if there are several.
  FoundLayer find_layer(const std::string& layer) const;
  /// The first stage of an input, which must be numbers. "": that of a model with one input. Throws UserError.
  FoundLayer find_input(const std::string& input) const;

 private:
  /// The place of a part in a tower.
  struct InTower {
    std::size_t rows = 0;      // of an example; 0: T of the batch, after the towers
    std::size_t carried = 0;   // the numbers per example of the towers before
    std::size_t joins = 0;     // the columns that a join adds to them
    std::size_t first = 0;     // the first stage of the tower
    std::size_t input = 0;     // the number of the tower's input
    bool reads_input = false;  // the part is the first stage of its tower
  };
  /// A layer or the loss, with its parameters, and the index of each among the parameters of the model. adds[i]: backward of a
  /// later part, or of this one, has already written the gradient of parameter i, because the parameters are tied. Towers also
  /// have parts without a layer, for an input of numbers and for a join.
  struct Part {
    std::string name;
    LayerPtr layer;
    std::vector<LayerParameter> parameters;
    std::vector<std::size_t> indices;
    std::vector<bool> adds;
    InTower tower = {};
  };
  struct Scratch;
  // The stages of a part.
  class First;
  class Inner;
  class Block;
  class TowerBegin;
  class TowerEnd;
  class Last;

  std::vector<Part> parts_of(const NamedTowers& towers, const NamedLayers& layers);
  Part make_part(const std::string& name, LayerPtr layer, std::vector<LayerParameter> parameters, int block,
                 std::vector<TiedParameters>& tied);
  BatchSizes batch_of(BatchShape shape, DType type, const Part& part) const;
  std::string title_of(const Part& part) const;
  /// The largest size of activations.
  std::size_t most_numbers(BatchShape shape) const { return std::max(shape.rows() * widest_, shape.B * most_of_towers_); }
  std::size_t outputs_of(const Part& part, BatchShape shape) const;
  const std::int32_t* input_of(const Part& part, BatchShape shape, const std::int32_t* inputs) const;
  void read_input(const StageContext& context, const Part& part, const std::int32_t* inputs, void* x) const;
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
  std::vector<std::size_t> next_at_;                 // by parameter: where a state begins in the memory of BackwardPass::next()
  std::size_t most_state_ = 0;                       // numbers of state of any layer
  std::size_t tower_rows_ = 0, most_of_towers_ = 0;  // of an example: rows after the towers, and the most numbers in them
};

}  // namespace fsdp
