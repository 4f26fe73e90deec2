// The work of fsdp-evaluate.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

#include "base/dtype.hpp"
#include "base/options.hpp"
#include "comm/communicator.hpp"
#include "data/samples.hpp"
#include "machine/compute_device.hpp"
#include "text/record_form.hpp"

namespace fsdp {

struct EvaluateOptions {
  std::filesystem::path model;
  std::filesystem::path adapter;                   // empty: none
  std::optional<kernels::Quantization> base_type;  // of the matrices of the blocks
  std::string data;                       // the tokens on which the loss is measured; if empty, `multiple_choice` must be set
  std::filesystem::path multiple_choice;  // a file of questions that the model answers; not with `data`
  std::string mask;  // files of loss masks for `data`; if empty, the masks in `data` are used; without masks all tokens count
  BreakMode break_mode = BreakMode::none;
  bool document_attention = false;
  std::optional<std::size_t> end_of_document;
  std::string tokenizer;
  std::string json_field;               // the field with the text, as in TextSource::json_field()
  bool chat = false;                    // texts are conversations
  std::filesystem::path chat_template;  // of conversations; empty: the model's
  RecordForm form;                      // of conversations
  bool skip_invalid = false;
  std::size_t batch_size = 8;         // sequences per rank at a time
  std::size_t tokens_per_sample = 0;  // 0 means the model's longest sequence, and for `data` at most 1024
  DType precision = DType::f32;
  DeviceChoice device = DeviceChoice::automatic;
  std::size_t threads = 0;
  bool json = false;
  std::filesystem::path per_token;  // a new file for the log-probability of each target; empty: none
  bool no_verify = false, use_ema = false;
};

OptionTable evaluate_option_table(EvaluateOptions& options);
/// Throws UserError unless MODEL is given, and either DATA or --multiple-choice.
void require_complete(const EvaluateOptions& options);

/// Returns the result, as text or as one JSON object; only rank 0 should print it. Every target or question counts once.
/// Collective over world; each rank holds a shard of the model, and units are gathered only while they are used.
std::string evaluate(const EvaluateOptions& options, Communicator& world);

}  // namespace fsdp
