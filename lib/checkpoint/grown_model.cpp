#include "checkpoint/grown_model.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "nn/families.hpp"
#include "nn/parameters.hpp"

namespace fsdp {

GrownModel::GrownModel(std::unique_ptr<TensorSource> source, TransformerConfig config, NewRows rows)
    : source_(std::move(source)),
      config_(std::move(config)),
      rows_(std::move(rows)),
      rows_there_(source_->config().vocab_size) {
  expect(rows_.known <= rows_there_ && config_.vocab_size >= rows_there_, "a vocabulary only grows");
  const ModelParameters all = list_parameters(config_);
  for (const auto& [table, tokens] :
       {std::pair(all.token_table, &config_.lora.tokens), std::pair(all.head, &config_.lora.head_tokens)})
    if (const std::string name = all.parameters[static_cast<std::size_t>(table)].name; !tokens->empty())
      tokens_[name.substr(0, name.rfind('.')) + token_rows_suffix] = {name, *tokens};
}

bool GrownModel::is_table(const std::string& name) const {
  const ParameterNames& names = find_family(config_.family).names;
  if (config_.lora.rank > 0 && !trains_whole(config_, name)) return false;
  return name == names.token_table || (name == names.head && !config_.tied_embeddings);
}

Shape GrownModel::state_shape(const std::string& state, const std::string& name) const {
  if (const auto found = tokens_.find(name); found != tokens_.end()) return {found->second.second.size(), config_.width};
  Shape shape = source_->state_shape(state, name);
  if (is_table(name) && shape.front() == rows_there_) shape.front() = config_.vocab_size;
  return shape;
}

void GrownModel::read_state(const std::string& state, const std::string& name, Range range, float* out) const {
  const std::size_t C = config_.width;
  if (const auto found = tokens_.find(name); found != tokens_.end()) {
    const auto& [table, tokens] = found->second;
    for (std::size_t at = range.begin; at < range.end;) {
      const std::size_t row = at / C, stop = std::min(range.end, (row + 1) * C);
      const std::vector<float> values = rows_.has(tokens[row]) ? new_row(table, tokens[row]) : old_row(table, tokens[row]);
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(at - row * C), stop - at, out + (at - range.begin));
      at = stop;
    }
    return;
  }
  if (!is_table(name)) return source_->read_state(state, name, range, out);
  for (std::size_t at = range.begin; at < range.end;) {
    std::size_t row = at / C, end = row + 1;
    if (rows_.has(row)) {
      const std::vector<float> values = new_row(name, row);
      const std::size_t stop = std::min(range.end, end * C);
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(at - row * C), stop - at, out + (at - range.begin));
      at = stop;
      continue;
    }
    while (end * C < range.end && !rows_.has(end)) ++end;
    const Range old = {at, std::min(range.end, end * C)};
    source_->read_state(state, name, old, out + (at - range.begin));
    at = old.end;
  }
}

std::vector<float> GrownModel::old_row(const std::string& table, std::size_t row) const {
  const std::size_t C = config_.width;
  std::vector<float> values(C);
  source_->read_to_use(parameters_state, table, {row * C, (row + 1) * C}, values.data());
  return values;
}

std::vector<float> GrownModel::new_row(const std::string& table, std::size_t row) const {
  const std::size_t C = config_.width;
  if (rows_.init == NewTokenInit::zeros) return std::vector<float>(C);
  const auto pieces = rows_.pieces.find(row);
  if (rows_.init == NewTokenInit::mean || pieces == rows_.pieces.end() || pieces->second.empty()) return mean_row(table);
  std::vector<double> sum(C);
  for (const TokenId piece : pieces->second) {
    const std::vector<float> values = old_row(table, static_cast<std::size_t>(piece));
    for (std::size_t c = 0; c < C; ++c) sum[c] += static_cast<double>(values[c]);
  }
  std::vector<float> mean(C);
  for (std::size_t c = 0; c < C; ++c) mean[c] = static_cast<float>(sum[c] / static_cast<double>(pieces->second.size()));
  return mean;
}

const std::vector<float>& GrownModel::mean_row(const std::string& table) const {
  const std::lock_guard lock(mutex_);
  std::vector<float>& mean = means_[table];
  if (!mean.empty()) return mean;
  const std::size_t C = config_.width, at_once = std::max<std::size_t>(1, (std::size_t{1} << 20) / C);
  std::vector<double> sum(C);
  std::vector<float> values;
  for (std::size_t row = 0; row < rows_.known; row += at_once) {
    const std::size_t end = std::min(rows_.known, row + at_once);
    values.resize((end - row) * C);
    source_->read_to_use(parameters_state, table, {row * C, end * C}, values.data());
    for (std::size_t i = 0; i < values.size(); ++i) sum[i % C] += static_cast<double>(values[i]);
  }
  mean.resize(C);
  for (std::size_t c = 0; c < C; ++c) mean[c] = static_cast<float>(sum[c] / static_cast<double>(rows_.known));
  return mean;
}

}  // namespace fsdp
