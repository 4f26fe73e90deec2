#include "fuzz/targets.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/options.hpp"
#include "base/system.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/save_lock.hpp"
#include "checkpoint/stored.hpp"
#include "checkpoint/support.hpp"
#include "data/questions.hpp"
#include "data/samples.hpp"
#include "data/tokenize_job.hpp"
#include "files/checksum.hpp"
#include "files/json.hpp"
#include "h5/h5.hpp"
#include "nn/parameters.hpp"
#include "options/options.hpp"
#include "support/tokens.hpp"
#include "text/chat_template.hpp"
#include "text/json_reader.hpp"
#include "text/tokenizer.hpp"
#include "text/utf8.hpp"

namespace fsdp::fuzz {

namespace {

namespace fs = std::filesystem;

/// Does not use a stream, which would take half of the time. The same holds for the next function.
std::string read_file(const fs::path& path) {
  std::string bytes(fs::file_size(path), '\0');
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool is_read = fd >= 0 && ::read(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  if (fd >= 0) ::close(fd);
  if (!is_read) throw std::runtime_error("cannot read " + path.string());
  return bytes;
}

void write_file(const fs::path& path, std::string_view bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const bool written = fd >= 0 && ::write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  if (fd >= 0) ::close(fd);
  if (!written) throw std::runtime_error("cannot write " + path.string());
}

void require(bool ok, const std::string& otherwise) {
  if (!ok) throw Believed(otherwise);
}

/// Returns true if `work` throws one of the exceptions with which a reader refuses a file.
template <class Work>
bool is_refused(Work&& work) {
  try {
    work();
    return false;
  } catch (const UserError&) {
    return true;
  } catch (const CallError&) {
    return true;
  }
}

// --- the contents of a source of tensors ---

constexpr std::size_t piece_elements = std::size_t{1} << 16;

/// The tensors that were read: their elements as bytes, by name.
struct Contents {
  std::map<std::string, std::string> tensors;
  std::string header;
  bool complete = false;  // nothing was refused
};

/// Selects what to read of a source, depending on the bytes of the mutant. So a million mutants read one tensor each, instead
/// of twenty thousand mutants that read all tensors.
struct Choice {
  std::optional<std::uint64_t> of;  // empty: all tensors

  Verify verify() const { return !of || *of % 7 < 5 ? Verify::yes : Verify::no; }
  bool all() const { return !of || *of / 7 % 13 == 0; }
  /// Returns true if the step is first searched for in its save folder; both ways read the whole marker.
  bool looks_for() const { return !of || (*of >> 32) % 4 == 0; }
  /// Returns the range of chosen tensors among n.
  Range tensors(std::size_t n) const {
    if (all() || n == 0) return {0, n};
    const std::size_t begin = *of / 91 % n;
    return {begin, begin + 1};
  }
};

Choice choice_for(std::string_view bytes) { return {checksum(bytes.data(), bytes.size())}; }

/// Reads a tensor in pieces, as programs do: a file may say that it has any number of elements.
std::string elements_of(const TensorSource& source, const std::string& state, const std::string& name) {
  const std::size_t n = numel(source.state_shape(state, name));
  std::string bytes;
  std::vector<float> piece(std::min(n, piece_elements));
  for (std::size_t at = 0; at < n; at += piece.size()) {
    const Range range{at, std::min(n, at + piece.size())};
    source.read_state(state, name, range, piece.data());
    if (n <= piece_elements) bytes.assign(reinterpret_cast<const char*>(piece.data()), range.size() * sizeof(float));
  }
  return bytes;
}

/// Reads the chosen tensors, also after one of them is refused.
Contents contents_of(const TensorSource& source, Choice choice) {
  Contents found;
  found.complete = true;
  found.header = json_text(config_to_json(source.config()));
  const std::vector<std::string> states = source.states(), names = source.names();
  const Range chosen = choice.tensors(states.size() * names.size());
  for (std::size_t i = chosen.begin; i < chosen.end; ++i) {
    const std::string &state = states[i / names.size()], &name = names[i % names.size()];
    const bool refused = is_refused([&] {
      if (source.has_state(state, name)) found.tensors[state + "/" + name] = elements_of(source, state, name);
    });
    if (refused) found.complete = false;
  }
  const auto mismatch = [&] { find_mismatch(source, list_parameters(source.config()).parameters); };
  if (choice.all() && is_refused(mismatch)) found.complete = false;
  return found;
}

/// Returns a checkpoint's metadata without the norms, which are in the marker.
std::string header_of(const CheckpointReader& reader) {
  const CheckpointHeader& header = reader.header();
  const Progress& p = header.progress;
  return json_text(nlohmann::json{{"config", header.model.to_json()},
                                  {"update", p.update},
                                  {"tokens", p.tokens},
                                  {"sequences", p.data.sequences},
                                  {"began", p.optimizer_began},
                                  {"seed", p.data.seed},
                                  {"strategy", header.strategy},
                                  {"ranks", header.world_size},
                                  {"shards", header.shards},
                                  {"optimizer", header.optimizer},
                                  {"options", header.options_json},
                                  {"states", reader.states()}});
}

std::string norms_of(const CheckpointReader& reader) {
  std::string text;
  for (const std::string& state : reader.states())
    for (const std::string& name : reader.names())
      if (const auto norm = reader.norm(state, name)) text += format("{}/{} {}\n", state, name, *norm);
  return text;
}

/// Checks that every tensor that was read is in `expected`, with the same elements.
void require_same(const Contents& expected, const Contents& found, Choice choice) {
  for (const auto& [name, elements] : found.tensors) {
    const auto same = expected.tensors.find(name);
    require(same != expected.tensors.end(), "there is no tensor " + name + ", and it was read");
    require(same->second == elements, "wrong elements of " + name + " were read");
  }
  require(!found.complete || !choice.all() || found.tensors.size() == expected.tensors.size(),
          "tensors are missing, and nothing says so");
}

// --- the folders of the files ---

TransformerConfig tiny_config() {
  TransformerConfig config = test::gpt2_config();
  config.layers = 1;
  config.width = 6;
  config.head_size = 2;
  config.ffn_width = 7;
  return config;
}

/// A step of two ranks.
fs::path make_step(const fs::path& folder) {
  test::Run run;
  run.config = tiny_config();
  return test::save(folder / "saves", run);
}

// --- checkpoints ---

/// Uses a step like the programs: finds it, opens it, reads it, verifies its checksums.
bool reads_step(const fs::path& step, Choice choice, Contents& found, std::string& norms) {
  bool complete = true;
  const bool refused = is_refused([&] {
    if (choice.looks_for()) latest_checkpoint(step.parent_path());
    const auto reader = CheckpointReader::open(step, choice.verify());
    found = contents_of(*reader, choice);
    found.header = header_of(*reader);
    norms = norms_of(*reader);
    complete = found.complete && (!choice.all() || (!is_refused([&] { reader->verify(0, 1); }) &&
                                                    !is_refused([&] { verify_norms(*reader, reader->states()); })));
  });
  return !refused && complete;
}

/// A target for one file of a step. The reader must accept only its original bytes.
Target step_target(const fs::path& step, const std::string& file) {
  struct Original {
    Contents contents;
    std::string norms;
  };
  auto original = std::make_shared<Original>();
  Target target;
  target.corpus = {read_file(step / file)};
  target.is_text = file == stored::marker_name;
  if (!reads_step(step, {}, original->contents, original->norms)) throw std::logic_error("the step is not readable");
  target.accepts = [=](std::string_view bytes) {
    write_file(step / file, bytes);
    const Choice choice = choice_for(bytes);
    Contents found;
    std::string norms;
    const bool accepted = reads_step(step, choice, found, norms);
    if (choice.verify() == Verify::no) return accepted;
    require_same(original->contents, found, choice);
    require(found.header.empty() || found.header == original->contents.header, "another header was read");
    require(!accepted || norms == original->norms, "other norms were read");
    return accepted;
  };
  return target;
}

Target make_marker(const fs::path& folder) { return step_target(make_step(folder), stored::marker_name); }
Target make_index(const fs::path& folder) { return step_target(make_step(folder), stored::index_name); }
Target make_rank_file(const fs::path& folder) { return step_target(make_step(folder), stored::rank_file_name(1, 2)); }

// --- consolidated files ---

std::string consolidated(const fs::path& folder, const ConsolidateOptions& options) {
  consolidate(*CheckpointReader::open(make_step(folder)), folder / "made.h5", options);
  const std::string bytes = read_file(folder / "made.h5");
  fs::remove_all(folder / "saves");
  fs::remove(folder / "made.h5");
  return bytes;
}

Contents contents_of_source(const fs::path& path, Choice choice = {}) {
  Contents found;
  is_refused([&] { found = contents_of(*open_tensor_source(path, nullptr, choice.verify()), choice); });
  return found;
}

/// Returns true if HDF5 would read damaged bytes, on which it may crash (docs/reliability.md).
bool is_unsealed(const fs::path& file) {
  try {
    return h5::File::looks_like_hdf5(file) && !CheckedFile(file).is_checked();
  } catch (const std::exception&) {  // a broken seal, which the reader must find
    return false;
  }
}

Target make_consolidated(const fs::path& folder) {
  Target target;
  target.corpus = {consolidated(folder, {}), consolidated(folder, {.type = DType::bf16, .with_optimizer = true})};
  std::vector<Contents> originals;
  for (const std::string& bytes : target.corpus) {
    write_file(folder / "model.h5", bytes);
    originals.push_back(contents_of_source(folder / "model.h5"));
  }
  target.accepts = [=](std::string_view bytes) {
    write_file(folder / "model.h5", bytes);
    if (is_unsealed(folder / "model.h5")) return false;
    const Choice choice = choice_for(bytes);
    const Contents found = contents_of_source(folder / "model.h5", choice);
    if (choice.verify() == Verify::no) return found.complete;
    // A file without a seal and without the attribute `checksums` may be from another program.
    const bool has_checksums = bytes.find("checksums") != bytes.npos;
    const bool is_one = std::any_of(originals.begin(), originals.end(), [&](const Contents& original) {
      return std::includes(original.tensors.begin(), original.tensors.end(), found.tensors.begin(), found.tensors.end()) &&
             (!found.complete || !choice.all() || original.tensors.size() == found.tensors.size()) &&
             original.header == found.header;
    });
    require(found.tensors.empty() || !has_checksums || is_one, "a file is believed that nobody wrote");
    return found.complete;
  };
  return target;
}

// --- Hugging Face folders ---

/// Makes folder/model, with several files if `options` request that.
fs::path make_model(const fs::path& folder, ConsolidateOptions options = {}) {
  options.format = &safetensors_format();
  consolidate(*CheckpointReader::open(make_step(folder)), folder / "model", options);
  fs::remove_all(folder / "saves");
  return folder / "model";
}

/// A target for one file of such a folder. `is_checked`: the reader must notice every change.
Target model_target(const fs::path& model, const std::string& file, std::vector<std::string> corpus, bool is_checked) {
  const Contents original = contents_of_source(model);
  if (!original.complete) throw std::logic_error("the model is not readable");
  Target target;
  target.corpus = std::move(corpus);
  target.is_text = file.ends_with(".json");
  target.accepts = [=](std::string_view bytes) {
    write_file(model / file, bytes);
    const Choice choice = choice_for(bytes);
    const Contents found = contents_of_source(model, choice);
    if (is_checked && choice.verify() == Verify::yes) require_same(original, found, choice);
    return found.complete;
  };
  return target;
}

Target make_safetensors(const fs::path& folder) {
  std::vector<std::string> corpus;
  for (const DType type : {DType::f16, DType::bf16, DType::f32}) {
    fs::remove_all(folder / "model");
    corpus.push_back(read_file(make_model(folder, {.type = type}) / "model.safetensors"));
  }
  fs::remove(folder / "model" / "model.safetensors.xxh3");
  return model_target(folder / "model", "model.safetensors", corpus, false);
}

Target make_optimizer_safetensors(const fs::path& folder) {
  const fs::path model = make_model(folder, {.with_optimizer = true});
  fs::remove(model / "optimizer.safetensors.xxh3");
  return model_target(model, "optimizer.safetensors", {read_file(model / "optimizer.safetensors")}, false);
}

Target make_sealed_safetensors(const fs::path& folder) {
  const fs::path model = make_model(folder);
  return model_target(model, "model.safetensors", {read_file(model / "model.safetensors")}, true);
}

Target make_safetensors_seal(const fs::path& folder) {
  const fs::path model = make_model(folder);
  return model_target(model, "model.safetensors.xxh3", {read_file(model / "model.safetensors.xxh3")}, true);
}

/// An index of tensors: tensors that are found must be right, but some may be missing.
Target make_weight_index(const fs::path& folder) {
  const fs::path model = make_model(folder, {.max_shard_bytes = 1500});
  const fs::path index = model / "model.safetensors.index.json";
  return model_target(model, index.filename().string(), {read_file(index)}, true);
}

/// Checks that a configuration is the same after it is written and read back.
void require_same_when_written(const TransformerConfig& config) {
  require(config_from_json(parse_json(json_text(config_to_json(config)))) == config,
          "a configuration is not what is written of it");
}

Target make_config_json(const fs::path& folder) {
  const fs::path model = make_model(folder);
  const Contents original = contents_of_source(model);
  Target target;
  target.is_text = true;
  target.corpus = {read_file(model / "config.json"), json_text(config_to_json(tiny_config()))};
  target.accepts = [=](std::string_view bytes) {
    write_file(model / "config.json", bytes);
    is_refused([&] {
      const TransformerConfig config = read_config(model);
      require_same_when_written(config);
    });
    const Choice choice = choice_for(bytes);
    const Contents found = contents_of_source(model, choice);
    if (choice.verify() == Verify::no) return found.complete;
    for (const auto& [name, elements] : found.tensors)
      if (const auto same = original.tensors.find(name); same != original.tensors.end())
        require(same->second == elements, "wrong elements of " + name + " were read");
    return found.complete;
  };
  return target;
}

/// Models of the other families; only their configurations are read.
Target make_llama_config(const fs::path& folder) {
  TransformerConfig config = test::llama_config();
  Target target;
  target.is_text = true;
  target.corpus = {json_text(config_to_json(config), 1)};
  config.rope = {.kind = RopeKind::llama3, .theta = 500000, .factor = 8, .original_positions = 8};
  target.corpus.push_back(json_text(config_to_json(config)));
  for (const Family* family : families()) {
    TransformerConfig small = config_from_json({{"model_type", family->model_type}});
    small.layers = 1;
    target.corpus.push_back(json_text(config_to_json(small)));
  }
  target.accepts = [=](std::string_view bytes) {
    write_file(folder / "config.json", bytes);
    return !is_refused([&] {
      const TransformerConfig read = read_config(folder);
      list_parameters(read);
      require_same_when_written(read);
    });
  };
  return target;
}

// --- data ---

/// Reads a whole token file.
void read_all_tokens(const fs::path& path) {
  constexpr std::size_t vocabulary = 256, T = 7, parts = 3;
  for (const BreakMode mode : {BreakMode::none, BreakMode::complete, BreakMode::eos}) {
    auto tokens = open_token_file(path);
    if (mode == BreakMode::complete && !tokens->has_documents()) continue;
    if (tokens->size() > 100'000) return;  // an HDF5 file may declare any number of tokens, all of them 0
    for (std::size_t part = 0; part < parts; ++part) check_vocabulary(*tokens, vocabulary, part, parts);
    const std::uint64_t all = tokens->size();
    const Samples file(std::move(tokens), {T, mode, mode == BreakMode::eos ? std::optional<std::size_t>(3) : std::nullopt});
    require(file.targets() < std::max<std::uint64_t>(all, 1), "more targets than tokens");
    std::vector<std::int32_t> inputs(T), targets(T);
    for (std::size_t k = 0; k <= file.count(); ++k) {
      file.read(k, vocabulary, inputs.data(), targets.data());
      for (std::size_t t = 0; t < T; ++t)
        require(inputs[t] >= 0 && inputs[t] < static_cast<int>(vocabulary) && targets[t] < static_cast<int>(vocabulary),
                "a token outside the vocabulary");
    }
  }
}

/// The index of 60 tokens of 16 bits, as Megatron and fairseq write it.
Target make_token_index(const fs::path& folder) {
  std::string data;
  for (int i = 0; i < 60; ++i) data += {static_cast<char>(i % 7), '\0'};
  write_file(folder / "d.bin", data);
  const auto index = [](bool is_megatron) {
    std::string bytes("MMIDIDX\0\0\1\0\0\0\0\0\0\0\10", 18);
    const auto put = [&](auto value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); };
    const std::int32_t lengths[] = {10, 0, 20, 30};
    put(std::uint64_t{4});
    if (is_megatron) put(std::uint64_t{3});
    for (const std::int32_t length : lengths) put(length);
    for (const std::int64_t start : {0, 20, 20, 60}) put(start);
    if (is_megatron)
      for (const std::int64_t document : {0, 2, 4}) put(document);
    return bytes;
  };
  Target target;
  target.corpus = {index(true), index(false)};
  target.accepts = [=](std::string_view bytes) {
    write_file(folder / "d.idx", bytes);
    return !is_refused([&] {
      read_all_tokens(folder / "d.idx");
      require(open_token_file(folder / "d.idx")->size() * 2 == data.size() || bytes[17] != '\10', "another number of tokens");
    });
  };
  return target;
}

/// Questions as JSON and in llm.c's format; each byte is a token.
Target make_questions(const fs::path& folder) {
  std::string binary(1024, '\0');
  const std::int32_t header[] = {20240522, 1, 2};
  std::copy_n(reinterpret_cast<const char*>(header), sizeof header, binary.begin());
  for (const std::uint16_t index : {0, 1})
    for (const std::uint16_t word : {65535, 2 * 12, int{index}, 1, 2, 2, 7, 8, 1, 9, 1, 10})
      binary.append(reinterpret_cast<const char*>(&word), sizeof word);
  Target target;
  target.corpus = {
      "{\"context\": \"a b \", \"choices\": [\"c\", \"d e\"], \"answer\": 1}\n\n"
      "{\"context\": \"\\u00e9\", \"choices\": [\"x\", \"y\", \"z\"], \"answer\": 0}\n",
      binary};
  const std::shared_ptr<const Tokenizer> tokenizer = make_byte_tokenizer();
  target.accepts = [=](std::string_view bytes) {
    write_file(folder / "questions", bytes);
    return !is_refused([&] {
      for (const Question& question : read_questions(folder / "questions", tokenizer.get(), 256)) {
        require(!question.context.empty() && question.answer < question.choices.size(), "a question without an answer");
        for (const auto& choice : question.choices)
          require(!choice.tokens.empty() && *std::max_element(choice.tokens.begin(), choice.tokens.end()) < 256,
                  "a choice without tokens, or with others");
      }
    });
  };
  return target;
}

Target make_token_file(const fs::path& folder) {
  std::vector<std::uint16_t> tokens(300);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint16_t>(i * 7 % 256);
  Target target;
  const fs::path path = folder / "tokens.bin";
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, tokens.size()}) {
    test::write_token_file(path, std::span(tokens).first(n));
    target.corpus.push_back(read_file(path));
  }
  const std::vector<std::uint32_t> wide(tokens.begin(), tokens.end());
  test::write_token_file(path, wide);
  target.corpus.push_back(read_file(path));
  target.accepts = [=](std::string_view bytes) {
    write_file(path, bytes);
    return !is_refused([&] {
      const Samples file(open_token_file(path), {7});
      const std::size_t token_bytes = read_file(path).substr(4, 1) == "\7" ? 4 : 2;  // the version
      require(1024 + token_bytes * file.tokens().size() == bytes.size(), "another number of tokens than there are");
      constexpr std::size_t vocabulary = 256, T = 7, parts = 3;
      for (std::size_t part = 0; part < parts; ++part) check_vocabulary(file.tokens(), vocabulary, part, parts);
      std::vector<std::int32_t> inputs(T), targets(T);
      for (std::size_t k = 0; k <= file.count(); ++k) {
        file.read(k, vocabulary, inputs.data(), targets.data());
        for (std::size_t t = 0; t < T; ++t)
          require(inputs[t] >= 0 && inputs[t] < static_cast<int>(vocabulary) && targets[t] < static_cast<int>(vocabulary),
                  "a token outside the vocabulary");
      }
    });
  };
  return target;
}

// --- tokenizers ---

/// Checks for any tokenizer that its ids are in its vocabulary, and that decoded texts are UTF-8.
void use_tokenizer(const Tokenizer& tokenizer, std::size_t most_ids) {
  for (const std::string_view text : {"It's  a <s> test\n\n of 1234 caf\u00e9s \u4e00\u4e8c \U0001f600", "\xff\xc3", ""}) {
    const auto ids = tokenizer.encode(text);
    for (const TokenId id : ids)
      require(id >= 0 && static_cast<std::size_t>(id) < tokenizer.vocab_size(), "an id that is no token");
    require(ids.size() < most_ids, format("{} tokens of {} bytes", ids.size(), text.size()));
    const std::string back = tokenizer.decode(ids);
    require(valid_until(back) == back.size(), "text that is not UTF-8");
  }
}

Target make_tokenizer_json(const fs::path& folder) {
  Target target;
  target.is_text = true;
  for (const char* const name : {"gpt2", "llama3", "nfkd", "added", "mistral", "unknown"}) {
    // Short, because changes to one of many similar tokens would test little.
    nlohmann::json json = parse_json(read_file(fs::path(FSDP_TEST_DATA) / "tokenizers" / (std::string(name) + ".json")));
    json["model"]["merges"].get_ref<nlohmann::json::array_t&>().resize(4);
    target.corpus.push_back(json_text(json));
  }
  const fs::path path = folder / "tokenizer.json";
  target.accepts = [=](std::string_view bytes) {
    write_file(path, bytes);
    return !is_refused([&] { use_tokenizer(*open_tokenizer(path.string()), 100'000); });
  };
  return target;
}

Target make_tokenizer_model(const fs::path& folder) {
  Target target;
  for (const char* const name : {"bpe.model", "unigram.model"})
    target.corpus.push_back(read_file(fs::path(FSDP_TEST_DATA) / "tokenizers" / name));
  const fs::path path = folder / "tokenizer.model";
  target.accepts = [=](std::string_view bytes) {
    write_file(path, bytes);
    return !is_refused([&] { use_tokenizer(*open_tokenizer(path.string()), 10'000'000); });
  };
  return target;
}

/// JSON as text data, in lines and other forms: all texts read must be UTF-8.
Target make_json_lines(const fs::path& folder) {
  Target target;
  target.is_text = true;
  target.corpus = {
      "{\"text\": \"a b\"}\n{\"id\": 7, \"text\": \"\\u00e9 \\ud83d\\ude00 \\n\"}\n\n{\"text\": \"\"}",
      "\xef\xbb\xbf{\"text\": \"\\ud83d \xff \\\\ud83d \\ude00\"}\r\n {\"x\": [1, {\"text\": 2}], \"text\": \"c\"}\n",
      "[{\"text\": \"a\"},\n {\"n\": NaN, \"text\": \"b\"}]\n", "{\n\"text\": \"a\"\n}\n{\"text\": \"b\"}"};
  const fs::path path = folder / "lines.jsonl";
  target.accepts = [=](std::string_view bytes) {
    write_file(path, bytes);
    if (bytes.empty()) return false;
    const auto read = [&](bool skip_invalid) {
      TextSource text({path.string()});
      JsonPieces pieces(text, 0, std::nullopt, "text", nullptr, skip_invalid);
      std::uint64_t end = 0;
      for (TextPiece piece; pieces.next(piece); end = piece.end) {
        require(valid_until(piece.text) == piece.text.size(), "text that is not UTF-8");
        require(piece.end > end && piece.end <= bytes.size(), "a line that ends where it cannot");
      }
    };
    const bool is_whole = !is_refused([&] { read(true); });  // an array is refused if its next element cannot be found
    const bool is_right = !is_refused([&] { read(false); });
    require(is_whole || !is_right, "text that is refused because bad lines are left out");
    return is_right;
  };
  return target;
}

void require_answers_in(const ChatText& chat) {
  std::size_t end = 0;
  for (const TextSpan& answer : chat.answers) {
    require(end <= answer.begin && answer.begin <= answer.end && answer.end <= chat.text.size(),
            "an answer outside of its text");
    end = answer.end;
  }
}

/// Chat templates, which are programs: none may crash, or take more than its limits.
Target make_chat_template(const fs::path&) {
  Target target;
  target.is_text = true;
  for (const auto& entry : fs::directory_iterator(fs::path(FSDP_TEST_DATA) / "chat_templates"))
    target.corpus.push_back(read_file(entry.path()));
  std::sort(target.corpus.begin(), target.corpus.end());
  Conversation plain;
  plain.add("user", " Who? ");
  plain.add("assistant", "Me.", true);
  Conversation with_tools = plain;
  with_tools.messages[1]["tool_calls"] =
      nlohmann::ordered_json::parse(R"([{"id": "123456789", "function": {"name": "f", "arguments": {"a": [1, 2.5]}}}])");
  with_tools.messages.push_back({{"role", "tool"}, {"tool_call_id", "123456789"}, {"content", "7"}});
  with_tools.is_answer.push_back(false);
  with_tools.tools = nlohmann::ordered_json::parse(
      R"([{"function": {"name": "f", "description": "F.", "parameters": {"type": "object", "properties":
          {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]}}}])");
  target.accepts = [plain, with_tools](std::string_view bytes) {
    return !is_refused([&] {
      const ChatTemplate chat("t", std::string(bytes), {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
      chat.render(plain);
      for (const Conversation* const one : {&plain, &with_tools})
        is_refused([&] {
          const ChatText whole = chat.render_whole(*one);
          require_answers_in(whole);
          require(valid_until(bytes) < bytes.size() || valid_until(whole.text) == whole.text.size(), "text that is not UTF-8");
        });
    });
  };
  return target;
}

/// A line of JSON with a conversation.
Target make_conversation(const fs::path&) {
  Target target;
  target.is_text = true;
  target.corpus = {
      R"({"messages": [{"role": "system", "content": "Be."}, {"role": "user", "content": "W\u00e9 ?"}, {"role": "assistant", "content": " Me. "}]})",
      R"({"prompt": [{"role": "user", "content": "Who?"}], "completion": [{"role": "assistant", "content": "Me."}]})",
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"b": 1e3}}}]}], "tools": [{"function": {"name": "f"}}], "chat_template_kwargs": {"c": null}})",
      R"({"id": 7, "prompt": "Who? ", "completion": "Me.\ud83d\ude00"})"};
  const auto chat =
      std::make_shared<ChatTemplate>("t", read_file(fs::path(FSDP_TEST_DATA) / "chat_templates" / "granite-tools.jinja"));
  target.accepts = [chat](std::string_view bytes) {
    std::string problem;
    std::set<std::string> unused;
    ChatText text;
    const nlohmann::ordered_json record = read_json_in_order(bytes, problem);
    if (!problem.empty()) return false;
    const bool refused = is_refused([&] {
      text = read_conversation(
          record, [&]() -> const ChatTemplate& { return *chat; }, problem, unused);
    });
    require_answers_in(text);
    require(valid_until(text.text) == text.text.size(), "text that is not UTF-8");
    return !refused && problem.empty();
  };
  return target;
}

