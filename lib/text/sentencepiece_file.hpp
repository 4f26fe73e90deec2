// Reads the file of a SentencePiece model and describes it in the form of a tokenizer.json. SentencePiece's own library does
// not report all settings.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/bpe.hpp"

namespace fsdp {

struct SentencePieceFile {
  enum class Kind { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string text;
    float score = 0;
    Kind kind = Kind::normal;
  };
  std::vector<Piece> pieces;  // by id
  bool is_bpe = false;        // else Unigram
  bool byte_fallback = false;
  TokenId unknown = 0, bos = 1, eos = 2;  // -1: none
  std::string charsmap;                   // the normalizer's table; empty: characters stay unchanged
  bool adds_prefix = true, removes_spaces = true, escapes_spaces = true;
};

/// Throws UserError if the file is no SentencePiece model or has an unknown type of model.
SentencePieceFile read_sentencepiece_file(const std::filesystem::path& file);

/// Describes a model like transformers 5 for a tokenizer class without a normalizer and pre-tokenizer of its own. `names`
/// replaces the texts of some ids. If `legacy` is true, a space is put before each section of a text between added tokens.
nlohmann::json describe_sentencepiece(const SentencePieceFile& model, const std::map<TokenId, std::string>& names, bool legacy);

/// Makes the merges for a vocabulary that has none: all pairs of tokens that join to a token, in the order of the joined
/// token's id.
nlohmann::json merges_by_id(const nlohmann::json& vocabulary);

}  // namespace fsdp
