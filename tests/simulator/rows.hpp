// Published measurements of updates: rows.csv (FSDP programs and DeepSpeed) and vtrain.csv (Megatron with data parallelism
// only, as vTrain published it). docs/simulator.md describes the sources and the roles of rows.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace fsdp::simulator {

struct Row {
  std::string id, program, model;  // program: the name of a row of kernels (peers.hpp)
  std::size_t layers, width, heads, kv_heads, head_size, ffn_width;
  bool gated;  // a Llama: RMSNorm, SwiGLU, rotary positions, no biases; else a GPT-2
  std::size_t vocab;
  bool tied;
  std::string gpu;
  double watts;  // the power limit
  int gpus, per_node;
  double gbit;  // of the network for each GPU, in Gbit/s; 0: one node
  std::size_t tokens, micro_batch, accumulation;
  std::string strategy, recompute;
  int reduce_bytes;
  std::size_t lora_rank;  // 0: all parameters are trained
  bool bf16_state;
  double measured;        // tokens per second and GPU
  std::string role;       // fit, predict, holdout or excluded
  std::string exception;  // why a large error is expected: memory, source or unknown; empty: it is not
  std::string note, source;

  int nodes() const { return gpus / per_node; }
  bool is_mosaic() const { return program.starts_with("mosaic"); }
};

/// The rows of both files in `folder`; one of them may be missing. Throws UserError if there are no rows, or a line has another
/// number of columns than the first one.
std::vector<Row> read_rows(const std::filesystem::path& folder);

}  // namespace fsdp::simulator
