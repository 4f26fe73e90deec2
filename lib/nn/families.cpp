#include "nn/families.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

std::vector<const Family*>& table() {
  static std::vector<const Family*> rows = {&gpt2_family(),   &llama_family(), &mistral_family(), &qwen2_family(),
                                            &qwen3_family(),  &phi3_family(),  &gemma3_family(),  &opt_family(),
                                            &biogpt_family(), &xglm_family()};
  return rows;
}

const Family* find(const std::string& model_type) {
  const auto row = std::find_if(table().begin(), table().end(), [&](const Family* f) { return f->model_type == model_type; });
  return row == table().end() ? nullptr : *row;
}

}  // namespace

const std::vector<const Family*>& families() { return table(); }

const Family& find_family(const std::string& model_type) {
  if (const Family* family = find(model_type)) return *family;
  std::vector<std::string> known;
  for (const Family* family : table()) known.push_back(family->model_type);
  throw UserError(format("model_type \"{}\" is not supported (known are {}); use a model of one of these families", model_type,
                         fmt::join(known, ", ")));
}

std::vector<Arch> archs_of(const TransformerConfig& config, const std::vector<ArchSizes>& models) {
  std::vector<Arch> all;
  for (const ArchSizes& sizes : models) {
    TransformerConfig& one = all.emplace_back(Arch{sizes.name, config}).config;
    one.width = sizes.width;
    one.layers = sizes.layers;
    one.heads = sizes.heads;
    one.kv_heads = sizes.kv_heads > 0 ? sizes.kv_heads : sizes.heads;
    if (config.head_size == 0) one.head_size = sizes.width / sizes.heads;
    one.ffn_width = sizes.ffn_width > 0 ? sizes.ffn_width : 4 * sizes.width;
    if (sizes.vocab_size > 0) one.vocab_size = sizes.vocab_size;
    if (sizes.positions > 0) one.max_positions = sizes.positions;
    if (sizes.norm_eps > 0) one.norm_eps = sizes.norm_eps;
    if (sizes.tied) one.tied_embeddings = *sizes.tied;
    if (sizes.rope_theta > 0) one.rope.theta = sizes.rope_theta;
  }
  return all;
}

void add_family(const Family& family) {
  expect(!find(family.model_type), "the name of an added family is new");
  expect(family.read && family.write, "a family reads and writes its config.json");
  table().push_back(&family);
}

}  // namespace fsdp
