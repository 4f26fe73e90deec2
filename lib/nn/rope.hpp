// The frequencies of rotary positions (Su et al. 2021, "RoFormer"), for every rope type of transformers. They depend only on
// the model's configuration and, for two types, on the length of the sequence; never on the size of a table or of a cache.
#pragma once

#include <cstddef>
#include <vector>

#include "nn/config.hpp"

namespace fsdp {

/// The number of elements at the beginning of each head that are rotated.
std::size_t rotated_elements(const TransformerConfig& config, const Rope& rope);

/// Throws UserError for values with which the formulas do not work.
void validate_rope(const TransformerConfig& config, const Rope& rope);

/// Sequences with the same class have the same frequencies. The class of a sequence of `length` tokens is the shortest length
/// with these frequencies. It is 1 for types that do not depend on the length.
std::size_t rope_class(const TransformerConfig& config, std::size_t length);

/// The angle by which each pair of elements turns per position, in a sequence of `length` tokens.
std::vector<float> rope_frequencies(const TransformerConfig& config, const Rope& rope, std::size_t length);

}  // namespace fsdp
