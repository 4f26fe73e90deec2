// Data for a training loop: files of tokens, read in the order of fsdp-train, and the order in which any other data are read.
// The order depends only on the seed and on how many examples were used so far, so it does not depend on the number of ranks: a
// program that resumes at another number of ranks continues exactly where the earlier one stopped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/fully_sharded.hpp"

namespace fsdp {

class Samples;

/// The examples of each micro-batch, as torch's DistributedSampler. An update uses batch_size x gradient_accumulation_steps
/// examples of each rank, which deal them out in turn: micro-batch k of rank r is number k x ranks + r of the update. In each
/// epoch, every example is used once over all ranks; the next epoch begins within an update if necessary. No function is
/// collective. indices() and advance() do not allocate.
class DistributedSampler {
 public:
  /// For `size` examples. `shuffle`: in another order in each epoch, from FsdpOptions::seed of the model. Throws UserError if
  /// `size` is 0.
  DistributedSampler(const FullyShardedDataParallel& model, std::uint64_t size, bool shuffle = true);
  /// The examples of this rank's micro-batch (Batch::micro_batch()) of the current update: batch_size numbers below `size`,
  /// valid until the next call.
  std::span<const std::uint64_t> indices(std::size_t micro_batch);
  /// Continues with the next update. Call it after each step(), also if the step was skipped.
  void advance();
  /// The number of examples that all ranks together have used so far, and of the epoch that the next one is from.
  std::uint64_t position() const { return position_; }
  std::uint64_t epoch() const { return position_ / size_; }
  /// The position as text, for CheckpointOptions::data, and back. restore() throws UserError if the text is not from state(),
  /// or if size, shuffle or the seed differ.
  std::string state() const;
  void restore(const std::string& state);

 private:
  std::uint64_t size_, seed_, position_ = 0;
  bool shuffle_;
  std::size_t rank_, ranks_, micro_batches_;
  std::vector<std::uint64_t> indices_;  // of a micro-batch
};

/// Options that fsdp-train also has, with the same meanings and bounds. docs/api-options.md explains each option.
struct TokenDataOptions {
  bool shuffle = false;             // another order in each epoch, from FsdpOptions::seed of the model
  std::uint64_t max_epoch = 0;      // passes over the data; 0: no end
  std::string break_mode = "none";  // where sequences begin: "none", "complete", "eos"
  std::string long_rows = "split";  // documents that are longer than a sequence: "split", "truncate", "drop"
  bool group_by_length = false;     // sequences of similar lengths are read together
  std::string mask = {};            // files that say which tokens count in the loss; empty: the data's own masks, or all
  std::optional<std::uint64_t> eos_token_id = {};  // the token that ends documents, as in fsdp-train
};

/// Files of tokens, in any format that fsdp-train reads, cut into sequences of FsdpOptions::sequence_length tokens. A step has
/// the same batches as an update of fsdp-train with the same data, options and number of ranks.
class TokenData {
 public:
  /// Opens `name`: a file, a folder, a pattern or a mixture ("a.bin:0.7,b.bin:0.3"), as fsdp-train does. Texts must be
  /// tokenized before, by fsdp-tokenize. The model must take tokens and labels. Collective; all ranks throw the same
  /// CollectiveError, for example for a token outside the model's vocabulary.
  TokenData(FullyShardedDataParallel& model, const std::string& name, const TokenDataOptions& options = {});
  TokenData(const TokenData&) = delete;
  ~TokenData();

  // Not collective:
  /// Writes tokens and labels of this rank's micro-batch of the current update. Labels are the next tokens; those that do not
  /// count are -1.
  void read(const Batch& batch) const;
  /// Continues with the next update. Call it after each step(), also if the step was skipped.
  void advance();
  /// True if all max_epoch passes are done.
  bool at_end() const;
  /// The number of sequences in one pass over the data, and that all ranks together have used so far.
  std::uint64_t sequences() const;
  std::uint64_t position() const;
  /// The position in the data as text, for CheckpointOptions::data, and back. restore() compares the data with those that the
  /// text describes. If the files, their order or how they are cut have changed, it does what fsdp-train does, which is in most
  /// cases to start from the beginning, and returns the reason; otherwise it returns "". Throws UserError if the text is not
  /// from state().
  std::string state() const;
  std::string restore(const std::string& state);

  const Samples& samples() const;  // for the library

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace fsdp
