// What fsdp-evaluate does.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "base/options.hpp"
#include "comm/communicator.hpp"
#include "data/batch.hpp"
#include "fsdp/executor.hpp"
#include "train/options.hpp"

namespace fsdp {

struct EvaluateOptions {
  std::filesystem::path model, data;
  std::size_t batch_size = 8;         // sequences per rank at a time
  std::size_t tokens_per_sample = 0;  // 0: the model's longest, at most 1024
  std::size_t threads = 0;
  bool json = false;
  bool no_verify = false;
};

OptionTable evaluate_option_table(EvaluateOptions& options);
/// Throws UserError if MODEL or DATA is not given.
void require_complete(const EvaluateOptions& options);

/// Mean loss over all targets of `batches`, the same on every rank. Collective over world: where a rank cannot read its data,
/// all throw the same CollectiveError, in the end.
///
/// `progress` is called after each batch, with how many are done.
double mean_loss(Executor& executor, const ValidBatches& batches, Communicator& world, Stream& stream,
                 const std::function<void(std::size_t done)>& progress = {});

/// The result as text, or as one JSON object. Every target of the file counts once. Collective over world; each rank holds a
/// shard of the model, whole units only while they are used.
std::string evaluate(const EvaluateOptions& options, Communicator& world);

}  // namespace fsdp
