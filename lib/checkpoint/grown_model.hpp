// A model whose vocabulary has grown: the embedding and the head, or an adapter, have rows that the files do not have. Rows are
// computed when they are read, from rows of the files only, so that all ranks and all strategies begin with the same bits.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/tensor_source.hpp"
#include "text/bpe.hpp"

namespace fsdp {

/// How the row of a new token begins: the mean of the rows of the tokens that its text had before (Gee et al. 2022, "Fast
/// Vocabulary Transfer for Language Model Compression"), or of all rows (Hewitt 2021, "Initializing New Word Embeddings for
/// Pretrained Language Models").
enum class NewTokenInit { mean_of_pieces, mean, zeros };

/// The rows of embedding and head that do not come from the files.
struct NewRows {
  NewTokenInit init = NewTokenInit::mean_of_pieces;
  std::size_t known = 0;  // the number of rows that `mean` averages: those of the old tokenizer's tokens
  /// The tokens into which the old tokenizer splits each new token, by row. With mean_of_pieces, a row without any is the mean.
  std::map<std::size_t, std::vector<TokenId>> pieces = {};
  std::size_t first_unused = 0;  // from this row on, all rows are new

  bool has(std::size_t row) const { return row >= first_unused || pieces.contains(row); }
};

class GrownModel final : public TensorSource {
 public:
  /// `config`: that of the source, but with the grown vocabulary. If it has adapters, a table grows only if it is trained as a
  /// whole; else the new rows are those of the adapters.
  GrownModel(std::unique_ptr<TensorSource> source, TransformerConfig config, NewRows rows);

  StoredModel model() const override { return config_; }
  std::vector<std::string> names() const override { return source_->names(); }
  const CheckpointReader* checkpoint() const override { return source_->checkpoint(); }
  bool has_state(const std::string& state, const std::string& name) const override {
    return state == parameters_state && (source_->has(name) || tokens_.contains(name));
  }
  Shape state_shape(const std::string& state, const std::string& name) const override;
  void read_state(const std::string& state, const std::string& name, Range range, float* out) const override;
  std::size_t bytes_read() const override { return source_->bytes_read(); }
  std::string description() const override { return source_->description(); }
  std::string holder_of(const std::string& name) const override { return source_->holder_of(name); }
  std::vector<std::filesystem::path> files() const override { return source_->files(); }
  std::vector<std::string> warnings() const override { return source_->warnings(); }

 private:
  bool is_table(const std::string& name) const;
  /// The first values of a new row.
  std::vector<float> new_row(const std::string& table, std::size_t row) const;
  const std::vector<float>& mean_row(const std::string& table) const;
  std::vector<float> old_row(const std::string& table, std::size_t row) const;

  std::unique_ptr<TensorSource> source_;
  TransformerConfig config_;
  NewRows rows_;
  std::size_t rows_there_;                                                          // of the files
  std::map<std::string, std::pair<std::string, std::vector<std::size_t>>> tokens_;  // of the rows of adapters, with their table
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::vector<float>> means_;  // by table
};

}  // namespace fsdp
