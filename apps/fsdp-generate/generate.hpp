// The options of fsdp-generate, and the program itself.
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
#include "machine/compute_device.hpp"
#include "options/generation_config.hpp"
#include "text/record_form.hpp"

namespace fsdp {

struct GenerateOptions {
  std::filesystem::path model;
  std::filesystem::path adapter;                   // empty: none
  std::optional<kernels::Quantization> base_type;  // of the matrices of the blocks
  std::string prompt;
  std::filesystem::path prompts;
  std::string tokenizer;
  bool json = false;
  bool chat = false;
  RecordForm form;                      // of the conversations in `prompts`
  std::filesystem::path chat_template;  // a file with another template than the model's; empty: the model's
  std::string system;                   // the system message; if empty, the chat template uses its default message
  GenerationWishes wishes = {};         // the user's settings; missing ones come from generation_config.json
  GenerationOptions generation = {};    // the user sets only length and seed; `wishes` and the model give the rest
  std::size_t batch_size = 8;           // texts that a rank generates at a time
  std::string strategy = "full";
  DType precision = DType::f32;
  DeviceChoice device = DeviceChoice::automatic;
  std::size_t threads = 0;
  bool no_verify = false, use_ema = false;
  /// Returns true if messages are read from standard input.
  bool talks() const { return chat && prompt.empty() && prompts.empty(); }
};

OptionTable generate_option_table(GenerateOptions& options);
/// Throws UserError if no model is given or options contradict each other.
void require_complete(const GenerateOptions& options);

/// Generates text and passes it to `out` on rank 0: for a single prompt each piece as soon as it is generated, otherwise whole
/// texts. The same options give the same text. If talks(), each line of standard input is a message of the user; on a terminal
/// the prompt is "> ". Collective over world. Each rank holds a shard of the model, and units are gathered only while they are
/// used.
void generate(const GenerateOptions& options, Communicator& world, const std::function<void(std::string_view)>& out);

}  // namespace fsdp
