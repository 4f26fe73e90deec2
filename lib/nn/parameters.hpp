// The parameters of a model in order, with their Hugging Face names and stored shapes, and the stages that use them. All
// families use the same few structs (two norms, a group of projections into attention, ...), so that stages do not depend on
// the family.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nn/config.hpp"
#include "nn/families.hpp"
#include "nn/init.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

/// A Hugging Face tensor in its stored shape. Its index in Transformer::parameters() is its identity and the key of the random
/// numbers for its initial values.
struct Parameter {
  std::string name;  // "transformer.h.0.attn.c_attn.weight"
  Shape shape;
  Init init;
  bool decayed;  // has weight decay by default, because it has two or more dimensions
  int block;     // the block that it is part of, or -1: embedding, final norm, head
  /// Part of an adapter (nn/lora.hpp), or of a module that is trained with it as a whole. If a model has adapters, nothing else
  /// is trained.
  bool is_adapter = false;
  /// Set for state of a user's layer, which is fp32 and moved by optim/running_mean.cpp. is_constant: a constant of such a
  /// layer, never trained.
  std::optional<float> momentum = {};
  bool is_constant = false;
  std::optional<kernels::Quantization> quantized = {};  // set if memory has a quantized matrix, which is not trained

  bool is_state() const { return momentum.has_value(); }
  /// The number of elements in memory. A quantized matrix counts as words of 4 bytes.
  std::size_t kept_numel() const;
  /// Rows and columns of the stored shape, which has two dimensions.
  kernels::MatrixShape matrix_shape() const { return {shape.at(0), shape.at(1)}; }
};

/// Indices of parameters; -1: the model has none.
struct Norm {
  int gain = -1, bias = -1;
};
struct Linear {
  int weight = -1, bias = -1;
  std::size_t in = 0, out = 0;
  std::size_t first = 0, stored = 0;  // the outputs are `out` from `first` on of the `stored` ones that the weight has
  WeightLayout layout = WeightLayout::out_in;
  int lora_a = -1, lora_b = -1;  // [rank, in] and [out, rank]
  std::size_t rank = 0;          // of the adapter, and the factor of its output
  float scale = 1;
  std::size_t index = 0;  // among the projections of its block
};
/// The largest number of projections of a block: queries, keys, values, output of attention, gate, up, output.
inline constexpr std::size_t most_projections = 7;
/// Projections of the same input. Their outputs are stored in this order.
struct LinearGroup {
  std::array<Linear, 3> part;
  std::size_t size = 0;
};
struct BlockParameters {
  Norm norm1;
  LinearGroup qkv;      // one projection, or three: q, k, v
  Norm q_norm, k_norm;  // [D], the same for all heads
  Linear attention_out;
  Norm attention_norm;  // of the branch's output; -1 if it has none
  Norm norm2;
  LinearGroup ffn_in;  // one projection, or two: gate, up
  Linear ffn_out;
  Norm ffn_norm;  // likewise
};

/// The rows of a table for `count` tokens from `first` on: those of a parameter, from `row` on.
struct TableRows {
  std::size_t first = 0, count = 0;
  int parameter = -1;
  std::size_t row = 0;
};

struct ModelParameters {
  std::vector<Parameter> parameters;  // embedding, blocks in order, final norm, head; then the adapters of the blocks in order,
                                      // of the embedding and of the head, and rows of tokens
  int token_table = -1, position_table = -1;
  std::vector<BlockParameters> blocks;
  Norm final_norm;
  int head = -1;                                     // [V, C]; equal to token_table if the two are tied
  std::vector<TableRows> embedding_rows, head_rows;  // for all tokens, in order
  Linear embedding_adapter, head_adapter;            // only their adapters, with the sizes; lora_a is -1 if there is none
};

/// The ends of the names of an adapter's matrices, which follow the name of the module, and of those of an embedding.
inline constexpr const char *lora_a_suffix = ".lora_A.weight", *lora_b_suffix = ".lora_B.weight";
inline constexpr const char *embedding_a_suffix = ".lora_embedding_A", *embedding_b_suffix = ".lora_embedding_B";

/// Returns true if a target of adapters (Lora::targets) means the projection with this module name.
bool is_target(std::string_view target, std::string_view module);

/// The rank of the adapter of the embedding or the head, by the name of its weight; 0 if it has none. Targets must name them:
/// all-linear and globs mean projections.
std::size_t table_rank(const TransformerConfig& config, std::string_view table);

/// Returns true if a parameter is part of a module whose name ends with `module` (Lora::modules_to_save).
bool is_part_of(std::string_view parameter, std::string_view module);

/// Returns true if all rows of an embedding or head are trained with adapters (Lora::modules_to_save), with the other one if
/// the two are tied.
bool trains_whole(const TransformerConfig& config, std::string_view table);

/// The indices of the parameters that each stage reads: [0] the embedding, [1 + b] block b, last the head. A tied table is in
/// the first and the last stage.
std::vector<std::vector<std::size_t>> parameters_by_stage(const ModelParameters& model);

/// A pure function of a valid configuration. Throws UserError if a target of adapters matches no projection.
ModelParameters list_parameters(const TransformerConfig& config);
/// The number of elements; tied parameters count once.
std::size_t parameter_count(const TransformerConfig& config);

}  // namespace fsdp
