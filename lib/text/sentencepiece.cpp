// The tokenizer of a SentencePiece model, run by SentencePiece's own library.
#include <sentencepiece_processor.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"
#include "text/tokenizer.hpp"
#include "text/utf8.hpp"

namespace fsdp {

namespace {

namespace sp = sentencepiece;

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::filesystem::path& file, const std::string& model) {
    if (const auto status = processor_.LoadFromSerializedProto(model); !status.ok()) {
      const bool is_of_code = status.ToString().find(".cc(") != std::string::npos;  // a source location instead of a reason
      throw UserError(format("'{}' is no model of SentencePiece ({}); give a tokenizer.model or a tokenizer.json",
                             file.string(), is_of_code ? "it is another file, or damaged" : excerpt(status.ToString())));
    }
    if (const int bos = processor_.bos_id(); bos >= 0) before_.push_back(bos);
    find_cuts();
  }

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<TokenId>& ids) const override {
    if (valid_until(text) < text.size()) return encode(with_replacements(text), ids);
    std::vector<int> mine;
    const auto status = processor_.Encode(absl::string_view(text.data(), text.size()), &mine);
    if (!status.ok()) throw RunError(format("SentencePiece cannot encode this text ({}); cut it", excerpt(status.ToString())));
    ids.insert(ids.end(), mine.begin(), mine.end());
  }
  std::unique_ptr<TokenDecoder> make_decoder() const override { return std::make_unique<Decoder>(processor_); }
  std::size_t vocab_size() const override { return static_cast<std::size_t>(processor_.GetPieceSize()); }
  std::optional<TokenId> find(std::string_view token) const override {
    const int id = processor_.PieceToId(absl::string_view(token.data(), token.size()));
    return processor_.IdToPiece(id) == token ? std::optional<TokenId>(id) : std::nullopt;
  }
  std::string spelling(TokenId id) const override {
    return id < 0 || id >= processor_.GetPieceSize() ? "" : processor_.IdToPiece(id);
  }
  const CutRules& cuts() const override { return cuts_; }
  const std::vector<TokenId>& before_text() const override { return before_; }
  const std::vector<TokenId>& after_text() const override { return after_; }
  std::string description() const override { return format("SentencePiece of {} tokens", vocab_size()); }

 private:
  /// Several byte tokens may form one character, so they are stored until a token arrives that is no byte.
  class Decoder : public TokenDecoder {
   public:
    explicit Decoder(const sp::SentencePieceProcessor& processor) : processor_(processor) {}
    void add(TokenId id, std::string& text) override {
      if (id < 0 || id >= processor_.GetPieceSize() || processor_.IsControl(id)) return;
      if (processor_.IsByte(id)) {
        bytes_.push_back(id);
        return;
      }
      end_bytes(text);
      std::string piece = processor_.IdToPiece(id);
      if (processor_.IsUnknown(id)) piece = " \xE2\x81\x87 ";  // what SentencePiece's library writes for an unknown token
      constexpr std::string_view sign = "\xE2\x96\x81";
      for (std::size_t at = 0; (at = piece.find(sign, at)) != std::string::npos; ++at) piece.replace(at, sign.size(), " ");
      if (begins_ && piece.starts_with(' ')) piece.erase(0, 1);
      begins_ = false;
      text += piece;
    }
    void finish(std::string& text) override {
      end_bytes(text);
      begins_ = true;
    }

   private:
    void end_bytes(std::string& text) {
      if (bytes_.empty()) return;
      std::string bytes;
      for (const int id : bytes_) bytes += static_cast<char>(std::stoi(processor_.IdToPiece(id).substr(3, 2), nullptr, 16));
      text += with_replacements(bytes);
      bytes_.clear();
      begins_ = false;
    }
    const sp::SentencePieceProcessor& processor_;
    std::vector<int> bytes_;
    bool begins_ = true;
  };

  /// In the text that the model gets, a space is U+2581, and a line feed is U+2581 or unchanged.
  void find_cuts() {
    for (int id = 0; id < processor_.GetPieceSize(); ++id)
      for (const char* const space : {" ", "\n", "\xE2\x96\x81"})
        if (reaches_across(processor_.IdToPiece(id), space, {})) return;
    cuts_.at_space = cuts_.at_line_end = true;
    // No cut after a character without a token, because it is joined with unknown characters next to it.
    for (int c = 0; c < 128; ++c) {
      const char text = static_cast<char>(c);
      cuts_.not_after[static_cast<std::size_t>(c)] = processor_.IsUnknown(processor_.PieceToId(absl::string_view(&text, 1)));
    }
  }

  sp::SentencePieceProcessor processor_;
  std::vector<TokenId> before_, after_;
  CutRules cuts_;
};

}  // namespace

std::unique_ptr<Tokenizer> read_sentencepiece(const std::filesystem::path& file) {
  constexpr std::size_t longest_model = std::size_t{64} << 20;
  return std::make_unique<SentencePieceTokenizer>(file, read_text_file(file, longest_model));
}

}  // namespace fsdp
