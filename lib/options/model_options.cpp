#include "options/model_options.hpp"

#include <algorithm>
#include <optional>

#include "base/error.hpp"
#include "checkpoint/adapter.hpp"
#include "checkpoint/model_format.hpp"
#include "data/open_data.hpp"
#include "files/input_file.hpp"
#include "nn/families.hpp"
#include "text/tokenizer.hpp"

namespace fsdp {

bool has_text(const TrainOptions& options) {
  try {
    return (!options.data.empty() && !texts_in(options.data, Split::train).empty()) ||
           (!options.valid.empty() && !texts_in(options.valid, Split::valid).empty());
  } catch (const UserError&) {
    return false;
  }
}

TransformerConfig named_config(const TrainOptions& options, const TransformerConfig* source, std::string tokenizer) {
  expect(source || !options.arch.empty() || !options.model.empty(), "something names the model");
  if (options.arch.empty() && kind_of(options.model) != PathKind::missing &&
      kind_of(options.model / "config.json") == PathKind::missing)
    if (const auto other = model_of_other_kind(options.model)) throw UserError(*other);
  const TransformerConfig base = !options.arch.empty()    ? arch_config(options.arch)
                                 : !options.model.empty() ? read_config(options.model)
                                                          : *source;
  ConfigOverrides sizes = options.sizes;
  if (!options.arch.empty() && !sizes.vocab_size && (!options.tokenizer.empty() || has_text(options))) {
    if (tokenizer.empty()) tokenizer = options.tokenizer.empty() ? "bytes" : options.tokenizer;
    sizes.vocab_size = open_tokenizer(tokenizer)->vocab_size();
  } else if (!options.arch.empty() && !sizes.vocab_size && !options.data.empty()) {
    sizes.vocab_size = vocabulary_of(options.data);
  }
  TransformerConfig config = override_config(base, sizes);
  config.validate();
  // The positions of a new model are limited to the tokens per sample, as in fairseq.
  if (!options.arch.empty() && config.positions != Positions::rotary)
    config.max_positions = std::min(config.max_positions, source ? source->max_positions : options.sharding.batch.T);
  config = with_adapters(std::move(config), options);
  const bool resumes = source && source->lora.rank > 0;
  if (resumes && !options.adapter.empty() && !options.base_type) config.base_type = source->base_type;
  return config;
}

TransformerConfig with_adapters(TransformerConfig config, const TrainOptions& options) {
  if (!options.adapter.empty()) {
    const Adapter adapter = open_adapter(options.adapter, without_adapters(config));
    config = with_lora(without_adapters(config), adapter.lora);
    config.base_type = adapter.base_type_or(options.base_type);
  } else {
    if (options.lora.rank > 0) config = with_lora(without_adapters(config), options.lora);
    config.base_type = options.base_type;
  }
  if (config.lora.rank > 0) config.lora.dropout = options.lora.dropout;
  return config;
}

}  // namespace fsdp
