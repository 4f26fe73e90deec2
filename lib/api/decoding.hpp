// What a TextGenerator uses of a FullyShardedDataParallel. Internal.
#pragma once

#include <string>

#include "api/fully_sharded.hpp"
#include "comm/communicator.hpp"
#include "fsdp/executor.hpp"
#include "nn/config.hpp"

namespace fsdp {

struct FullyShardedDataParallel::Decoding {
  Executor& executor;  // its plan has key-value caches
  Communicator& world;
  const TransformerConfig& config;
  const std::string& model_folder;  // the Hugging Face folder of the parameters; else empty
};

}  // namespace fsdp
