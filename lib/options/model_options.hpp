// The model that the options name.
#pragma once

#include <string>

#include "nn/config.hpp"
#include "options/options.hpp"

namespace fsdp {

/// Returns true if some of the data are text. Errors in the names of data are reported later, when the data are opened.
bool has_text(const TrainOptions& options);

/// The model's configuration: that of --arch or --model, else `source`. Other options, such as --decoder-layers, change it in
/// both cases. `source` is the configuration of the checkpoint or model that the weights come from, or null. With --arch and
/// without --vocab-size, the vocabulary size comes from the tokenizer if the data are text or --tokenizer is given. The
/// tokenizer is `tokenizer`, else that of --tokenizer, else bytes (256 tokens). For other data, the vocabulary size is the one
/// that vocabulary_of() returns, if any. Throws UserError.
TransformerConfig named_config(const TrainOptions& options, const TransformerConfig* source, std::string tokenizer = {});

/// Adds the adapters of --lora-rank or --adapter to the configuration of a base model, and the type of --base-dtype or, if that
/// is not given, the type with which the adapters were trained. Throws UserError.
TransformerConfig with_adapters(TransformerConfig config, const TrainOptions& options);

}  // namespace fsdp
