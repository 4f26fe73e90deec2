// What fsdp-evaluate does.
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
  std::string data;                       // empty: questions are asked
  std::filesystem::path multiple_choice;  // empty: the loss on data is measured
  std::string mask;                       // which tokens of data count; empty: what they say, or all
  BreakMode break_mode = BreakMode::none;
  bool document_attention = false;
  std::optional<std::size_t> end_of_document;
  std::string tokenizer;
  std::string json_field;  // for TextSource::json_field()
  bool skip_invalid = false;
  std::size_t batch_size = 8;         // sequences per rank at a time
  std::size_t tokens_per_sample = 0;  // 0: the model's longest, at most 1024
  DType precision = DType::f32;
  DeviceChoice device = DeviceChoice::automatic;
  std::size_t threads = 0;
  bool json = false;
  bool no_verify = false;
};

OptionTable evaluate_option_table(EvaluateOptions& options);
/// Throws UserError unless MODEL is given, and either DATA or questions.
void require_complete(const EvaluateOptions& options);

/// The result as text, or as one JSON object: rank 0's. Every target, or every question, counts once. Collective over world;
/// each rank holds a shard of the model, whole units only while they are used.
std::string evaluate(const EvaluateOptions& options, Communicator& world);

}  // namespace fsdp
