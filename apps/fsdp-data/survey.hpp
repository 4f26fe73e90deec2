// Looks at all rows of data once: counts, checks, lengths, ways of packing, and examples. The memory that this takes does not
// grow with the data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "data/samples.hpp"
#include "fsdp-data/duplicates.hpp"
#include "fsdp-data/sequences.hpp"
#include "tensor/columns.hpp"
#include "text/data_counts.hpp"
#include "text/tokenizer.hpp"

namespace fsdp {

struct SurveyOptions {
  Cut cut;
  ColumnRule rule;
  std::size_t vocab_size = 0;      // of the model; 0: not known
  std::size_t longest = 0;         // the model's longest sequence; 0: not known
  std::vector<TokenId> ends = {};  // tokens that end documents and answers; empty: not known
  std::optional<TokenId> bos = {};
  std::size_t examples = 10;
};

/// A sequence to show; with Packing::best_fit, a part of a document.
struct Example {
  std::string source;
  std::vector<TokenId> ids, mask;      // mask: 1 for targets that count
  std::vector<std::size_t> documents;  // the tokens with which documents begin
};

/// A data set of the training or the validation data.
struct SurveyedSource {
  std::string name;
  bool is_valid = false, has_mask = false;
  DataCounts counts = {};
};

/// What a pass over the data computes if sequences are made in this way.
struct WayOfReading {
  std::string options;                // of fsdp-train
  double positions = 0, padding = 0;  // positions that are computed, and the share of them that is padding
};

class Survey {
 public:
  /// Names the place of a row, given its offset.
  using PlaceOf = std::function<std::string(std::uint64_t offset)>;

  /// Keeps the hashes of rows in files in `scratch`, which have no names.
  Survey(const SurveyOptions& options, const std::filesystem::path& scratch);

  /// Begins a data set; those for training come before those for validation. If `has_rows` is false, it is not known where rows
  /// begin, and the data set is one row. Offsets must be below 2^48. `place_of` is called up to the end of finish().
  void begin(const std::string& name, bool is_valid, bool has_rows, PlaceOf place_of);
  /// Adds tokens of the current row. `mask` has 1 for tokens that count in the loss; if it is empty, all count.
  void add(std::span<const TokenId> ids, std::span<const TokenId> mask);
  void end_row(std::uint64_t offset);
  /// Ends the data set. `counts` has what TokenizeJob counted; all 0 for token files.
  void end(const DataCounts& counts);
  /// Finds duplicates, and ends the survey.
  void finish();

  const std::vector<SurveyedSource>& sources() const { return sources_; }
  /// Of training data: element i is the number of rows of 2^(i-1) + 1 to 2^i tokens; element 0 that of rows of at most one
  /// token.
  const std::vector<std::uint64_t>& lengths() const { return lengths_; }
  const std::vector<WayOfReading>& ways() const { return ways_; }
  const std::vector<Example>& examples() const { return examples_; }

 private:
  /// Sequences of all training data in one way of cutting.
  struct Way {
    std::vector<std::uint32_t> columns;  // of the first sequences
    std::uint64_t all_columns = 0;
    std::unique_ptr<SequenceCutter> cutter = nullptr;
  };
  struct Row {
    std::uint64_t tokens = 0;
    std::array<TokenId, 2> head = {}, tail = {};  // the first two tokens, and the last two
    std::optional<std::uint64_t> first_target = {}, last_target = {};
    bool has_mask = false;
    std::uint64_t answer = 0;  // tokens of the answer that has begun
  };

  bool is_end(TokenId id) const;
  void found(const char* check, std::uint64_t& count, std::uint64_t offset);
  void choose(const CutSequence& sequence);
  void look_at(TokenId id, bool counts);
  bool ends_well(std::uint64_t tokens) const;
  void end_answer();
  void find_duplicates();
  void compare_ways();

  SurveyOptions options_;
  DuplicateFinder duplicates_;
  std::vector<SurveyedSource> sources_;
  std::vector<PlaceOf> places_;  // of sources_
  DataCounts checked_;           // what this class counts in the current data set
  bool has_rows_ = false;
  Row row_;
  std::uint64_t unknown_in_row_ = 0;
  std::unique_ptr<SequenceCutter> cutter_;  // of the current data set
  std::array<Way, 3> all_ways_;             // by BreakMode
  std::vector<std::uint64_t> lengths_;
  std::vector<WayOfReading> ways_;
  // A random choice: each sequence has the same probability (Vitter 1985, "Random Sampling with a Reservoir").
  std::vector<Example> examples_;
  std::uint64_t seen_ = 0;  // sequences that could have been chosen
  std::mt19937_64 random_{1};
};

}  // namespace fsdp
