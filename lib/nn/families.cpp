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

TransformerConfig with_sizes(TransformerConfig config, std::size_t width, std::size_t layers, std::size_t heads,
                             std::size_t kv_heads, std::size_t ffn_width) {
  config.width = width;
  config.layers = layers;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.head_size = width / heads;
  config.ffn_width = ffn_width;
  return config;
}

void add_family(const Family& family) {
  expect(!find(family.model_type), "the name of an added family is new");
  expect(family.read && family.write, "a family reads and writes its config.json");
  table().push_back(&family);
}

}  // namespace fsdp
