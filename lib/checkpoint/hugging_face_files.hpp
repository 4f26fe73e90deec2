// The names of files in a Hugging Face folder, for those who write them and those who remove what was not finished.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace fsdp {

/// Files of the folder that a model came from which say how text becomes tokens, and how to generate.
inline constexpr std::array<const char*, 11> kept_files = {"tokenizer.json",
                                                           "tokenizer_config.json",
                                                           "tokenizer.model",
                                                           "vocab.json",
                                                           "vocab.txt",
                                                           "merges.txt",
                                                           "special_tokens_map.json",
                                                           "added_tokens.json",
                                                           "chat_template.jinja",
                                                           "chat_template.json",
                                                           "generation_config.json"};

/// Whether consolidate() gives this name to a file.
bool is_consolidated_file(const std::string& name);

}  // namespace fsdp
