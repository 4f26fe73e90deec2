// A number for each layer of a model. Internal.
#pragma once

#include <cstdint>
#include <string_view>

namespace fsdp {

/// Returns the FNV-1a hash of the layer's full name. `outer` is the place of the layer that contains it, if there is one. So
/// the layer "blocks.0.dropout" has the same place in all models with this name, nested or not.
constexpr std::uint64_t place_of(std::string_view name, std::uint64_t outer = 0) {
  std::uint64_t hash = outer != 0 ? outer : 0xcbf29ce484222325u;
  const auto add = [&](char c) { hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u; };
  if (outer != 0 && !name.empty()) add('.');
  for (const char c : name) add(c);
  return hash;
}

}  // namespace fsdp
