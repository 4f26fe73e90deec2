#include "nn/families.hpp"

#include "base/registry.hpp"

namespace fsdp {

namespace {

using Families = Registry<Family, &Family::model_type>;
Families& table() {
  static Families rows({&gpt2_family(), &llama_family(), &mistral_family(), &qwen2_family(), &qwen3_family(), &phi3_family(),
                        &gemma3_family(), &opt_family(), &biogpt_family(), &xglm_family()},
                       "model_type \"{}\" is not supported");
  return rows;
}

}  // namespace

const std::vector<const Family*>& families() { return table().rows(); }

const Family& find_family(const std::string& model_type) { return table().find(model_type); }

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
  expect(family.read && family.write, "a family reads and writes its config.json");
  table().add(family);
}

}  // namespace fsdp
