// The starting point of a run: a checkpoint, pretrained weights, or random weights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/tensor_source.hpp"
#include "nn/config.hpp"
#include "train/options.hpp"

namespace fsdp {

struct Origin {
  TransformerConfig config;
  std::unique_ptr<CheckpointReader> checkpoint;  // at most one of checkpoint and pretrained is set
  std::unique_ptr<TensorSource> pretrained;
  std::vector<bool> fresh;   // parameters that are not loaded from `pretrained`; empty if that is null
  std::string tokenizer;     // name for open_tokenizer(): --tokenizer, or that of the starting point; empty: none is known
  std::string model_folder;  // the Hugging Face folder that the model came from, absolute; empty: none is known
  std::vector<std::string> warnings;  // for example, checkpoints that were passed over

  std::uint64_t update() const { return checkpoint ? checkpoint->header().progress.update : 0; }
};

/// The configuration of the model: from --arch or --model, else `source`, with the overrides applied. `source` is the
/// configuration of the weights' source, or null. If --arch is given without --vocab-size, and there is text or --tokenizer,
/// the vocabulary size comes from `tokenizer`, else from --tokenizer, else it is 256 (bytes). Throws UserError.
TransformerConfig named_config(const TrainOptions& options, const TransformerConfig* source, std::string tokenizer = {});

/// Finds the starting point from --restore, --finetune-from, --model, --arch and --init. Verifies the checksums of the
/// checkpoint, each rank a share of them, and falls back to the previous checkpoint if the latest is damaged. Collective over
/// world: every rank finds the same, or all throw CollectiveError (a checkpoint of another model, later steps in the save
/// folder, ranks that see different files).
Origin find_origin(const TrainOptions& options, Group& world);

}  // namespace fsdp
