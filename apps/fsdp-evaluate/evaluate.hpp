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
#include "train/compute_device.hpp"

namespace fsdp {

struct EvaluateOptions {
  std::filesystem::path model;
  std::string data;                       // empty: questions are answered
  std::filesystem::path multiple_choice;  // empty: the loss on data is measured
  std::string mask;  // files that say which tokens of data count; empty: the mask in the data, or all tokens
  BreakMode break_mode = BreakMode::none;
  bool document_attention = false;
  std::optional<std::size_t> end_of_document;
  std::string tokenizer;
  std::string json_field;  // as TextSource::json_field()
  bool skip_invalid = false;
  std::size_t batch_size = 8;         // sequences per rank at a time
  std::size_t tokens_per_sample = 0;  // 0: the model's longest sequence; for data at most 1024
  DType precision = DType::f32;
  DeviceChoice device = DeviceChoice::automatic;
  std::size_t threads = 0;
  bool json = false;
  bool no_verify = false;
};

OptionTable evaluate_option_table(EvaluateOptions& options);
/// Throws UserError unless MODEL is given, and either DATA or --multiple-choice.
void require_complete(const EvaluateOptions& options);

/// Returns the result of rank 0, as text or as one JSON object. Every target or question counts once. Collective over world;
/// each rank holds a shard of the model, and units are gathered only while they are used.
std::string evaluate(const EvaluateOptions& options, Communicator& world);

}  // namespace fsdp
