// A weighted mixture of data sets, such as "a.bin:0.7,b.bin:0.3": 70 % of the sequences come from a.bin, and 30 % from b.bin.
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

/// The error for `size` tokens that have no whole sequence of T targets.
UserError has_no_sequence(const std::string& tokens, std::uint64_t size, std::size_t T);

/// The data set of a sequence depends only on the sequence's number. So there is no state, and every rank knows the data set of
/// every sequence. After any number of sequences each data set has given its share, with an error of at most one sequence for
/// each data set before it in the list. A data set that has given all its sequences starts again. If a data set
/// has not given all its sequences in one pass over the mixture, it continues with the others in the next pass.
class Mixture {
 public:
  /// Requires at least one ingredient, and weights above 0. Throws UserError for data without sequences.
  explicit Mixture(std::vector<Ingredient> ingredients);

  const std::vector<Ingredient>& ingredients() const { return ingredients_; }
  const Samples& samples(std::size_t ingredient) const { return ingredients_[ingredient].samples; }
  std::size_t T() const { return ingredients_.front().samples.T(); }
  /// The numbers of sequences and tokens of all data sets together. A pass over the mixture has sequences() sequences.
  std::uint64_t sequences() const;
  std::uint64_t tokens() const;

  /// Where a sequence of the mixture comes from: it is the n-th sequence taken from `ingredient`. In later passes over the
  /// ingredient, n continues to count and does not start again at 0.
  struct Source {
    std::size_t ingredient;
    std::uint64_t n;
  };
  Source source_of(std::uint64_t s) const;

  /// A checksum over sample_sum() of all data sets. It detects other data with the same number of tokens. It is never 0.
  std::uint64_t sample_sum() const;
  /// Checksums of where documents begin, and of the loss masks; 0 if the sequences do not depend on these.
  std::uint64_t documents_sum() const;
  std::uint64_t mask_sum() const;

  /// "a.bin 70 %, b.bin 30 %"; the name if there is only one data set.
  std::string description() const;
  /// All settings that determine the order of sequences, as a text, except for the number of tokens, the shuffling and T. Empty
  /// for one data set that is cut after every T tokens. A run that resumes with another order starts its data from the
  /// beginning.
  std::string order() const;

 private:
  template <class Sum>
  std::uint64_t sum_of(const Sum& one) const;

  std::vector<Ingredient> ingredients_;
  std::vector<std::uint64_t> shares_;  // 2^32 * weight / (the sum of this weight and all later ones); the last one has none
};

}  // namespace fsdp
