#include "api/words.hpp"

#include <string_view>
#include <utility>

#include "base/options.hpp"

namespace fsdp {

namespace {

/// What a program can set. Other quantities stay as they are.
constexpr std::pair<std::string_view, std::string_view> words[] = {
    {"micro-batch", "batch_size"},
    {"micro-batches per update", "gradient_accumulation_steps"},
    {"sequence length", "sequence_length"},
    {"shard group size", "shard_group_size"},
    {"least parameters of a unit", "min_num_params"},
    {"frozen parameters", "freeze"},
    {"trained parameters", "what is left to train"},
    {"recomputation of activations", "activation_checkpointing"},
    {"device", "device"},
    {"communication by messages", "comm = \"mpi\""},
    {"longest wait", "timeout_s"},
    {"architecture", "architecture"},
    {"list of architectures", "the list that fsdp-train gives"},
    {"number of layers", "layers()"},
    {"width", "width()"},
    {"number of heads", "heads()"},
    {"vocabulary size", "vocabulary()"},
    {"save folder", "folder"},
    {"restoring the latest", "load()"},
    {"checkpoint to restore", "load()"},
};

}  // namespace

std::string in_words_of_api(std::string message) {
  for (const auto& [quantity, name] : words) name_quantity(message, quantity, name);
  return message;
}

}  // namespace fsdp
