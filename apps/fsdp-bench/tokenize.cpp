#include "fsdp-bench/tokenize.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/timer.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "fsdp-bench/support.hpp"
#include "text/parallel_encoder.hpp"
#include "text/tokenizer.hpp"

namespace fsdp {

namespace {

constexpr std::size_t most_text = std::size_t{64} << 20;
constexpr std::size_t piece_bytes = std::size_t{64} << 10;

/// Texts as Python writes them in a list.
std::string python_list(const std::vector<std::string>& texts) { return json_text(nlohmann::json(texts)); }

}  // namespace

std::string bench_tokenize(const BenchOptions& options, const Communicator& world) {
  if (world.size() > 1) throw UserError("fsdp-bench tokenize measures one process (there are more ranks); start one rank");
  if (options.texts.empty()) throw UserError("fsdp-bench tokenize needs a text; give files behind the options");
  const auto tokenizer = open_tokenizer(options.tokenizer);
  const std::filesystem::path file = find_tokenizer(options.tokenizer);
  std::string text;
  std::vector<std::string> paths;
  for (const std::string& path : options.texts) {
    text += read_text_file(path, most_text);
    paths.push_back(std::filesystem::absolute(path).string());
  }
  // Pieces where the text can be cut: documents, as it were.
  std::vector<std::string> pieces;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t size = text.size() - begin;
    if (size > piece_bytes)
      if (const std::size_t cut = last_cut(std::string_view(text).substr(begin, piece_bytes), 0, tokenizer->cuts()); cut > 0)
        size = cut;
    pieces.push_back(text.substr(begin, size));
    begin += size;
  }
  std::vector<std::size_t> sizes, threads;
  for (const std::string& piece : pieces) sizes.push_back(piece.size());
  const std::size_t most = options.threads > 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency());
  for (std::size_t n = 1; n < most; n *= 2) threads.push_back(n);
  threads.push_back(most);

  std::optional<PythonProcess> theirs;
  std::string why_not;
  if (file.extension() != ".json") {
    why_not = "it reads tokenizer.json alone";
  } else {
    const char* const found = std::getenv("FSDP_PYTHON");
    const std::filesystem::path python = !options.python.empty() ? options.python : found && *found ? found : "python3";
    try {
      theirs.emplace(python,
                     format("tokenizer, texts, sizes = {}[0], {}, [{}]\n{}", python_list({file.string()}), python_list(paths),
                            fmt::join(sizes, ","), hugging_face_tokenize_py),
                     "tokenizers");
    } catch (const UserError&) {
      if (!options.python.empty()) throw;
      why_not = format("{} has no package tokenizers", python.string());
    }
  }

  std::size_t tokens = 0, their_tokens = 0;
  std::vector<std::vector<double>> seconds(threads.size());
  std::vector<double> their_seconds;
  for (std::size_t round = 0; round < options.steps + 1; ++round) {  // the first does not count
    for (std::size_t i = 0; i < threads.size(); ++i) {
      const Timer timer;
      tokens = 0;
      ParallelEncoder encoder(*tokenizer, threads[i], [&](const EncodedPiece& piece) { tokens += piece.ids.size(); });
      for (const std::string& piece : pieces) encoder.add({.text = piece});
      encoder.finish();
      if (round > 0) seconds[i].push_back(timer.seconds());
    }
    if (!theirs) continue;
    double time = 0;
    const std::string answer = theirs->ask("go");
    if (std::sscanf(answer.c_str(), "%lf %zu", &time, &their_tokens) != 2)
      throw RunError(format("Python's answer is no measurement ({}); look at its messages above", excerpt(answer)));
    if (round > 0) their_seconds.push_back(time);
  }

  const auto bytes = static_cast<double>(text.size());
  nlohmann::json json = {{"tokenizer", tokenizer->description()},
                         {"bytes", text.size()},
                         {"tokens", tokens},
                         {"pieces", pieces.size()},
                         {"threads", nlohmann::json::array()}};
  std::string out = format("{}; {} in {} pieces, {} tokens; medians of {}, in turn\n", tokenizer->description(),
                           format_bytes(bytes), pieces.size(), format_count(static_cast<double>(tokens)), options.steps);
  const double one = median(seconds[0]);
  for (std::size_t i = 0; i < threads.size(); ++i) {
    const double rate = bytes / median(seconds[i]);
    out += format("{:>4} thread{}  {:>7.1f} MB/s  {:.2f} times one\n", threads[i], threads[i] == 1 ? " " : "s", rate / 1e6,
                  one / median(seconds[i]));
    json["threads"].push_back({{"threads", threads[i]}, {"bytes_per_second", rate}});
  }
  if (theirs) {
    const double their_time = median(their_seconds);
    out +=
        format("Hugging Face tokenizers {}, one thread: {:.1f} MB/s, {} tokens{}; ours by one thread is {:.2f} times as fast\n",
               theirs->version(), bytes / their_time / 1e6, format_count(static_cast<double>(their_tokens)),
               their_tokens == tokens ? " as ours" : ", which is not our number", their_time / one);
    json["hugging_face"] = {{"version", theirs->version()},
                            {"bytes_per_second", bytes / their_time},
                            {"tokens", their_tokens},
                            {"ratio", their_time / one}};
  } else {
    out += format("Hugging Face tokenizers: not run ({})\n", why_not);
    json["hugging_face"] = nullptr;
  }
  return options.json ? json.dump() + "\n" : out;
}

}  // namespace fsdp
