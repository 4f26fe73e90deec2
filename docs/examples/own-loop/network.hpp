// What the network is, and how a pendulum's way becomes a batch of it.
#pragma once

#include <vector>

#include <fsdp/fsdp.hpp>

inline fsdp::Sequential pendulum_network() {
  fsdp::Sequential network;
  network.add("in", fsdp::linear(2, 64)).add("gelu", fsdp::gelu(64)).add("out", fsdp::linear(64, 2));
  return network.loss(fsdp::mean_squared_error(2));
}

/// Each point is an example, and the next one its target.
inline void fill(const fsdp::Batch& batch, const std::vector<float>& angle, const std::vector<float>& speed) {
  for (std::size_t i = 0; i + 1 < angle.size(); ++i) {
    batch.inputs()[2 * i] = angle[i], batch.inputs()[2 * i + 1] = speed[i];
    batch.targets()[2 * i] = angle[i + 1], batch.targets()[2 * i + 1] = speed[i + 1];
  }
}
