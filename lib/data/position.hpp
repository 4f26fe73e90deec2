// Where a run stands in its training data: what a checkpoint keeps of it, and where a run goes on whose data are cut another
// way.
#pragma once

#include <cstdint>
#include <string>

namespace fsdp {

struct DataPosition {
  std::uint64_t sequences = 0;          // consumed so far, of all passes over the data together
  std::uint64_t tokens_per_sample = 0;  // T
  std::uint64_t data_tokens = 0;        // of the whole data; this number and sample_sum identify the data
  bool shuffled = false;
  std::uint64_t seed = 0;      // of the order, if shuffled
  std::string order = {};      // Mixture::order()
  std::uint64_t text_sum = 0;  // of the tokens of texts among the data; 0: there are none
  // Of Mixture, by the same names; 0: not known, or there is nothing of it.
  std::uint64_t sample_sum = 0, documents_sum = 0, mask_sum = 0;

  bool operator==(const DataPosition&) const = default;
};

/// Where a run with data `now` (its `sequences` are ignored) goes on after a run that stopped at `before`. Same data, cut and
/// order: right after it, with its seed. Same data in file order, one data set that is cut after so many tokens, now after more
/// or fewer: after the same tokens of the same pass, to the sequence below. Else at the start. `notice`, if not null, says what
/// changed; empty if nothing did.
DataPosition continue_data(const DataPosition& before, const DataPosition& now, std::string* notice = nullptr);

}  // namespace fsdp
