// What fsdp-generate does.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.hpp"
#include "comm/communicator.hpp"
#include "generate/generator.hpp"
#include "train/compute_device.hpp"
#include "train/generation_config.hpp"

namespace fsdp {

struct GenerateOptions {
  std::filesystem::path model;
  std::string prompt;
  std::filesystem::path prompts;
  std::string tokenizer;
  bool json = false;
  bool chat = false;
  std::string system;                 // message of a conversation; empty: the chat template's own
  GenerationWishes wishes = {};       // the rest is what the model's generation_config.json says
  GenerationOptions generation = {};  // its length and seed
  std::size_t batch_size = 8;         // texts of a rank at a time
  std::string strategy = "full";
  DType precision = DType::f32;
  DeviceChoice device = DeviceChoice::automatic;
  std::size_t threads = 0;
  bool no_verify = false;
};

OptionTable generate_option_table(GenerateOptions& options);
/// Throws UserError if there is no model, or if options contradict each other.
void require_complete(const GenerateOptions& options);

/// Hands what is to be printed to `out`, on rank 0: of one prompt each piece as soon as it is there, else whole texts. The same
/// options give the same text. Collective over world; each rank holds a shard of the model, whole units only while they are
/// used. With `chat`, the user's messages are the lines of standard input, and "> " is printed before each where that is a
/// terminal.
void generate(const GenerateOptions& options, Communicator& world, const std::function<void(std::string_view)>& out);

}  // namespace fsdp
