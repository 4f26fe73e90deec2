// The position of a run in its training data, as a checkpoint stores it, and the position at which a run with other settings
// continues.
#pragma once

#include <cstdint>
#include <string>

namespace fsdp {

struct DataPosition {
  std::uint64_t sequences = 0;          // consumed so far, in all passes over the data
  std::uint64_t tokens_per_sample = 0;  // T
  std::uint64_t data_tokens = 0;        // number of tokens of all data; this and sample_sum identify the data
  bool shuffled = false;
  std::uint64_t seed = 0;      // seed of the order, if shuffled
  std::string order = {};      // Mixture::order()
  std::uint64_t text_sum = 0;  // checksum of the tokens of text files among the data; 0: there are none
  // The results of Mixture's functions with these names; 0: not known, or nothing to sum.
  std::uint64_t sample_sum = 0, documents_sum = 0, mask_sum = 0;

  bool operator==(const DataPosition&) const = default;
};

/// Returns the position at which a run with data `now` (now.sequences is ignored) continues after a run that stopped at
/// `before`. If data, cut and order are the same, it continues right there, with the seed of `before`. If one data set is read
/// in file order, cut after every T tokens, and only T has changed, it continues after the same tokens of the same pass,
/// rounded down to a whole sequence. Otherwise it starts at the beginning. *notice, if not null, is set to a description of the
/// change, or to an empty text if nothing has changed.
DataPosition continue_data(const DataPosition& before, const DataPosition& now, std::string* notice = nullptr);

}  // namespace fsdp