// --- files left by a killed run ---

/// The owner of a lock file, with which a run marks that it saves.
enum class Mark { nobodys, here, elsewhere, foreign };
Mark mark_of(std::string_view text) {
  constexpr std::string_view start = "{\"host\":";
  const nlohmann::json json = parse_json(text);
  if (json.is_object() && json.contains("host") && json.contains("slurm_job") && json.contains("process") &&
      json["host"].is_string() && json["slurm_job"].is_string() && json["process"].is_number_integer() &&
      text.starts_with(start) && text.size() < 1024) {
    const std::string host = json["host"];
    return host.empty() || host == host_name() ? Mark::here : Mark::elsewhere;
  }
  // If its writer died, the file is the beginning of a mark.
  const std::size_t n = std::min(text.size(), start.size());
  const bool is_beginning =
      text.substr(0, n) == start.substr(0, n) && text.size() < 1024 && text.find_first_of("}\n") == text.npos;
  return is_beginning ? Mark::nobodys : Mark::foreign;
}

Target make_lock(const fs::path& folder) {
  Target target;
  target.is_text = true;
  {
    const SaveLock lock(folder);
    target.corpus = {read_file(folder / "lock")};
  }
  target.corpus.push_back(format(R"({{"host":"{}","process":1,"slurm_job":"17","since":1}})", host_name()));
  target.corpus.push_back(target.corpus.front().substr(0, 11));
  target.corpus.push_back("");
  target.accepts = [=](std::string_view bytes) {
    const fs::path path = folder / "lock";
    write_file(path, bytes);
    const bool refused = is_refused([&] { const SaveLock lock(folder, 0); });
    const Mark mark = mark_of(bytes);
    require(refused || mark != Mark::foreign, "a file that is no mark was taken for one");
    require(refused || mark != Mark::elsewhere, "the folder of a run elsewhere was taken");
    require(!refused || read_file(path) == bytes, "a lock was changed that was not taken");
    require(refused || !fs::exists(path), "a lock was left");
    return !refused;
  };
  return target;
}

