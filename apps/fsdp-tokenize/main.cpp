// Text to token files. The texts are joined in the order given; the held-out part is their tail, so that nothing of it is seen
// in training.
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/options.hpp"
#include "base/program.hpp"
#include "data/token_writer.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "text/tokenizer.hpp"
#include "text/train_bpe.hpp"
#include "text/utf8.hpp"
#include "train/common_options.hpp"
#include "train/program.hpp"

using namespace fsdp;

namespace {

struct TokenizeOptions {
  std::vector<std::string> texts;
  std::string tokenizer = "bytes";
  std::filesystem::path out, valid_out;
  double valid_fraction = 0.05;
  std::size_t train_bpe = 0;
};

OptionTable tokenize_option_table(TokenizeOptions& o) {
  OptionTable table("fsdp-tokenize", "TEXT... --out FILE [options]",
                    "Makes token files for fsdp-train from texts, in llm.c's format. Several texts are joined in the order "
                    "given, with nothing between "
                    "them.");
  table.group("Input");
  table.list("text", "TEXT", o.texts, "Files to read; '-' is standard input.").positional().required();
  table.text(
      "tokenizer", "NAME", o.tokenizer,
      "A tokenizer.json (byte-pair encoding, as of GPT-2, Llama 3, SmolLM2, Qwen and Mistral), a tokenizer.model of "
      "SentencePiece (Llama 2), or a folder with one of them, for the ids that Hugging Face's tokenizers give; or bytes: every "
      "byte is a token, 0 to 255. Train with the --vocab-size that is printed, or with that of the tokenizer's model.");
  table.integer(
      "train-bpe", "N", o.train_bpe, {0, 1e6},
      "Learn a tokenizer of N tokens from the texts (without the part that is held out), write it to --tokenizer NAME, a "
      "new tokenizer.json or a folder for it, and use it: byte-level byte-pair encoding over GPT-2's words, with "
      "<|endoftext|> as token 0, which Hugging Face's tokenizers read. 0: learn none.");
  table.group("Output");
  table.path("out", "FILE", o.out, "Token file to write.").required();
  table.path("valid-out", "FILE", o.valid_out, "Token file for a held-out part: the tail of the text.")
      .unset("nothing is held out");
  table.number("valid-fraction", "PART", o.valid_fraction, "Part of the text that is held out with --valid-out.",
               "between 0 and 1", [](double x) { return x > 0 && x < 1; });
  return table;
}

/// Appends the bytes of `path` ("-": standard input).
void append_bytes(const std::string& path, std::string& text) {
  const auto fail = [&](const char* why) { return UserError(format("cannot read '{}' ({}); give a text file", path, why)); };
  if (std::filesystem::is_directory(path)) throw fail("it is a folder");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> opened(path == "-" ? nullptr : std::fopen(path.c_str(), "rb"),
                                                               [](std::FILE* file) { return std::fclose(file); });
  std::FILE* const file = path == "-" ? stdin : opened.get();
  if (file == nullptr) throw fail(std::strerror(errno));
  const std::size_t before = text.size();
  std::vector<char> piece(std::size_t{1} << 20);
  while (const std::size_t got = std::fread(piece.data(), 1, piece.size(), file)) text.append(piece.data(), got);
  if (std::ferror(file)) throw fail(std::strerror(errno));
  if (text.size() == before) throw fail("it is empty");
}

/// Where the tail starts: about `fraction` of the text from its end, not inside a UTF-8 character.
std::size_t start_of_tail(std::string_view text, double fraction) {
  auto start = text.size() - static_cast<std::size_t>(std::llround(fraction * static_cast<double>(text.size())));
  const auto continues = [&](std::size_t i) { return i < text.size() && (text[i] & 0xC0) == 0x80; };
  for (int i = 0; i < 3 && start > 0 && continues(start); ++i) --start;
  return start;
}

/// Says of text that is not UTF-8 what becomes of it.
void warn_of_replacements(std::string_view text) {
  const std::size_t first = valid_until(text);
  if (first == text.size()) return;
  std::size_t replaced = 0;
  with_replacements(text.substr(first), &replaced);
  print_warnings(
      {format("the text is not UTF-8 throughout ({} times it is not, first after {} bytes); tokens are made as if U+FFFD "
              "stood there, as other programs do; look whether it is in another encoding",
              replaced, first)});
}

/// Returns how many there were.
std::size_t write_tokens(const Tokenizer& tokenizer, std::string_view text, const std::filesystem::path& out) {
  const std::vector<TokenId> ids = tokenizer.encode(text);
  if (tokenizer.vocab_size() <= std::size_t{1} << 16) {
    write_token_file(out, std::vector<std::uint16_t>(ids.begin(), ids.end()));
  } else {
    write_token_file(out, std::vector<std::uint32_t>(ids.begin(), ids.end()));
  }
  return ids.size();
}

bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code none;
  return std::filesystem::equivalent(a, b, none) ||
         std::filesystem::weakly_canonical(a, none) == std::filesystem::weakly_canonical(b, none);
}

