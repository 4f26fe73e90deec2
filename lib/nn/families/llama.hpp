// Reads the keys that Llama shares with Mistral, Qwen 2 and Qwen 3.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "nn/families.hpp"

namespace fsdp {

ParameterNames llama_names();
/// Reads all keys except the keys for biases, because these differ between the families. In `defaults`, 0 key/value heads means
/// as many as heads, and head size 0 means width / heads.
TransformerConfig read_llama_keys(const nlohmann::json& object, TransformerConfig defaults);
nlohmann::json write_llama_keys(const TransformerConfig& config);

}  // namespace fsdp
