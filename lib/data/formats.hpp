// The formats of token files that are read. Each has a file of its own and a row in formats.cpp.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "data/tokens.hpp"

namespace fsdp {

struct TokenFormat {
  const char* name;
  /// Whether the file is of this format, by its first bytes (at most 256) and by what lies beside it.
  bool (*recognises)(const std::filesystem::path& path, std::string_view beginning);
  /// Throws UserError for a file that cannot be used.
  std::unique_ptr<Tokens> (*open)(const std::filesystem::path& path);
};
/// Those of llm.c: 256 little-endian int32, then the tokens. The first three numbers of the header are 20240520, 1 and the
/// count of tokens, which are uint16 then; or 20240801, 7 and their count, and they are uint32. The others are 0.
const TokenFormat& llmc_tokens();
/// The memory-mapped data sets of Megatron-LM (megatron.core.datasets.indexed_dataset) and of fairseq
/// (fairseq.data.indexed_dataset.MMapIndexedDataset): NAME.bin, which is nothing but tokens, and NAME.idx, which says of what
/// type they are, and how long each sequence is.
const TokenFormat& indexed_tokens();
/// An HDF5 file with a data set of integers of one dimension, or of two, whose rows follow each other: that called "tokens" or
/// "input_ids", or the only one. A dataset "document_lengths" says how many tokens each document has, and "loss_mask" which
/// tokens count. Throws UserError for others that would change training ("labels" that are not the tokens), with
/// Tokens::check().
const TokenFormat& hdf5_tokens();

/// Whether a file is text as far as its first bytes tell: no format is recognised, and no control character is among them.
/// Throws what InputFile throws.
bool is_text_file(const std::filesystem::path& path);

/// Throws UserError for a file that is no text as it is, by its first bytes: compressed, in UTF-16, of another program, or,
/// unless `any_bytes` may follow, with control characters.
void require_no_known_kind(const std::filesystem::path& path, bool any_bytes);
/// The same for a stream that begins with `beginning`.
void require_no_known_kind(const std::filesystem::path& name, std::string_view beginning, bool any_bytes);

/// "'a.bin' is not a token file that can be used (`why`); make one with fsdp-tokenize".
UserError unusable_tokens(const std::filesystem::path& path, const std::string& why);

}  // namespace fsdp
