// Layers that contain other layers. A name of an inner layer is part of the names of its parameters: the weight of layer "up"
// in layer "blocks.0" is "blocks.0.up.weight". An inner layer may be a user's own, and may contain layers itself. A layer with
// inner layers supports the types and devices that all of them support, and is recomputed as a whole, except a repeat() that is
// a layer of a model.
//
// Several inputs or outputs of a layer are columns of the same rows: an embedding of 64 numbers next to a mask of one number is
// a row of 65. parallel() joins them, keep_columns() carries some of them past a layer, and select_columns() takes some.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "layers/layer.hpp"

namespace fsdp {

template <class T>
class ByBatch;

/// Layers and their names, in order.
using NamedLayers = std::vector<std::pair<std::string, LayerPtr>>;

/// A layer made of inner layers. A user's own layer may derive from it: the constructor names the inner layers, and forward()
/// and backward() call run_forward() and run_backward() for each. Memory of its own follows that of the inner layers: saved(),
/// saved_floats() and scratch() then return Composition's numbers plus its own, which begin at Composition's. If sizes() of an
/// inner layer depends on the batch, its own memory begins at inner_sizes(pass) instead, and sizes() returns with_own(batch).
/// No inner layer can take tokens, unless takes_tokens() is overridden.
class Composition : public Layer {
 public:
  /// `function` is the name in messages. Throws UserError if a layer is null, if there is none, or if names are not unique.
  /// The name "" is for a single layer: its parameters keep their names.
  Composition(const std::string& function, NamedLayers layers);
  const NamedLayers& layers() const { return layers_; }

  std::vector<LayerParameter> parameters() const final { return parameters_; }
  std::size_t inputs() const override { return layers_.front().second->inputs(); }
  std::size_t outputs() const override { return layers_.back().second->outputs(); }
  std::size_t vocabulary() const override;
  std::size_t saved() const override { return saved_; }
  std::size_t saved_floats() const override { return floats_; }
  std::size_t scratch() const override { return scratch_; }
  /// Throws UserError if this layer has memory of its own, which begins where it did without the batch, but inner layers have
  /// more memory for this batch.
  MemorySizes sizes(const BatchSizes& batch) const override;
  std::size_t gathers() const override { return gathers_; }
  bool works_in(DType type) const override;
  bool works_on_gpu() const override;
  void check_batch(std::size_t B, std::size_t T) const override;

 protected:
  /// Runs a pass of inner layer i within the pass `whole` of this layer. x, y, dy and dx are dense. dx may be none. The inner
  /// layer may overwrite dy.
  void run_forward(const ForwardPass& whole, std::size_t i, const Tensor& x, const Tensor& y) const;
  void run_backward(const BackwardPass& whole, std::size_t i, const Tensor& x, const Tensor& dy, const Tensor& dx) const;
  /// The memory of the inner layers for a batch or a pass.
  MemorySizes inner_sizes(const BatchSizes& batch) const;
  /// The same with the memory that this layer has of its own.
  MemorySizes with_own(const BatchSizes& batch) const;

 private:
  struct Place {
    std::size_t parameter, parameters;
  };
  struct InnerSizes;
  const InnerSizes& sizes_of_inner(const BatchSizes& batch) const;
  template <class AnyPass>
  void prepare(AnyPass& pass, std::size_t i, const Tensor& x) const;

  NamedLayers layers_;
  std::vector<Place> places_;  // of each layer's parameters among those of the whole
  std::vector<LayerParameter> parameters_;
  std::size_t saved_ = 0, floats_ = 0, scratch_ = 0, gathers_ = 0;
  const std::shared_ptr<ByBatch<InnerSizes>> inner_;  // copies have the same layers
};

/// One layer after another. The outputs between them are saved for backward.
LayerPtr sequential(const NamedLayers& layers);
/// y = x + layer(x) (He et al. 2015, "Deep Residual Learning for Image Recognition"). Names of parameters remain those of
/// `layer`. If the layer has fewer outputs than inputs, such as attention that also takes a mask, they are added to the first
/// columns of x, and the other columns are passed on.
LayerPtr residual(LayerPtr layer);
/// The outputs of several layers are added, or are columns one after another.
enum class Join { sum, concatenate };
/// All layers on the same input. Their outputs are added in their order (all have the same width), or are the columns of y one
/// after another. If all of them take tokens and save nothing, so does the whole, which can then be a model's first layer.
LayerPtr parallel(const NamedLayers& layers, Join join = Join::sum);
/// sequential() of `count` layers: make(i) makes layer i, and its name is i. As a layer of a model, each of the `count` layers
/// is one of the model's, as those of a torch.nn.ModuleList are: a unit, which is recomputed separately, with the name
/// "NAME.i".
LayerPtr repeat(std::size_t count, const std::function<LayerPtr(std::size_t)>& make);

/// `layer` on all columns except the last `count` ones, which are passed on after its outputs.
LayerPtr keep_columns(std::size_t count, LayerPtr layer);
/// Columns [begin, begin + count) of `width`.
LayerPtr select_columns(std::size_t width, std::size_t begin, std::size_t count);
/// `layer` on each of n positions: a row of n * inputs() numbers is a sequence of n rows for it. So an image, which is a row,
/// becomes a sequence of patches.
LayerPtr positions(std::size_t n, LayerPtr layer);

// For the library:

/// Throws UserError if `layer` does not take as many numbers as the layer before it gives. The message names both.
void require_fit(const std::pair<std::string, LayerPtr>& before, const std::pair<std::string, LayerPtr>& layer);
/// Throws UserError if an object with parameters is used as two layers, also inside others.
void require_separate(const NamedLayers& layers);
/// Returns true for embedding() and parallel() of them, whose backward passes read no parameters. is_embedding(): for the
/// first.
bool is_of_embeddings(const Layer& layer);
bool is_embedding(const Layer& layer);
/// The full names of the layers inside `layer`, which has the name `name`: "blocks.3.mlp", "blocks.3.mlp.up". A layer without a
/// name, as that of residual(), has the name of the one around it, and is left out.
std::vector<std::string> inner_names(const std::string& name, const Layer& layer);
/// Replaces each repeat() by its layers.
NamedLayers without_repeats(const NamedLayers& layers);

}  // namespace fsdp
