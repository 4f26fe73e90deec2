// Text to token files. The tokens of `bytes` are the UTF-8 bytes themselves: a vocabulary of 256 that needs no file. The texts
// are joined in the order given; the held-out part is their tail, so that nothing of it is seen in training.
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
#include "data/token_file.hpp"
#include "train/common_options.hpp"
#include "train/program.hpp"

using namespace fsdp;

namespace {

struct TokenizeOptions {
  std::vector<std::string> texts;
  std::string tokenizer = "bytes";
  std::filesystem::path out, valid_out;
  double valid_fraction = 0.05;
};

OptionTable tokenize_option_table(TokenizeOptions& o) {
  OptionTable table("fsdp-tokenize", "TEXT... --out FILE [options]",
                    "Makes token files for fsdp-train from texts, in llm.c's format. Several texts are joined in the order "
                    "given, with nothing between "
                    "them.");
  table.group("Input");
  table.list("text", "TEXT", o.texts, "Files to read; '-' is standard input.").positional().required();
  table.choice<std::string>("tokenizer", o.tokenizer, {{"bytes", "bytes"}},
                            "bytes: every UTF-8 byte is a token, 0 to 255. Train with --vocab-size 256.");
  table.group("Output");
  table.path("out", "FILE", o.out, "Token file to write.").required();
  table.path("valid-out", "FILE", o.valid_out, "Token file for a held-out part: the tail of the text.")
      .unset("nothing is held out");
  table.number("valid-fraction", "PART", o.valid_fraction, "Part of the text that is held out with --valid-out.",
               "between 0 and 1", [](double x) { return x > 0 && x < 1; });
  return table;
}

/// Appends the bytes of `path` ("-": standard input).
void append_bytes(const std::string& path, std::vector<std::uint16_t>& tokens) {
  const auto fail = [&](const char* why) { return UserError(format("cannot read '{}' ({}); give a text file", path, why)); };
  if (std::filesystem::is_directory(path)) throw fail("it is a folder");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> opened(path == "-" ? nullptr : std::fopen(path.c_str(), "rb"),
                                                               [](std::FILE* file) { return std::fclose(file); });
  std::FILE* const file = path == "-" ? stdin : opened.get();
  if (file == nullptr) throw fail(std::strerror(errno));
  const std::size_t before = tokens.size();
  std::vector<unsigned char> piece(std::size_t{1} << 20);
  while (const std::size_t got = std::fread(piece.data(), 1, piece.size(), file))
    tokens.insert(tokens.end(), piece.data(), piece.data() + got);
  if (std::ferror(file)) throw fail(std::strerror(errno));
  if (tokens.size() == before) throw fail("it is empty");
}

/// Where the tail starts: about `fraction` of the text from its end, not inside a UTF-8 character.
std::size_t start_of_tail(const std::vector<std::uint16_t>& tokens, double fraction) {
  auto start = tokens.size() - static_cast<std::size_t>(std::llround(fraction * static_cast<double>(tokens.size())));
  const auto continues = [&](std::size_t i) { return i < tokens.size() && (tokens[i] & 0xC0) == 0x80; };
  for (int i = 0; i < 3 && start > 0 && continues(start); ++i) --start;
  return start;
}

bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code none;
  return std::filesystem::equivalent(a, b, none) ||
         std::filesystem::weakly_canonical(a, none) == std::filesystem::weakly_canonical(b, none);
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

  std::vector<std::uint16_t> tokens;
  for (const std::string& text : options.texts) append_bytes(text, tokens);
  const std::span<const std::uint16_t> all(tokens);
  const std::size_t cut = options.valid_out.empty() ? tokens.size() : start_of_tail(tokens, options.valid_fraction);
  if (!options.valid_out.empty() && (cut < 2 || tokens.size() - cut < 2))
    throw UserError(format(
        "{} bytes cannot be divided into {:g} and the rest (each part needs at least two tokens); use more text or another "
        "--valid-fraction",
        tokens.size(), options.valid_fraction));
  write_token_file(options.out, all.first(cut));
  fmt::print("{}: {} tokens (vocabulary 256)\n", options.out.string(), cut);
  if (!options.valid_out.empty()) {
    write_token_file(options.valid_out, all.subspan(cut));
    fmt::print("{}: {} tokens, the last {:.2f} % of the text\n", options.valid_out.string(), tokens.size() - cut,
               100.0 * static_cast<double>(tokens.size() - cut) / static_cast<double>(tokens.size()));
  }
  return exit_code::done;
}

}  // namespace

int main(int argc, char** argv) {
  TokenizeOptions options;
  OptionTable table = tokenize_option_table(options);
  return run_program(argc, argv, table, [&] { return tokenize(options, table); });
}
