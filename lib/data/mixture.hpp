// A weighted mixture of data sets: each gives its share of the sequences, as in "a.bin:0.7,b.bin:0.3".
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

/// The data set of a sequence is a function of only the sequence's number: there is no state, and every rank knows the data set
/// of every sequence. After any number of sequences each data set has given its share, with an error of at most one sequence
/// for each data set before it. A data set that has given all its sequences starts again. A data set with more sequences than
/// its share continues in the next pass.
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

  /// Sequence s of the mixture (s is 0 .. 2^62) is sequence n of an ingredient. In later passes over the ingredient, n
  /// continues to count.
  struct Source {
    std::size_t ingredient;
    std::uint64_t n;
  };
  Source source_of(std::uint64_t s) const;

  /// A checksum of sample_sum() of all data sets, to detect other data with the same number of tokens. Not 0.
  std::uint64_t sample_sum() const;
  /// Checksums of the beginnings of documents and of the masks; 0 if the cut does not depend on them.
  std::uint64_t documents_sum() const;
  std::uint64_t mask_sum() const;

  /// "a.bin 70 %, b.bin 30 %"; the name if there is only one data set.
  std::string description() const;
  /// A text of all settings that the order of sequences depends on, besides the number of tokens, the shuffling and T. Empty
  /// for one data set that is cut after every T tokens. A run that resumes with another order starts its data from the
  /// beginning.
  std::string order() const;

 private:
  template <class Sum>
  std::uint64_t sum_of(const Sum& one) const;

  std::vector<Ingredient> ingredients_;
  std::vector<std::uint64_t> shares_;  // 2^32 * the share in what earlier ingredients leave; none for the last one
};

}  // namespace fsdp
