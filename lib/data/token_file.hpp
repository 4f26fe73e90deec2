// Writing token files, as llm.c has them (formats.hpp).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

namespace fsdp {

/// Writes a token file under a temporary name, syncs it and renames it. Throws UserError or CallError.
void write_token_file(const std::filesystem::path& path, std::span<const std::uint16_t> tokens);
void write_token_file(const std::filesystem::path& path, std::span<const std::uint32_t> tokens);

}  // namespace fsdp
