// Rows of the option table (base/options.hpp) that several programs share, so that an option has the same name, help and checks
// in each program.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.hpp"
#include "base/options.hpp"
#include "comm/mpi_session.hpp"
#include "data/samples.hpp"
#include "machine/compute_device.hpp"
#include "nn/config.hpp"
#include "run/sharded_model.hpp"
#include "text/record_form.hpp"

namespace fsdp {

/// --batch-size, --tokens-per-sample and --update-freq.
void add_batch_options(OptionTable& table, ShardingOptions& sharding);
/// --break-mode, --document-attention and --eos-token-id, for every program that cuts data into sequences.
void add_document_options(OptionTable& table, BreakMode& break_mode, bool& document_attention,
                          std::optional<std::size_t>& end_of_document);
/// --decoder-layers and the other options that change the model chosen by --arch or --model.
void add_size_options(OptionTable& table, ConfigOverrides& sizes);
/// --sharding-strategy.
void add_strategy_option(OptionTable& table, std::string& strategy);
/// --shard-group-size, which applies to the hybrid strategies.
void add_group_option(OptionTable& table, int& shard_group_size);
/// The dtypes fp32, bf16 and fp16 by their names in fairseq, PyTorch and Hugging Face ("bf16", "bfloat16", "torch.bfloat16").
std::vector<std::pair<std::string, DType>> dtype_names(bool with_fp16 = true);
/// --precision and its fairseq spellings, --bf16 and --fp16.
void add_precision_options(OptionTable& table, DType& precision);
/// --checkpoint-activations.
void add_recomputation_option(OptionTable& table, bool& checkpoint_activations);
/// --optimizer-state-dtype.
void add_state_type_option(OptionTable& table, DType& type);
/// --master-dtype and --grad-dtype. Add them after the precision options.
void add_kept_type_options(OptionTable& table, UnitTypes& types);
/// --invariant, and a check that refuses other options which contradict it.
void add_invariance_option(OptionTable& table, ShardingOptions& sharding, const CommOptions& comm);
/// --offload-params, --offload-optimizer, --cpu-offload and, unless `nvme_path` is null, --nvme-path. Add them after the
/// precision options.
void add_offload_options(OptionTable& table, ShardingOptions& sharding, std::filesystem::path* nvme_path);
/// --comm and --collective-timeout.
void add_comm_options(OptionTable& table, CommOptions& comm);
/// --comm-thread.
void add_comm_thread_option(OptionTable& table, bool& comm_thread);
/// --launcher, for programs that start jobs of several ranks (find_allocation() in job/launch.hpp).
void add_launcher_option(OptionTable& table, std::string& words);
/// --gemm-algorithms.
void add_gemm_algorithms_option(OptionTable& table, std::filesystem::path& file);
/// --device, for every program that computes. `more` is appended to the help of the option.
void add_device_option(OptionTable& table, DeviceChoice& device, const std::string& more = "");
/// --bias-gelu-fusion.
void add_bias_gelu_option(OptionTable& table, bool& fusion);
/// --attention-backend.
void add_attention_option(OptionTable& table, AttentionBackend& backend);
/// --json-field, --chat, --json-format, --json-names and --skip-invalid, for every program that reads text. `with_masks` says
/// where masks of answers go.
void add_text_options(OptionTable& table, std::string& json_field, bool& chat, RecordForm& form, bool& skip_invalid,
                      const std::string& with_masks);
/// --json-format and --json-names, for programs that read conversations.
void add_record_form_options(OptionTable& table, RecordForm& form, const bool& chat);
/// --chat-template, for every program that reads conversations. `more` is appended to the help of the option.
void add_chat_template_option(OptionTable& table, std::filesystem::path& file, const std::string& more = "");
/// --threads, for every program that computes.
Option& add_threads_option(OptionTable& table, std::size_t& threads);
/// --base-dtype and its spellings, for programs that can keep a model's matrices quantized.
void add_base_type_option(OptionTable& table, std::optional<kernels::Quantization>& type, const std::string& help);
/// --adapter, for programs that only use models.
void add_adapter_option(OptionTable& table, std::filesystem::path& adapter);
/// --no-verify, for every program that reads checkpoints.
void add_no_verify_option(OptionTable& table, bool& no_verify);
/// --use-ema, for every program that reads the weights of a checkpoint.
void add_average_option(OptionTable& table, bool& use_ema);

/// Returns the text to print for --help, --version and similar requests; nullopt for Request::run.
std::optional<std::string> answer(const OptionTable& table, Request request);

}  // namespace fsdp
