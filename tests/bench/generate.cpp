// Measures how fast a model reads prompts and generates answers: with its key-value cache, without it, and alternating with
// transformers' generate(). For developers: docs/performance.md has its figures.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>
#include <sstream>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/timer.hpp"
#include "comm/agree.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "fsdp-bench/bench.hpp"
#include "generate/generator.hpp"
#include "job/program.hpp"
#include "kernels/threads.hpp"
#include "machine/machine.hpp"
#include "options/common_options.hpp"

namespace fsdp {

namespace {

struct Options : BenchOptions {
  std::size_t new_tokens = 64;   // per text
  std::filesystem::path python;  // empty: no comparison
};

/// A Python process that answers requests. Its script prints the version of a package, and then one line for each line that it
/// reads.
class PythonProcess {
 public:
  /// Throws UserError if it ends before its first line: then it lacks transformers.
  PythonProcess(const std::filesystem::path& python, const std::string& script);
  PythonProcess(const PythonProcess&) = delete;
  /// Ends its input, and waits for its end.
  ~PythonProcess();

  /// Its answer to a line. Throws RunError if it has ended.
  std::string ask(const std::string& question);
  const std::string& version() const { return version_; }

 private:
  std::string line();

  pid_t child_ = -1;
  std::FILE *to_ = nullptr, *from_ = nullptr;
  std::string version_;
};

PythonProcess::PythonProcess(const std::filesystem::path& python, const std::string& script) {
  std::signal(SIGPIPE, SIG_IGN);  // ask() reports the end of the process
  int to[2], from[2];
  check_errno(::pipe(to) == 0 && ::pipe(from) == 0, "make a pipe");
  child_ = ::fork();
  check_errno(child_ >= 0, "start another process");
  if (child_ == 0) {
    ::dup2(to[0], 0);
    ::dup2(from[1], 1);
    for (const int end : {to[0], to[1], from[0], from[1]}) ::close(end);
    ::execlp(python.c_str(), python.c_str(), "-c", script.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(to[0]);
  ::close(from[1]);
  to_ = ::fdopen(to[1], "w");
  from_ = ::fdopen(from[0], "r");
  version_ = line();
  if (version_.empty()) {
    std::fclose(to_);
    std::fclose(from_);
    ::waitpid(child_, nullptr, 0);
    throw UserError(
        format("--python {} has no transformers (it ended with the message above, or is no Python); give one that has",
               python.string()));
  }
}

PythonProcess::~PythonProcess() {
  std::fclose(to_);  // the child's loop ends
  std::fclose(from_);
  ::waitpid(child_, nullptr, 0);
}

std::string PythonProcess::ask(const std::string& question) {
  std::fputs((question + "\n").c_str(), to_);
  std::fflush(to_);
  std::string answer = line();
  if (answer.empty()) throw RunError("Python stopped in the middle of the measurement (its message is above); look there");
  return answer;
}

std::string PythonProcess::line() {
  std::string text;
  for (int c = std::fgetc(from_); c != EOF && c != '\n'; c = std::fgetc(from_)) text += static_cast<char>(c);
  return text;
}

/// B texts of a rank, which are continued with the most likely token.
class Texts {
 public:
  Texts(Executor& executor, std::size_t B, std::size_t V, int rank)
      : executor_(executor), texts_(B), logits_(B * V), V_(V), seed_(static_cast<std::uint32_t>(rank) * 977 + 1) {}

  /// Prompts of T random tokens.
  void begin(std::size_t T) {
    known_ = 0;
    for (auto& text : texts_) {
      text.clear();
      for (std::size_t t = 0; t < T; ++t)
        text.push_back(static_cast<std::int32_t>((seed_ = seed_ * 1664525u + 1013904223u) % V_));
    }
  }
  /// Runs all tokens that are not in the caches through the model, and appends a token to each text.
  void step() {
    const std::size_t length = texts_.front().size();
    for (std::size_t b = 0; b < texts_.size(); ++b)
      for (std::size_t t = known_; t < length; ++t) {
        tokens_.push_back(texts_[b][t]);
        sequences_.push_back(static_cast<std::int32_t>(b));
        positions_.push_back(static_cast<std::int32_t>(t));
        if (t + 1 == length) wanted_.push_back(static_cast<std::int32_t>(tokens_.size() - 1));
        if (tokens_.size() == executor_.most_rows()) decode();
      }
    if (!tokens_.empty()) decode();
    known_ = length;
    for (std::size_t b = 0; b < texts_.size(); ++b) {
      const auto begin = logits_.begin() + static_cast<std::ptrdiff_t>(b * V_);
      texts_[b].push_back(static_cast<std::int32_t>(std::max_element(begin, begin + static_cast<std::ptrdiff_t>(V_)) - begin));
    }
  }
  /// Empties the caches for the next step.
  void forget() { known_ = 0; }

 private:
  void decode() {
    executor_.decode({tokens_, sequences_, positions_, wanted_}, logits_.data() + done_ * V_);
    done_ = (done_ + wanted_.size()) % texts_.size();
    for (auto* list : {&tokens_, &sequences_, &positions_, &wanted_}) list->clear();
  }

  Executor& executor_;
  std::vector<std::vector<std::int32_t>> texts_;
  std::vector<std::int32_t> tokens_, sequences_, positions_, wanted_;
  std::vector<float> logits_;
  std::size_t V_, known_ = 0, done_ = 0;
  std::uint32_t seed_;
};

/// Returns torch_generate.py for a model of the same sizes.
std::string torch_script(const Options& options, const TransformerConfig& config) {
  const std::string type = options.sharding.types.parameter == DType::f32    ? "float32"
                           : options.sharding.types.parameter == DType::bf16 ? "bfloat16"
                                                                             : "float16";
  return format("threads, config, dtype, batch, prompt, new = {}, r'''{}''', '{}', {}, {}, {}\n{}", kernels::threads(),
                json_text(config_to_json(config)), type, options.sharding.batch.B, options.sharding.batch.T, options.new_tokens,
                read_text_file(FSDP_BENCH_SOURCE "/torch_generate.py"));
}

/// Seconds for prompts, and for answers.
struct Seconds {
  double prompt, answer;
};

/// Returns the report, as text or as one JSON object. Collective over world; every rank has its own batch.
std::string bench_generate(const Options& options, Communicator& world, Device& device) {
  const std::size_t B = options.sharding.batch.B, T = options.sharding.batch.T, N = options.new_tokens;
  const DType type = options.sharding.types.parameter;
  TransformerConfig config;
  std::optional<PythonProcess> torch;
  ShardingOptions sharding;
  agree(world, [&] {
    config = config_of(options);
    if (T + N > config.longest_sequence())
      throw UserError(
          format("{} and {} tokens do not fit the longest sequence of {}, {}; give less to --tokens-per-sample or "
                 "--max-new-tokens",
                 T, N, model_of(options), config.longest_sequence()));
    if (!options.python.empty() && world.size() > 1)
      throw UserError("--python compares with one process (there are more ranks); start one rank");
    const GenerationShape shape = generation_shape(config, B, T, N);
    sharding = {.strategy = options.sharding.strategy,
                .batch = {shape.rows, 1},
                .types = {.parameter = type, .master = type == DType::bf16 ? DType::bf16 : DType::f32},
                .plan = {.training = false, .cache = shape.cache}};
    check_sharding(config, sharding, world.size());
    if (!options.python.empty()) torch.emplace(options.python, torch_script(options, config));
  });
  ShardedModel sharded(config, sharding, world, traits_of(device.kind(), kernels::threads()));
  Executor& executor = sharded.allocate(device, {.table_type = type}, options.comm);
  executor.initialize_parameters(1);
  executor.publish_parameters();

  Texts texts(executor, B, config.vocab_size, world.rank());
  const auto time_of = [&](auto&& work) {
    world.barrier();
    const Timer timer;
    work();
    world.barrier();
    return timer.seconds();
  };
  std::vector<double> prompts, answers, without, their_prompts, their_answers;
  const std::size_t tokens_without = 2;  // they take long
  for (std::size_t round = 0; round < options.steps + 1; ++round) {
    texts.begin(T);
    const double prompt = time_of([&] { texts.step(); });
    const double answer = time_of([&] {
      for (std::size_t i = 1; i < N; ++i) texts.step();
    });
    const double old = time_of([&] {
      for (std::size_t i = 0; i < tokens_without; ++i) texts.forget(), texts.step();
    });
    double one = 0, all = 0;
    if (torch) std::istringstream(torch->ask("generate")) >> one >> all;
    if (round == 0) continue;
    prompts.push_back(prompt);
    answers.push_back(answer);
    without.push_back(old);
    if (torch) their_prompts.push_back(one), their_answers.push_back(all - one);
  }
  const auto rate = [&](std::size_t tokens, const std::vector<double>& seconds, int ranks) {
    return static_cast<double>(B * tokens * static_cast<std::size_t>(ranks)) / median(seconds);
  };
  const double prompt_rate = rate(T, prompts, world.size()), answer_rate = rate(N - 1, answers, world.size()),
               rate_without = rate(tokens_without, without, world.size());
  nlohmann::json json = {{"arch", model_of(options)},
                         {"device", device.description()},
                         {"ranks", world.size()},
                         {"threads", kernels::threads()},
                         {"strategy", sharding.strategy},
                         {"precision", name_of(type)},
                         {"texts_per_rank", B},
                         {"prompt_tokens", T},
                         {"new_tokens", N},
                         {"prompt_tokens_per_second", prompt_rate},
                         {"answer_tokens_per_second", answer_rate},
                         {"answer_tokens_per_second_without_cache", rate_without},
                         {"mem_peak_bytes", executor.peak_bytes()}};
  std::string text =
      format("{}, {}, {} ranks of {} threads, {}; each {} texts of {} tokens, and {} new ones; medians of {}\n",
             model_of(options), name_of(type), world.size(), kernels::threads(), sharding.strategy, B, T, N, options.steps);
  text +=
      format("prompts  {:>10.1f} tokens/s\nanswers  {:>10.1f} tokens/s, {:.2f} ms per step; without a cache {:.1f} tokens/s\n",
             prompt_rate, answer_rate, 1e3 * median(answers) / static_cast<double>(N - 1), rate_without);
  if (torch) {
    const double their_prompt_rate = rate(T, their_prompts, 1), their_answer_rate = rate(N - 1, their_answers, 1);
    text += format(
        "transformers {}, in turn with ours: prompts {:.1f} tokens/s (ours {:.2f} times as fast), answers {:.1f} tokens/s "
        "(ours {:.2f} times)\n",
        torch->version(), their_prompt_rate, prompt_rate / their_prompt_rate, their_answer_rate,
        answer_rate / their_answer_rate);
    json["transformers"] = {{"version", torch->version()},
                            {"prompt_tokens_per_second", their_prompt_rate},
                            {"answer_tokens_per_second", their_answer_rate}};
  }
  return options.json ? json.dump() + "\n" : text;
}

}  // namespace

}  // namespace fsdp

int main(int argc, char** argv) {
  using namespace fsdp;
  Options options;
  OptionTable table("bench-generate", "[options]", "Measures how fast a model reads prompts and writes answers.");
  table.group("What");
  table.text("arch", "NAME", options.arch, "model; see fsdp-train --list-archs").sets("architecture");
  add_batch_options(table, options.sharding);
  add_size_options(table, options.sizes);
  add_strategy_option(table, options.sharding.strategy);
  add_precision_options(table, options.sharding.types.parameter);
  table.integer("max-new-tokens", "N", options.new_tokens, {2, 1e6}, "tokens of each answer");
  table.group("How");
  add_device_option(table, options.device);
  add_threads_option(table, options.threads);
  add_comm_options(table, options.comm);
  table.integer("steps", "N", options.steps, {1, 1e6}, "rounds in which all is measured once");
  table.path("python", "FILE", options.python, "a Python with torch and transformers").unset("no comparison");
  table.flag("json", options.json, "print one JSON object");
  return run_mpi_program(argc, argv, table, [&](MpiSession& session, Communicator& world) {
    std::unique_ptr<Communicator> comm;
    agree(world, [&] { comm = session.world(options.comm); });
    const ComputingRank rank = start_rank(options.device, options.threads, *comm);
    const std::string text = bench_generate(options, *comm, *rank.device);
    if (world.rank() == 0) std::fputs(text.c_str(), stdout);
    return exit_code::done;
  });
}
