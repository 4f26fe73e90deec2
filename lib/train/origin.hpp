// The starting point of a run: a checkpoint, pretrained weights, or random weights.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/adapter.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/grown_model.hpp"
#include "checkpoint/tensor_source.hpp"
#include "files/scratch_folder.hpp"
#include "nn/config.hpp"
#include "options/options.hpp"

namespace fsdp {

struct Origin {
  TransformerConfig config;
  std::unique_ptr<CheckpointReader>
      checkpoint;                            // at most one of checkpoint and pretrained is set, unless the model has adapters
  std::unique_ptr<TensorSource> pretrained;  // of a model with adapters: the base model
  std::optional<Adapter> adapter;            // --adapter, if the run does not resume from a checkpoint
  std::optional<BaseModel> base;             // of a model with adapters: what `pretrained` is
  std::vector<bool> fresh;  // by parameter: true if it is not loaded from `pretrained`; empty if `pretrained` is null
  std::string tokenizer;    // name for open_tokenizer(): --tokenizer, else the starting point's tokenizer; empty: unknown
  std::shared_ptr<const ScratchFolder> grown_tokenizer;  // its folder, if tokens were added to `tokenizer`
  std::optional<NewRows> new_rows;                       // of the model or its adapters, if the vocabulary grows
  std::string new_tokens;                                // describes the tokens and rows that this start adds; empty: none
  std::string own_tokenizer;                             // the folder with the starting point's tokenizer; empty: unknown
  std::string model_folder;           // the Hugging Face folder that the model came from, absolute; empty: none is known
  std::vector<std::string> warnings;  // for example, checkpoints that were passed over

  std::uint64_t update() const { return checkpoint ? checkpoint->header().progress.update : 0; }
};

/// Finds the starting point from --restore, --finetune-from, --model, --arch and --init. Verifies the checksums of the
/// checkpoint, each rank a share of them, and falls back to the previous checkpoint if the latest is damaged. Collective over
/// world: every rank finds the same starting point, or all throw CollectiveError, for example if the checkpoint has another
/// model, if the save folder has later steps, or if the ranks see different files. If the model has adapters, each rank
/// computes a part of the base model's checksum.
Origin find_origin(const TrainOptions& options, Group& world);

}  // namespace fsdp
