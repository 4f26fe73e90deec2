// Reads the file of a SentencePiece model, whose library does not report all settings, and describes it like tokenizer.json.
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
  std::string charsmap;                   // of its normalizer; empty: characters stay
  bool adds_prefix = true, removes_spaces = true, escapes_spaces = true;
};

/// Throws UserError for another file, or an unknown kind of model.
SentencePieceFile read_sentencepiece_file(const std::filesystem::path& file);

/// The description that transformers 5 makes of it if no class has rules of its own. `names` are other names for some ids;
/// `legacy`: each part of a text between added tokens begins with a space.
nlohmann::json describe_sentencepiece(const SentencePieceFile& model, const std::map<TokenId, std::string>& names, bool legacy);

/// Merges for a vocabulary without any: all ways to join two of its tokens, in the order of the ids of the results.
nlohmann::json merges_by_id(const nlohmann::json& vocabulary);

}  // namespace fsdp