// --- options ---

Target make_config_file(const fs::path& folder) {
  const fs::path path = folder / "run.ini";
  const auto parse = [path](std::string* config) {
    TrainOptions options;
    OptionTable table = train_option_table(options, 2);
    const std::string argument = path.string();
    const char* const arguments[] = {"fsdp-train", "--config", argument.c_str()};
    table.parse(3, arguments);
    if (config) *config = table.config();
  };
  Target target;
  target.is_text = true;
  target.corpus = {"# a run\n[model]\narch = gpt2\nlr = 1e-3\n[batch]\nbatch-size = 2\nmax_update = 10\n"};
  write_file(path, target.corpus.front());
  std::string printed;
  parse(&printed);
  target.corpus.push_back(printed);
  target.accepts = [=](std::string_view bytes) {
    write_file(path, bytes);
    std::string config, again;
    const bool refused = is_refused([&] { parse(&config); });
    if (!config.empty()) {
      write_file(path, config);
      const bool refused_again = is_refused([&] { parse(&again); });
      require(refused == refused_again && (refused || config == again), "--print-config prints what is not read as the same");
    }
    return !refused;
  };
  return target;
}

constexpr NamedTarget named[] = {{"marker", make_marker},
                                 {"index", make_index},
                                 {"rank_file", make_rank_file},
                                 {"consolidated", make_consolidated},
                                 {"safetensors", make_safetensors},
                                 {"optimizer_safetensors", make_optimizer_safetensors},
                                 {"sealed_safetensors", make_sealed_safetensors},
                                 {"safetensors_seal", make_safetensors_seal},
                                 {"weight_index", make_weight_index},
                                 {"config_json", make_config_json},
                                 {"llama_config_json", make_llama_config},
                                 {"token_file", make_token_file},
                                 {"token_index", make_token_index},
                                 {"questions", make_questions},
                                 {"tokenizer_json", make_tokenizer_json},
                                 {"tokenizer_model", make_tokenizer_model},
                                 {"json_lines", make_json_lines},
                                 {"chat_template", make_chat_template},
                                 {"conversation", make_conversation},
                                 {"lock", make_lock},
                                 {"config_file", make_config_file}};

}  // namespace

std::span<const NamedTarget> all_targets() { return named; }

const NamedTarget* find_target(std::string_view name) {
  const auto found = std::find_if(std::begin(named), std::end(named), [&](const NamedTarget& t) { return name == t.name; });
  return found == std::end(named) ? nullptr : found;
}

WorkingFolder::WorkingFolder() {
  const fs::path shared = "/dev/shm";
  const fs::path parent = ::access(shared.c_str(), W_OK) == 0 ? shared : fs::temp_directory_path();
  std::string name = (parent / "fsdp-fuzz-XXXXXX").string();
  if (!::mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed");
  path_ = name;
}

WorkingFolder::~WorkingFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace fsdp::fuzz
