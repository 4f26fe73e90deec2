// Reads the file of a SentencePiece model (Kudo and Richardson 2018) and describes the model in the form of a tokenizer.json.
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
  std::vector<Piece> pieces;  // indexed by token id
  bool is_bpe = false;        // true: byte-pair encoding; false: Unigram
  bool byte_fallback = false;
  TokenId unknown = 0, bos = 1, eos = 2;  // ids; -1: the model has no such token
  std::string charsmap;                   // the normalizer's table; empty: characters stay unchanged
  bool adds_prefix = true, removes_spaces = true, escapes_spaces = true;
};

/// Throws UserError if the file is no SentencePiece model or has an unknown type of model.
SentencePieceFile read_sentencepiece_file(const std::filesystem::path& file);

/// Describes a model as transformers 5 does if the tokenizer class has no normalizer and pre-tokenizer of its own. The ids in
/// `names` get these texts instead of the model's. If `legacy` is true, a space is put before each text between added tokens.
nlohmann::json describe_sentencepiece(const SentencePieceFile& model, const std::map<TokenId, std::string>& names, bool legacy);

/// Makes the merges for a vocabulary without a list of merges. A merge is any pair of tokens whose joined text is a token. The
/// merges are in the order of the joined token's id.
nlohmann::json merges_by_id(const nlohmann::json& vocabulary);

}  // namespace fsdp
