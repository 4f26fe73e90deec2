// Parameters by name: shell globs over whole dotted Hugging Face names.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nn/parameters.hpp"

namespace fsdp {

/// fnmatch(3) on the whole dotted name. "*" also matches dots. The leading "transformer." or "model." of the name may be
/// omitted.
bool matches(std::string_view pattern, std::string_view name);

/// If `pattern` matches the LM head or its module, and the model ties the head to the token table, returns the text
/// "lm_head.weight is the same tensor as model.embed_tokens.weight (tie_word_embeddings)". Otherwise returns nothing.
std::optional<std::string> tied_head(std::string_view pattern, const std::vector<Parameter>& parameters);

/// Returns which parameters a list of patterns matches. Throws UserError for a pattern without a match; `what` names the list.
std::vector<bool> named_by(const std::vector<std::string>& patterns, const char* what,
                           const std::vector<Parameter>& parameters);

}  // namespace fsdp
