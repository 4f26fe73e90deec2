// Reads all tokens of a file of any format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "data/tokens.hpp"

namespace fsdp::test {

inline std::vector<std::uint32_t> all_tokens(const Tokens& tokens) {
  std::vector<std::uint32_t> all(tokens.size());
  tokens.read(0, all);
  return all;
}
inline std::vector<std::uint32_t> tokens_of(const std::filesystem::path& path) { return all_tokens(*open_token_file(path)); }

}  // namespace fsdp::test
