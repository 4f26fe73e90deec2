// The first sequences that a start reads, as text for its metrics and page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "data/batch.hpp"

namespace fsdp {

/// The first `most` sequences after `position` consumed ones: a list of objects with `data` (the data set), `tokens`, `targets`
/// and `text` (to_json() of text/shown_tokens.hpp). Long sequences are shown in parts, around their first target. Throws
/// UserError if the tokenizer or the data cannot be read.
nlohmann::json first_sequences(const TrainBatches& batches, std::uint64_t position, std::uint64_t most,
                               const std::string& tokenizer, std::size_t vocab_size);

}  // namespace fsdp