/// Where --train-bpe writes.
std::filesystem::path new_tokenizer(const TokenizeOptions& options, const OptionTable& table) {
  if (!table.given("tokenizer"))
    throw UserError("--train-bpe without --tokenizer (the tokenizer that is learned would be lost); give --tokenizer FILE");
  std::filesystem::path path = options.tokenizer;
  if (path.extension() != ".json") path /= "tokenizer.json";
  if (kind_of(path) != PathKind::missing)
    throw UserError(
        format("'{}' is there already (what was tokenized with it would lose its tokenizer); give another --tokenizer, or "
               "leave --train-bpe out to use it",
               path.string()));
  return path;
}

/// Learns a tokenizer from the text and writes it.
void train_tokenizer(const std::filesystem::path& path, std::size_t vocab_size, std::string_view text) {
  BpeTrainer trainer(vocab_size, {"<|endoftext|>"});
  trainer.add(text);
  const nlohmann::ordered_json learned = trainer.train();
  std::error_code ignored;  // writing says so
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), ignored);
  write_text_file_durably(path, json_text(learned, 1) + "\n");
  const std::size_t tokens = learned["model"]["vocab"].size();
  fmt::print("{}: {} tokens{}\n", path.string(), tokens,
             tokens < vocab_size ? format(" (not {}: no other neighbours are in the text twice)", vocab_size) : "");
}

int tokenize(const TokenizeOptions& options, const OptionTable& table) {
  if (options.texts.empty())
    throw UserError("no text (there is nothing to tokenize); give at least one file, or - for standard input");
  if (options.out.empty()) throw UserError("no --out (there is nowhere to write to); give --out FILE");
  if (table.given("valid-fraction") && options.valid_out.empty())
    throw UserError("--valid-fraction without --valid-out (nothing is held out); give --valid-out FILE too");
  if (!options.valid_out.empty() && same_file(options.out, options.valid_out))
    throw UserError("--out and --valid-out are the same file (one would replace the other); give two names");
  bool stdin_used = false;
  for (const std::string& text : options.texts) {
    if (text == "-") {
      if (stdin_used) throw UserError("standard input is given twice (it can be read once); give '-' once");
      stdin_used = true;
      continue;
    }
    for (const auto& out : {options.out, options.valid_out})
      if (!out.empty() && same_file(text, out))
        throw UserError(
            format("'{}' is both text and output (the text would be lost); give another name for the output", text));
  }

  const std::filesystem::path learned = options.train_bpe > 0 ? new_tokenizer(options, table) : "";
  std::unique_ptr<Tokenizer> tokenizer = options.train_bpe > 0 ? nullptr : open_tokenizer(options.tokenizer);
  std::string text;
  for (const std::string& path : options.texts) append_bytes(path, text);
  if (!tokenizer || tokenizer->needs_utf8()) warn_of_replacements(text);
  const std::string_view all = text;
  const std::size_t cut = options.valid_out.empty() ? text.size() : start_of_tail(text, options.valid_fraction);
  if (!options.valid_out.empty() && (cut < 2 || text.size() - cut < 2))
    throw UserError(format(
        "{} bytes cannot be divided into {:g} and the rest (each part needs at least two tokens); use more text or another "
        "--valid-fraction",
        text.size(), options.valid_fraction));
  if (!tokenizer) {
    train_tokenizer(learned, options.train_bpe, all.substr(0, cut));
    tokenizer = open_tokenizer(learned.string());
  }
  const std::size_t tokens = write_tokens(*tokenizer, all.substr(0, cut), options.out);
  fmt::print("{}: {} tokens (vocabulary {})\n", options.out.string(), tokens, tokenizer->vocab_size());
  if (!options.valid_out.empty()) {
    const std::size_t held_out = write_tokens(*tokenizer, all.substr(cut), options.valid_out);
    fmt::print("{}: {} tokens, the last {:.2f} % of the text\n", options.valid_out.string(), held_out,
               100.0 * static_cast<double>(text.size() - cut) / static_cast<double>(text.size()));
  }
  return exit_code::done;
}

}  // namespace

int main(int argc, char** argv) {
  TokenizeOptions options;
  OptionTable table = tokenize_option_table(options);
  return run_program(argc, argv, table, [&] { return tokenize(options, table); });
}
