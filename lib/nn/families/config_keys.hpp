// Functions that read keys of config.json. Each returns the key's value, or transformers' default if the key is missing or
// null. It throws UserError with the key's name if the value has the wrong type.
#pragma once

#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "nn/config.hpp"

namespace fsdp::keys {

/// The value of the first of `names` that exists and is not null, else nullptr.
const nlohmann::json* find(const nlohmann::json& object, std::initializer_list<const char*> names);
[[noreturn]] void wrong_value(const char* name, const nlohmann::json& value, const char* wanted);

std::size_t read_count(const nlohmann::json& object, std::initializer_list<const char*> names, std::size_t otherwise);
double read_number(const nlohmann::json& object, const char* name, double otherwise);
float read_float(const nlohmann::json& object, const char* name, double otherwise);
bool read_bool(const nlohmann::json& object, const char* name, bool otherwise);
std::string read_text(const nlohmann::json& object, const char* name, const std::string& otherwise);
/// Reads pad_token_id; if the key is missing, the value is `otherwise`. A negative number counts from the end of the
/// vocabulary, as in PyTorch. Returns nothing if the number is not in the vocabulary.
std::optional<std::size_t> read_padding(const nlohmann::json& object, std::size_t vocab_size,
                                        std::optional<std::size_t> otherwise = std::nullopt);
nlohmann::json written(const std::optional<std::size_t>& padding_token);
/// Throws UserError if the key enables an unsupported feature; `off` is the value that disables it.
void require_off(const nlohmann::json& object, const char* name, const nlohmann::json& off);
/// Reads sliding_window, which may be null. If the key is missing, config.sliding_window keeps its value.
void read_window(const nlohmann::json& object, TransformerConfig& config);
void write_window(const TransformerConfig& config, nlohmann::json& object);
/// Reads layer_types: which layers have the window. If the key is missing, the other fields of `config` decide. If no layer has
/// a window, resets all fields for windows.
void read_layer_types(const nlohmann::json& object, TransformerConfig& config);
void write_layer_types(const TransformerConfig& config, nlohmann::json& object);
/// Reads the keys of Qwen models: use_sliding_window, sliding_window, max_window_layers, layer_types.
void read_qwen_windows(const nlohmann::json& object, TransformerConfig& config);
void write_qwen_windows(const TransformerConfig& config, nlohmann::json& object);
/// Reads one of `known`, by its name from name_of() or by another name that transformers accepts: "gelu_pytorch_tanh" for
/// "gelu_new".
Activation read_activation(const nlohmann::json& object, const char* name, const std::string& otherwise,
                           std::initializer_list<Activation> known);
const char* name_of(Activation activation);
/// Reads rotary positions, from the keys of transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters). `config` has the
/// keys that were read before: max_position_embeddings, the head size, and the default of rope_theta.
Rope read_rope(const nlohmann::json& object, const TransformerConfig& config);
/// Reads the parameters of one kind: the object in rope_scaling or rope_parameters. `otherwise` has the values of missing keys.
Rope read_rope_parameters(const nlohmann::json& parameters, const TransformerConfig& config, const Rope& otherwise);
/// Adds the keys of transformers 4 and 5 to `object`.
void write_rope(const Rope& rope, nlohmann::json& object);
/// The parameters without rope_theta, as rope_scaling has them.
nlohmann::json written_rope(const Rope& rope);
/// Returns a warning with the keys of the folder's config.json that the family does not read. Keys that do not change the
/// computation, and values null, false or empty, are left out. Returns nothing if no keys are left or there is no file. Throws
/// UserError as read_config() does.
std::optional<std::string> doubt_config(const std::filesystem::path& folder);
/// The double with the fewest digits that rounds to `x`: 1e-05, not 9.999999747378752e-06.
double shortest(float x);

}  // namespace fsdp::keys
