// A number for each layer of a model, and checks of its sizes. Internal.
#pragma once

#include <cstddef>
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

/// A size for messages: a negative number that became a size is printed as it was given.
constexpr std::int64_t as_given(std::size_t size) { return static_cast<std::int64_t>(size); }
/// Throws UserError unless `size`, which is the argument `what` of the function, is from 1 to 2^30.
void require_size(const char* function, const char* what, std::size_t size);

}  // namespace fsdp
