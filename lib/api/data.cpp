#include "api/data.hpp"

#include <nlohmann/json.hpp>

#include "api/model_inside.hpp"
#include "api/words.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "base/program.hpp"
#include "comm/agree.hpp"
#include "data/batch.hpp"
#include "data/open_data.hpp"
#include "data/permutation.hpp"
#include "data/position.hpp"
#include "engine/rank_data.hpp"
#include "engine/same_files.hpp"
#include "files/json.hpp"

namespace fsdp {

namespace {

/// Reads a text of state(). Throws UserError unless it has the keys and types of `now`. Texts of version 0.1.0 have no
/// token_sum.
nlohmann::json parse_state(const std::string& state, const nlohmann::json& now) {
  nlohmann::json parsed = parse_json(state);
  if (parsed.is_object() && now.contains("token_sum")) parsed.emplace("token_sum", std::uint64_t{0});
  bool fits = parsed.is_object() && parsed.size() == now.size();
  for (const auto& [key, value] : now.items()) fits = fits && parsed.contains(key) && parsed[key].type() == value.type();
  if (!fits)
    throw UserError(
        format("'{}' is no position in data (state() gives one); give the text that the checkpoint has", excerpt(state)));
  return parsed;
}

nlohmann::json json_of(const DataPosition& p) {
  return {{"sequences", p.sequences},
          {"tokens_per_sample", p.tokens_per_sample},
          {"tokens", p.data_tokens},
          {"shuffled", p.shuffled},
          {"seed", p.seed},
          {"order", p.order},
          {"sample_sum", p.sample_sum},
          {"documents_sum", p.documents_sum},
          {"mask_sum", p.mask_sum},
          {"token_sum", p.token_sum}};
}

}  // namespace

DistributedSampler::DistributedSampler(const FullyShardedDataParallel& model, std::uint64_t size, bool shuffle)
    : size_(size), shuffle_(shuffle) {
  if (size == 0) throw UserError("there are no examples (size is 0); give their number");
  const FullyShardedDataParallel::Inside inside = model.inside();
  const BatchCut cut = batch_cut(inside.options.sharding, *inside.job.world);
  seed_ = inside.options.seed;
  rank_ = static_cast<std::size_t>(cut.rank), ranks_ = static_cast<std::size_t>(cut.ranks), micro_batches_ = cut.K;
  indices_.resize(cut.B);
}

std::span<const std::uint64_t> DistributedSampler::indices(std::size_t micro_batch) {
  if (micro_batch >= micro_batches_)
    throw UserError(format("there is no micro-batch {} (gradient_accumulation_steps is {}); give Batch::micro_batch()",
                           micro_batch, micro_batches_));
  std::uint64_t example = position_ + (micro_batch * ranks_ + rank_) * indices_.size();
  for (std::uint64_t& index : indices_) {
    index = shuffle_ ? permuted(example % size_, size_, seed_, example / size_) : example % size_;
    ++example;
  }
  return indices_;
}

void DistributedSampler::advance() { position_ += indices_.size() * micro_batches_ * ranks_; }

std::string DistributedSampler::state() const {
  return json_text(nlohmann::json{{"position", position_}, {"size", size_}, {"shuffle", shuffle_}, {"seed", seed_}});
}

void DistributedSampler::restore(const std::string& state) {
  const nlohmann::json now = parse_json(this->state()), before = parse_state(state, now);
  for (const char* key : {"size", "shuffle", "seed"})
    if (now[key] != before[key])
      throw UserError(
          format("{} of the sampler is {}, and was {} when its state was stored (the order of the examples differs); give it "
                 "the same, or start a new epoch without restore()",
                 key, json_text(now[key]), json_text(before[key])));
  position_ = before["position"];
}

struct TokenData::Parts {
  /// May throw on one rank and not on others.
  Parts(const FullyShardedDataParallel::Inside& model, const std::string& name, TrainOptions with)
      : options(std::move(with)),
        cut(batch_cut(options.sharding, *model.job.world)),
        vocabulary(vocabulary_of(model.rows)),
        mixture(
            open_mixture(name, {cut.T, options.break_mode, options.end_of_document, false, options.long_rows}, options.mask)),
        batches(mixture, cut, vocabulary,
                {.shuffle_seed = options.shuffle ? std::optional<std::uint64_t>(options.seed) : std::nullopt,
                 .passes = options.max_epoch,
                 .length_seed = options.group_by_length ? std::optional<std::uint64_t>(options.seed) : std::nullopt}),
        position(begin()) {}
  DataPosition begin() const {
    return {0,
            mixture.T(),
            mixture.tokens(),
            options.shuffle,
            options.seed,
            mixture.order() + order_by_length(options.group_by_length),
            0,
            mixture.sample_sum(),
            mixture.documents_sum(),
            mixture.mask_sum(),
            token_sum};
  }

