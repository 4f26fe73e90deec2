// Reads and writes files of tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "data/formats.hpp"

namespace fsdp::test {

inline std::vector<std::uint32_t> all_tokens(const Tokens& tokens) {
  std::vector<std::uint32_t> all(tokens.size());
  tokens.read(0, all);
  return all;
}
inline std::vector<std::uint32_t> tokens_of(const std::filesystem::path& path) { return all_tokens(*open_token_file(path)); }

inline std::unique_ptr<TokenWriter> make_writer(std::string_view format, const std::filesystem::path& path,
                                                std::size_t vocab_size, const nlohmann::json& state = nullptr,
                                                std::uint64_t shard_tokens = most_llmc_tokens) {
  return find_token_format(format).make_writer(path, vocab_size, state, shard_tokens);
}
/// Writes all tokens at once as a file in llm.c's format, with 16 or 32 bits per token.
template <class Row>
void write_token_file(const std::filesystem::path& path, const Row& tokens) {
  const auto writer = make_writer("llm.c", path, std::size_t{1} << (sizeof(tokens[0]) == 2 ? 16 : 17));
  writer->add(std::vector<TokenId>(tokens.begin(), tokens.end()));
  writer->finish();
}

}  // namespace fsdp::test
