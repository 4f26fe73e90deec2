// Data sets that are read side by side, each with its share of the sequences, as "a.bin:0.7,b.bin:0.3" asks for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/samples.hpp"

namespace fsdp {

/// One data set of a mixture. The weights of a mixture need not add up to 1.
struct Ingredient {
  Samples samples;
  double weight = 1;
};

/// Which data set a sequence comes from is a function of its number alone: there is no state, every rank knows all of it, and
/// after any number of sequences each data set has given its share of them to within one for each data set before it. A data
/// set that has given all its sequences starts again; one that has more than its share waits for the next pass.
class Mixture {
 public:
  /// At least one; all weights are above 0. Throws UserError for data without sequences.
  explicit Mixture(std::vector<Ingredient> ingredients);

  const std::vector<Ingredient>& ingredients() const { return ingredients_; }
  const Samples& samples(std::size_t ingredient) const { return ingredients_[ingredient].samples; }
  std::size_t T() const { return ingredients_.front().samples.T(); }
  /// Sequences, targets and tokens of all data sets together. A pass over the mixture is so many sequences.
  std::uint64_t sequences() const;
  std::uint64_t tokens() const;

  /// Sequence s of the mixture, 0 .. 2^62: the n-th of an ingredient, counted on over all its passes.
  struct Source {
    std::size_t ingredient;
    std::uint64_t n;
  };
  Source source_of(std::uint64_t s) const;

  /// A checksum to notice other data with the same number of tokens: sample_sum() of all data sets. Not 0.
  std::uint64_t sample_sum() const;
  /// The same of where documents begin and of masks, as far as the cut depends on them; 0 if it does not.
  std::uint64_t documents_sum() const;
  std::uint64_t mask_sum() const;

  /// "a.bin 70 %, b.bin 30 %"; of one data set its name.
  std::string description() const;
  /// What the order of sequences depends on beside the number of tokens, the shuffling and T; empty for one data set that is
  /// cut after so many tokens. A run that resumes with another one does not go on in the midst of its data.
  std::string order() const;

 private:
  template <class Sum>
  std::uint64_t sum_of(const Sum& one) const;

  std::vector<Ingredient> ingredients_;
  std::vector<std::uint64_t> shares_;  // of what those before have left, in units of 2^-32; none of the last one
};

}  // namespace fsdp