  const TrainOptions options;
  const BatchCut cut;
  const std::size_t vocabulary;
  const Mixture mixture;
  const TrainBatches batches;
  std::uint64_t token_sum = 0;
  DataPosition position;
};

TokenData::TokenData(FullyShardedDataParallel& model, const std::string& name, const TokenDataOptions& options) {
  const FullyShardedDataParallel::Inside inside = model.inside();
  const std::vector<Field> fields = {
      {"shuffle", "shuffle", format("{}", options.shuffle)},
      {"max-epoch", "max_epoch", options.max_epoch > 0 ? std::optional(format("{}", options.max_epoch)) : std::nullopt},
      {"break-mode", "break_mode", options.break_mode},
      {"long-rows", "long_rows", options.long_rows},
      {"group-by-length", "group_by_length", format("{}", options.group_by_length)},
      {"mask", "mask", options.mask.empty() ? std::nullopt : std::optional(options.mask)},
      {"eos-token-id", "eos_token_id",
       options.eos_token_id ? std::optional(format("{}", *options.eos_token_id)) : std::nullopt}};
  inside.job.together([&] {
    require_same_lines(*inside.job.world, text_of(fields), "have different TokenDataOptions", "they read parts of one order");
    require_same_files(*inside.job.world, [&] {
      return FileLists{files_of_data(name, Split::train), files_of_data(options.mask, Split::train)};
    });
    agree(*inside.job.world, [&] {
      if (!inside.rows.tokens || inside.rows.inputs != 1 || !inside.rows.labels || inside.rows.targets != 1)
        throw UserError(
            "the model does not take tokens and one label for each (TokenData has nothing else); begin it with embedding(), "
            "end "
            "it with cross_entropy()");
      TrainOptions with = inside.options;
      OptionTable table = train_option_table(with, 1);
      set_fields(table, fields);
      parts_ = std::make_unique<Parts>(inside, name, std::move(with));
      for (const Ingredient& each : parts_->mixture.ingredients())
        if (parts_->cut.rank == 0 && !each.samples.doubt().empty()) print_warnings({each.samples.doubt()});
    });
    parts_->token_sum = check_tokens(*inside.job.world, parts_->mixture, parts_->vocabulary).sum;
    parts_->position.token_sum = parts_->token_sum;
  });
}
TokenData::~TokenData() = default;

void TokenData::read(const Batch& batch) const {
  const auto tokens = batch.tokens(), labels = batch.labels();
  if (tokens.size() != parts_->cut.B * parts_->cut.T || batch.micro_batch() >= parts_->cut.K)
    throw UserError(
        "the batch belongs to another model than this TokenData, or to an evaluation with eval_batch_size; make a TokenData "
        "for each model, and give it to evaluate()");
  parts_->batches.read(parts_->position.sequences, batch.micro_batch(), tokens.data(), labels.data());
}

void TokenData::advance() { parts_->position.sequences = parts_->batches.after(parts_->position.sequences); }
bool TokenData::at_end() const { return parts_->batches.at_end(parts_->position.sequences); }
std::uint64_t TokenData::sequences() const { return parts_->mixture.sequences(); }
std::uint64_t TokenData::position() const { return parts_->position.sequences; }

const Samples& TokenData::samples() const {
  if (parts_->mixture.ingredients().size() > 1)
    throw UserError(
        format("a mixture is not evaluated ({}: its data sets have weights in training only); make a TokenData of each",
               parts_->mixture.description()));
  return parts_->mixture.samples(0);
}

std::string TokenData::state() const { return json_text(json_of(parts_->position)); }

std::string TokenData::restore(const std::string& state) {
  const DataPosition now = parts_->begin();
  const nlohmann::json text = parse_state(state, json_of(now));
  const DataPosition before = {
      text["sequences"],  text["tokens_per_sample"], text["tokens"],   text["shuffled"], text["seed"], text["order"], 0,
      text["sample_sum"], text["documents_sum"],     text["mask_sum"], text["token_sum"]};
  std::string notice;
  parts_->position = continue_data(before, now, &notice);
  return notice;
}

}  // namespace fsdp
