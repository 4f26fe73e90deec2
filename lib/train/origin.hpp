// Where a run begins: from a checkpoint, a pretrained model, or nothing but the seed.
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
  std::unique_ptr<CheckpointReader> checkpoint;  // at most one of the two
  std::unique_ptr<TensorSource> pretrained;
  std::vector<bool> fresh;            // parameters that are not taken from `pretrained`; empty: it is null
  std::string tokenizer;              // of open_tokenizer(): named, or that of what the run begins with; empty: none is known
  std::string model_folder;           // the Hugging Face folder that the model came from, absolute; empty: none is known
  std::vector<std::string> warnings;  // checkpoints that were passed over

  std::uint64_t update() const { return checkpoint ? checkpoint->header().progress.update : 0; }
};

/// The model that --arch or --model, or else `source`, and the overrides name. `source` is that of what the weights come from,
/// or null. With an architecture, text or a tokenizer that is named, and no vocabulary, the vocabulary is that of `tokenizer`,
/// or else of the one that is named, or of bytes. Throws UserError.
TransformerConfig named_config(const TrainOptions& options, const TransformerConfig* source, std::string tokenizer = {});

/// Follows --restore, --finetune-from, --model, --arch and --init; compares the checksums of the checkpoint, of which each rank
/// reads its share, and goes back to the one before where the latest is damaged. Collective over world: every rank finds the
/// same, or all throw CollectiveError (a checkpoint of another model, later steps in the save folder, ranks that see different
/// files).
Origin find_origin(const TrainOptions& options, Group& world);

}  // namespace fsdp
