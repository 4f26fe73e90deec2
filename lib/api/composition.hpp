// Layers that contain other layers. A name of an inner layer is part of the names of its parameters: the weight of layer "up"
// in layer "blocks.0" is "blocks.0.up.weight". An inner layer may be a user's own, and may contain layers itself; it cannot
// take tokens. A layer with inner layers supports the types and devices that all of them support, and is recomputed as a whole.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "api/layer.hpp"

namespace fsdp {

/// Layers and their names, in order.
using NamedLayers = std::vector<std::pair<std::string, LayerPtr>>;

/// One layer after another. The outputs between them are saved for backward.
LayerPtr sequential(const NamedLayers& layers);
/// y = x + layer(x) (He et al. 2015, "Deep Residual Learning for Image Recognition"). Names of parameters remain those of
/// `layer`.
LayerPtr residual(LayerPtr layer);
/// The sum of all layers' outputs for the same input, in their order.
LayerPtr parallel(const NamedLayers& layers);
/// sequential() of `count` layers: make(i) makes layer i, and its name is i.
LayerPtr repeat(std::size_t count, const std::function<LayerPtr(std::size_t)>& make);

}  // namespace fsdp
