#include "api/words.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include <boost/algorithm/string/replace.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/options.hpp"
#include "comm/agree.hpp"
#include "options/common_options.hpp"

namespace fsdp {

namespace {

/// Quantities in messages, and their names in the API. Other quantities keep their names.
constexpr std::pair<std::string_view, std::string_view> words[] = {
    {"micro-batch", "batch_size"},
    {"micro-batches per update", "gradient_accumulation_steps"},
    {"sequence length", "sequence_length"},
    {"shard group size", "shard_group_size"},
    {"file of algorithms", "gemm_algorithms"},
    {"least parameters of a unit", "min_num_params"},
    {"custom units", "wrap_patterns"},
    {"frozen parameters", "freeze"},
    {"unfrozen parameters", "unfreeze"},
    {"trained parameters", "train_only"},
    {"ignored parameters", "ignored_params"},
    {"groups of parameters", "param_groups"},
    {"same bits at any number of ranks", "invariant"},
    {"recomputation of activations", "activation_checkpointing"},
    {"number of recomputed blocks", "recompute_num_layers"},
    {"inputs of blocks on the host", "offload_activations"},
    {"number of offloaded inputs", "cpu_offloading_num_layers"},
    {"memory limit", "memory_limit"},
    {"folder of state", "nvme_path"},
    {"device", "device"},
    {"attention backend", "attention_backend"},
    {"communication by messages", "comm = \"mpi\""},
    {"longest wait", "timeout_s"},
    {"architecture", "architecture"},
    {"list of architectures", "the list that fsdp-train gives"},
    {"number of layers", "layers()"},
    {"width", "width()"},
    {"number of heads", "heads()"},
    {"vocabulary size", "vocabulary()"},
    {"save folder", "folder"},
    {"with a file per rank", "without files_per_checkpoint"},
    {"break mode", "break_mode"},
    {"long rows", "long_rows"},
    {"end of document", "eos_token_id"},
    {"rank of adapters", "lora()"},
    {"targets of adapters", "lora().targets"},
    {"ranks of adapters", "lora().ranks"},
    {"alphas of adapters", "lora().alphas"},
    {"layers with adapters", "lora().layers"},
    {"modules to save", "lora().modules_to_save"},
    {"type of the base model", "base_dtype()"},
    {"base model", "load_full()"},
    {"model folder", "the folder of from_config()"},
    {"number of key/value heads", "num_key_value_heads of from_config()"},
    {"inner width", "intermediate_size of from_config()"},
    {"mask", "mask"},
    {"sums in NCCL's order", "sum_order \"library\""},
    {"unchecked reading", "LoadOptions::verify = false"},
    {"optimizer", "optimizer"},
    {"decay of the average", "ema_decay"},
    {"start of the average", "ema_start_update"},
    {"weights of the average", "use_ema"},
    {"restoring the latest", "load()"},
    {"checkpoint to restore", "load()"},
};

/// Returns the first line of `a` that differs from the same line of `b`.
std::string first_line_that_differs(const std::string& a, const std::string& b) {
  std::size_t begin = 0, end = a.find('\n');
  while (end != std::string::npos && b.compare(begin, end - begin + 1, a, begin, end - begin + 1) == 0)
    begin = end + 1, end = a.find('\n', begin);
  return a.substr(begin, end == std::string::npos ? end : end - begin);
}

}  // namespace

std::string in_words_of_api(std::string message) {
  for (const auto& [quantity, name] : words) name_quantity(message, quantity, name);
  return message;
}

void set_fields(OptionTable& table, const std::vector<Field>& fields) {
  std::vector<std::string> words = {table.program()};
  for (const Field& field : fields)
    if (field.value) words.push_back(format("--{}={}", field.option, *field.value));
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  with_field_names(fields, [&] { table.parse(static_cast<int>(argv.size()), argv.data()); });
}

void with_field_names(const std::vector<Field>& fields, const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    std::string message = error.what();
    std::vector<Field> longest_first = fields;  // one option can be the beginning of another one
    std::stable_sort(longest_first.begin(), longest_first.end(),
                     [](const Field& a, const Field& b) { return a.option.size() > b.option.size(); });
    for (const Field& field : longest_first) boost::replace_all(message, "--" + field.option, field.name);
    throw UserError(message);
  }
}

std::string text_of(const std::vector<Field>& fields) {
  std::string all;
  for (const Field& field : fields) all += format("{} {}\n", field.name, field.value.value_or("none"));
  return all;
}

void require_same_lines(Group& world, const std::string& mine, const char* problem, const char* reason) {
  require_same(world, mine, [&](const std::string& first) {
    throw UserError(format("the ranks {} ('{}' here, '{}' on rank 0, but {}); give all ranks the same", problem,
                           first_line_that_differs(mine, first), first_line_that_differs(first, mine), reason));
  });
}

DeviceChoice device_choice(const std::string& device) {
  DeviceChoice choice = DeviceChoice::automatic;
  OptionTable table("", "", "");
  add_device_option(table, choice);
  set_fields(table, {{"device", "device", device}});
  return choice;
}

}  // namespace fsdp
