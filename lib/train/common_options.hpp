// Rows that several programs have in their tables of options: the same names, help and checks wherever they are.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.hpp"
#include "base/options.hpp"
#include "comm/mpi_session.hpp"
#include "data/samples.hpp"
#include "fsdp/sharded_model.hpp"
#include "nn/config.hpp"
#include "train/compute_device.hpp"

namespace fsdp {

/// --batch-size, --tokens-per-sample and --update-freq.
void add_batch_options(OptionTable& table, ShardingOptions& sharding);
/// --break-mode, --document-attention, and --eos-token-id, which goes with them; of every program that cuts data.
void add_document_options(OptionTable& table, BreakMode& break_mode, bool& document_attention,
                          std::optional<std::size_t>& end_of_document);
/// --decoder-layers and the others that change the model that --arch or --model names.
void add_size_options(OptionTable& table, ConfigOverrides& sizes);
/// --sharding-strategy.
void add_strategy_option(OptionTable& table, std::string& strategy);
/// --shard-group-size, which goes with some of them.
void add_group_option(OptionTable& table, int& shard_group_size);
/// fp32, bf16 and fp16 by the names of fairseq, PyTorch and Hugging Face ("bf16", "bfloat16", "torch.bfloat16").
std::vector<std::pair<std::string, DType>> dtype_names(bool with_fp16 = true);
/// --precision, and fairseq's spellings of it.
void add_precision_options(OptionTable& table, DType& precision);
/// --checkpoint-activations.
void add_recomputation_option(OptionTable& table, bool& checkpoint_activations);
/// --optimizer-state-dtype.
void add_state_type_option(OptionTable& table, DType& type);
/// --master-dtype, --grad-dtype; behind those of the precision, which they go with.
void add_kept_type_options(OptionTable& table, UnitTypes& types);
/// --invariant, which some of the others contradict.
void add_invariance_option(OptionTable& table, ShardingOptions& sharding, const CommOptions& comm);
/// --offload-params, --offload-optimizer and --cpu-offload; behind the precision.
void add_offload_options(OptionTable& table, ShardingOptions& sharding);
/// --comm and --collective-timeout.
void add_comm_options(OptionTable& table, CommOptions& comm);
/// --comm-thread.
void add_comm_thread_option(OptionTable& table, bool& comm_thread);
/// --device, of every program that computes. `more`: sentences behind what it says.
void add_device_option(OptionTable& table, DeviceChoice& device, const std::string& more = "");
/// --json-field and --skip-invalid, of every program that reads text.
void add_text_options(OptionTable& table, std::string& json_field, bool& skip_invalid);
/// --threads, of every program that computes.
Option& add_threads_option(OptionTable& table, std::size_t& threads);
/// --no-verify, of every program that reads checkpoints.
void add_no_verify_option(OptionTable& table, bool& no_verify);

/// What --version prints: the program, its version, MPI, HDF5, oneDNN, what is off.
std::string full_version_text(std::string_view program);
/// The text that answers --help, --version and the like; none for a run.
std::optional<std::string> answer(const OptionTable& table, Request request);

}  // namespace fsdp
