// The position of a run in its training data, as a checkpoint stores it, and the position at which a run with other settings
// continues.
#pragma once

#include <cstdint>
#include <string>

namespace fsdp {

struct DataPosition {
  std::uint64_t sequences = 0;          // consumed so far, in all passes over the data
  std::uint64_t tokens_per_sample = 0;  // T; 0: a user's program, which reads its own data, has written the checkpoint
  std::uint64_t data_tokens = 0;        // number of tokens of all data
  bool shuffled = false;
  std::uint64_t seed = 0;      // seed of the order, if shuffled
  std::string order = {};      // the result of Mixture::order()
  std::uint64_t text_sum = 0;  // checksum of the tokens made from text files; 0: no data are text files
  // The results of the functions of Mixture with the same names; 0: not known, or without effect on the sequences.
  std::uint64_t sample_sum = 0, documents_sum = 0, mask_sum = 0;
  std::uint64_t token_sum = 0;  // checksum of all tokens; 0: not known, because there are too many to read them all at a start

  bool operator==(const DataPosition&) const = default;
};

/// Returns the position at which a run with data `now` continues after a run that stopped at `before`. now.sequences is
/// ignored. If data, cut and order are the same, the run continues right there, with the seed of `before`. If only T has
/// changed, and the data are one data set that is read in file order and cut after every T tokens, the run continues after the
/// same tokens of the same pass, rounded down to a whole sequence. Otherwise the run starts at the beginning of the data.
/// *notice, if not null, is set to a description of the change, or to an empty text if nothing has changed.
DataPosition continue_data(const DataPosition& before, const DataPosition& now, std::string* notice = nullptr);

}  // namespace fsdp
