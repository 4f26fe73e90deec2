#include "options/common_options.hpp"

#include <memory>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/version.hpp"
#include "device/cuda_library.hpp"
#include "files/input_file.hpp"
#include "files/unpack.hpp"
#include "h5/h5.hpp"
#include "kernels/kernels.hpp"
#include "plan/placement.hpp"

namespace fsdp {

void add_batch_options(OptionTable& table, ShardingOptions& sharding) {
  table.integer("batch-size", "B", sharding.batch.B, {1, 1e9}, "Sequences per rank per micro-batch.")
      .alias("batch-size-per-device")
      .sets("micro-batch")
      .common();
  table.integer("tokens-per-sample", "T", sharding.batch.T, {1, 1e8}, "Tokens per sequence.")
      .alias("block-size")
      .sets("sequence length")
      .common();
  table.integer("update-freq", "K", sharding.plan.micro_batches, {1, 1e5}, "Micro-batches per update.")
      .alias("gradient-accumulation-steps")
      .sets("micro-batches per update")
      .common();
}

void add_document_options(OptionTable& table, BreakMode& break_mode, bool& document_attention,
                          std::optional<std::size_t>& end_of_document) {
  table
      .choice<BreakMode>("break-mode", break_mode,
                         {{"none", BreakMode::none}, {"complete", BreakMode::complete}, {"eos", BreakMode::eos}},
                         "How documents are cut into sequences. none: a sequence begins where the previous one ends; complete: "
                         "a sequence begins with a document, and has as many whole documents as fit; eos: a sequence has only "
                         "one document. A document that is longer than a sequence takes several.")
      .alias("sample-break-mode")
      .sets("break mode");
  table
      .flag("document-attention", document_attention,
            "Compute each document of a sequence separately: its tokens attend to no other document, and its positions begin "
            "at 0 (torchtitan's block_causal, Megatron's --reset-attention-mask with --reset-position-ids).")
      .sets("attention within documents");
  table
      .integer("eos-token-id", "N", end_of_document, {0, 4294967294.0},
               "The token that ends a document, for --break-mode or --document-attention with data that do not store where "
               "documents begin. It overrides documents that the data store, and a warning tells if these are others.")
      .sets("end of document")
      .unset("as in the index of the data");
}

void add_strategy_option(OptionTable& table, std::string& strategy) {
  table
      .choice<std::string>(
          "sharding-strategy", strategy, placement_names(),
          "What is sharded over the ranks. full: parameters, gradients, optimizer state (ZeRO-3); grad-op: parameters stay "
          "gathered from forward to backward (ZeRO-2); optim: only the optimizer state (ZeRO-1); none: nothing (DDP); hybrid, "
          "hybrid-grad-op: full and grad-op inside groups of ranks, of which each holds a copy of the model. PyTorch's names "
          "mean the same.")
      .common();
}

void add_size_options(OptionTable& table, ConfigOverrides& sizes) {
  const auto add = [&](const char* name, const char* letter, std::optional<std::size_t>& field, double most, const char* help) {
    table.integer(name, letter, field, {1, most}, help).unset("as the model says");
  };
  add("decoder-layers", "L", sizes.layers, 1e4, "Number of blocks.");
  add("decoder-embed-dim", "C", sizes.width, 1e6, "Width.");
  add("decoder-ffn-embed-dim", "F", sizes.ffn_width, 1e7, "Inner width of the feed-forward layers.");
  add("decoder-attention-heads", "H", sizes.heads, 1e5, "Query heads.");
  add("decoder-kv-heads", "K", sizes.kv_heads, 1e5, "Key/value heads.");
  add("vocab-size", "V", sizes.vocab_size, 1e8, "Size of the vocabulary.");
  const auto property = [&](const char* name, std::optional<bool>& field, const char* help) {
    table.flag(name, field, help).unset("as the model says");
  };
  property("share-decoder-input-output-embed", sizes.tied_embeddings,
           "The output projection (LM head) shares the matrix of the token embedding; =false: it has its own.");
  property("decoder-learned-pos", sizes.learned_positions,
           "Positions are a learned table; =false: sines and cosines. transformer_lm_* can have either; other models have only "
           "their own kind.");
  property("no-scale-embedding", sizes.unscaled_embedding,
           "Do not multiply token embeddings by the square root of the width, as transformer_lm_* do by default.");
  using MaybeActivation = std::optional<Activation>;
  table
      .choice<MaybeActivation>(
          "activation-fn", sizes.activation,
          {{"relu", Activation::relu},
           {"gelu", Activation::gelu_erf},
           {"gelu_accurate", Activation::gelu_tanh},
           {"gelu_fast", Activation::gelu_tanh},
           {"gelu_new", Activation::gelu_tanh}},
          "Activation of the feed-forward layers, if the model's family has it. gelu: by erf; gelu_accurate "
          "(gelu_fast; transformers' gelu_new): by tanh, as in gpt2.")
      .unset("as the model says");
  const std::pair<const char*, const char*> quantities[] = {{"decoder-layers", "number of layers"},
                                                            {"decoder-embed-dim", "width"},
                                                            {"decoder-ffn-embed-dim", "inner width"},
                                                            {"decoder-attention-heads", "number of heads"},
                                                            {"decoder-kv-heads", "number of key/value heads"},
                                                            {"activation-fn", "activation"},
                                                            {"no-scale-embedding", "unscaled embedding"},
                                                            {"decoder-learned-pos", "learned positions"},
                                                            {"vocab-size", "vocabulary size"}};
  for (const auto& [option, quantity] : quantities) table.row(option).sets(quantity);
  table.row("no-scale-embedding").sets("scaled embedding", "--no-scale-embedding=false");
  table.row("decoder-learned-pos").sets("sinusoidal positions", "--decoder-learned-pos=false");
}

void add_group_option(OptionTable& table, int& shard_group_size) {
  table
      .integer("shard-group-size", "N", shard_group_size, {1, 1e6},
               "With a hybrid strategy: ranks of a group over which a copy of the model is sharded.")
      .unset("the ranks of a node")
      .sets("shard group size");
}

std::vector<std::pair<std::string, DType>> dtype_names(bool with_fp16) {
  std::vector<std::pair<std::string, DType>> names = {{"fp32", DType::f32}, {"bf16", DType::bf16}};
  if (with_fp16) names.emplace_back("fp16", DType::f16);
  for (const std::string prefix : {"", "torch."}) {
    names.insert(names.end(), {{prefix + "float32", DType::f32}, {prefix + "bfloat16", DType::bf16}});
    if (with_fp16) names.emplace_back(prefix + "float16", DType::f16);
  }
  return names;
}

void add_precision_options(OptionTable& table, DType& precision) {
  struct Spellings {
    bool bf16 = false, fp16 = false;
  };
  const auto spelled = std::make_shared<Spellings>();  // the steps of the table keep `spelled` alive
  table
      .choice<DType>("precision", precision, dtype_names(),
                     "Type of gathered parameters, computation and kept activations. The optimizer works on an fp32 "
                     "copy; sums, gradients of parameters, softmax and loss are fp32 in any case, but see --reduce-dtype.")
      .alias("param-dtype")
      .common()
      .follows("fp32");  // a printed configuration has the default only as a comment, so --bf16 and --fp16 can set it
  table.flag("bf16", spelled->bf16, "fairseq's spelling of --precision bf16.").spelling();
  table.flag("fp16", spelled->fp16, "fairseq's spelling of --precision fp16: with a dynamic loss scale.").spelling();
  table.then([&precision, spelled](const OptionTable& given) {
    if (spelled->bf16 && spelled->fp16) throw UserError("--fp16 contradicts --bf16 (each sets the precision); leave one out");
    if (!spelled->bf16 && !spelled->fp16) return;
    const DType named = spelled->bf16 ? DType::bf16 : DType::f16;
    if (given.given("precision") && precision != named)
      throw UserError(format("--{} contradicts {} {} (each sets the precision); leave one out", name_of(named),
                             given.typed("precision"), name_of(precision)));
    precision = named;
  });
}

void add_recomputation_option(OptionTable& table, bool& checkpoint_activations) {
  table
      .flag("checkpoint-activations", checkpoint_activations,
            "Keep only the blocks' inputs, and recompute the rest in backward.")
      .alias("gradient-checkpointing")
      .sets("recomputation of activations")
      .common();
}

void add_state_type_option(OptionTable& table, DType& type) {
  table.choice<DType>(
      "optimizer-state-dtype", type, dtype_names(false),
      "Type of the optimizer's moments. bf16 takes half the memory and is rounded at random (by --seed), so that "
      "small changes add up.");
}

void add_invariance_option(OptionTable& table, ShardingOptions& sharding, const CommOptions& comm) {
  table
      .flag("invariant", sharding.plan.invariant,
            "Train to the same bits at 1, 2, 4, 8, ... ranks, if --total-batch-size and --batch-size stay the same: sums over "
            "micro-batches and ranks have one order, and gradients are reduced in every micro-batch.")
      .sets("same bits at any number of ranks", "--invariant");
  table.then([&sharding, &comm](const OptionTable&) {
    if (!sharding.plan.invariant) return;
    const auto contradicts = [](const std::string& option, const char* why) {
      throw UserError(format("--invariant contradicts {} ({}); leave one out", option, why));
    };
    if (sharding.plan.accumulate_unsharded)
      contradicts("--accumulate-unsharded", "it adds up micro-batches before ranks, so results depend on the number of ranks");
    if (const DType kept = sharding.types.gradient; kept != DType::f32)
      contradicts(format("--grad-dtype {}", name_of(kept)), "sums are rounded in each micro-batch of a rank");
    if (comm.sum_order == SumOrder::library) contradicts("--sum-order library", "its order depends on the number of ranks");
  });
}

void add_kept_type_options(OptionTable& table, UnitTypes& types) {
  const auto kept = dtype_names(false);
  table.choice<DType>("master-dtype", types.master, kept,
                      "Type of the parameters that the optimizer updates. bf16, with --precision bf16: the parameters "
                      "themselves, without an fp32 copy; the optimizer computes in fp32, and new parameters are rounded at "
                      "random (by --seed), so that small changes add up.");
  table.choice<DType>(
      "grad-dtype", types.gradient, kept,
      "Type in which a rank keeps sums of gradients between micro-batches and until the step of the optimizer. bf16 takes "
      "half the memory; sums are made in fp32, and rounded at random.");
  table.then([&types](const OptionTable&) {
    if (types.master != DType::f32 && types.parameter != types.master)
      throw UserError(
          format("--master-dtype {} needs --precision {} (the optimizer updates the same parameters that the model computes "
                 "with, which are {}); give both, or leave it out",
                 name_of(types.master), name_of(types.master), name_of(types.parameter)));
  });
}

void add_offload_options(OptionTable& table, ShardingOptions& sharding, std::filesystem::path* nvme_path) {
  StatePlaces& places = sharding.plan.places;
  const std::vector<std::pair<std::string, const Space*>> names = {
      {"none", nullptr}, {"cpu", &spaces::host}, {"nvme", &spaces::nvme}};
  table.choice<const Space*>(
      "offload-params", places.parameters, names,
      "cpu: on GPUs, keep parameters, gradients and optimizer state in the host's memory. nvme: keep parameters and optimizer "
      "state in a file in --nvme-path, and gradients in the host's memory. Units are copied to the device one after another, "
      "and the device does all the work. Results are the same.");
  table
      .choice<const Space*>(
          "offload-optimizer", places.optimizer, names,
          "cpu: on GPUs, keep gradients, optimizer state and, with --bf16 or --fp16, the fp32 copy of the parameters in the "
          "host's memory. nvme: keep the optimizer state and the fp32 copy in a file in --nvme-path, and gradients in the "
          "host's memory. --offload-params decides where the other parameters are.")
      .follows("as --offload-params");
  if (nvme_path)
    table
        .path("nvme-path", "DIR", *nvme_path,
              "Folder on a local disk for the files of --offload-params nvme and --offload-optimizer nvme. Each rank has one "
              "file without a name, which the system deletes when the rank ends.")
        .unset("nothing is in a file")
        .sets("folder of state");
  const auto spelled = std::make_shared<bool>(false);  // the step of the table keeps `spelled` alive
  table.flag("cpu-offload", *spelled, "fairseq's spelling of --offload-params cpu; needs --bf16 or --fp16.").spelling();
  table.then([&sharding, nvme_path, spelled](const OptionTable& given) {
    StatePlaces& at = sharding.plan.places;
    if (*spelled && sharding.types.parameter == DType::f32)
      throw UserError(
          "--cpu-offload needs --bf16 or --fp16 (as in fairseq); give one of these, or --offload-params cpu instead");
    if (*spelled && given.given("offload-params") && at.parameters != &spaces::host)
      throw UserError(format("--cpu-offload contradicts --offload-params {}; leave one out", at.parameters ? "nvme" : "none"));
    if (*spelled) at.parameters = &spaces::host;
    const char* const parameters = *spelled                         ? "cpu-offload"
                                   : at.parameters == &spaces::nvme ? "offload-params nvme"
                                                                    : "offload-params cpu";
    if (at.parameters && given.given("offload-optimizer") && !at.optimizer)
      throw UserError(format(
          "--{} contradicts --offload-optimizer none (if parameters are offloaded, the optimizer's state is, too); leave "
          "one out",
          parameters));
    if (at.parameters == &spaces::nvme && given.given("offload-optimizer") && at.optimizer != &spaces::nvme)
      throw UserError(
          "--offload-params nvme contradicts --offload-optimizer cpu (the optimizer's state is the larger part); give "
          "--offload-params cpu --offload-optimizer nvme, or leave out --offload-optimizer");
    if (at.parameters && !given.given("offload-optimizer")) at.optimizer = at.parameters;
    if (at.optimizer) at.gradients = &spaces::host;
    if (!nvme_path) return;
    if (at.optimizer == &spaces::nvme && nvme_path->empty())
      throw UserError(
          format("--offload-{} nvme needs a folder on a local disk; give --nvme-path DIR, such as a job's folder in /local or "
                 "/scratch of its node",
                 at.parameters == &spaces::nvme ? "params" : "optimizer"));
    if (at.optimizer != &spaces::nvme && !nvme_path->empty())
      throw UserError(
          "--nvme-path changes nothing without --offload-optimizer nvme or --offload-params nvme; give one of these, or leave "
          "it out");
  });
}

void add_comm_options(OptionTable& table, CommOptions& comm) {
  std::vector<std::pair<std::string, std::string>> names;
  std::vector<std::string> about;
  for (const Backend* backend : backends()) {
    names.emplace_back(backend->name, backend->name);
    about.push_back(format("{}: {}", backend->name, backend->about));
  }
  table.choice<std::string>("comm", comm.kind, std::move(names), format("How ranks communicate. {}.", fmt::join(about, "; ")))
      .sets("communication by messages", "--comm mpi");
  table
      .choice<SumOrder>("sum-order", comm.sum_order, {{"canonical", SumOrder::canonical}, {"library", SumOrder::library}},
                        "Order of sums over ranks with NCCL. canonical: the same order, and so the same bits, as with any "
                        "other --comm; library: NCCL's own order, which may be faster and depends on the version of NCCL, "
                        "the connections of the GPUs and the number of ranks.")
      .sets("sums in NCCL's order", "--sum-order library");
  table.size(
      "sum-staging", "SIZE", comm.sum_staging_bytes,
      "The most memory of a GPU in which the ranks of a group exchange the numbers of a sum in canonical order, with NCCL; "
      "a larger sum is computed in pieces. Results do not depend on it.",
      std::size_t{1} << 20);
  table
      .duration("collective-timeout", "TIME", comm.timeout_s,
                "If a rank lets the others wait this long in a collective, end the job with an error that names the rank; 0: "
                "wait for ever.")
      .sets("longest wait");
}

void add_comm_thread_option(OptionTable& table, bool& comm_thread) {
  table.flag("comm-thread", comm_thread,
             "On CPUs: gather and reduce on an additional thread while the model computes. That thread needs a core: unless "
             "--threads or OMP_NUM_THREADS is given, the computation uses one core less. At the same number of computing "
             "threads, results have the same bits as without the option.");
}

void add_launcher_option(OptionTable& table, std::string& words) {
  table
      .text("launcher", "WORDS", words,
            "how ranks are started, with the numbers in {nodes}, {per-node} and {ranks}: 'mpiexec -n {ranks} --ppn {per-node}'")
      .unset("srun in a Slurm job, mpiexec with the job's nodes in a PBS or LSF job, flux run in a Flux job, else mpirun");
}

void add_gemm_algorithms_option(OptionTable& table, std::filesystem::path& file) {
  table
      .path(
          "gemm-algorithms", "FILE", file,
          "GPUs: use cuBLASLt's algorithms in FILE. At the start, rank 0 times up to 16 algorithms for each matrix product of "
          "the model that FILE lacks, and adds the fastest; FILE is made if it does not exist. Other algorithms may give other "
          "bits, so keep FILE with the run. A file of another GPU or version of cuBLASLt is refused.")
      .unset("the algorithm that cuBLASLt itself chooses")
      .sets("file of algorithms");
}

void add_device_option(OptionTable& table, DeviceChoice& device, const std::string& more) {
  table
      .choice<DeviceChoice>("device", device,
                            {{"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}},
                            "Device to compute on; auto is a GPU if the process sees one, else the CPU; it is an error if the "
                            "job has GPUs that cannot be used." +
                                more)
      .sets("device")
      .common();
}

void add_attention_option(OptionTable& table, AttentionBackend& backend) {
  table
      .choice<AttentionBackend>(
          "attention-backend", backend,
          {{"own", AttentionBackend::own},
           {"cudnn", AttentionBackend::cudnn},
           {"auto", AttentionBackend::automatic},
           {"local", AttentionBackend::own},
           {"fused", AttentionBackend::cudnn}},
          "Attention in training on GPUs, in bf16 or fp16. own: by the kernels of fsdp; cudnn: by cuDNN's "
          "deterministic kernels; auto: by cuDNN if it can compute it. fsdp's kernels compute attention "
          "with dropout, of documents, and of heads that cuDNN does not take. local and fused are "
          "Megatron's names of own and cudnn.")
      .sets("attention backend");
}

void add_bias_gelu_option(OptionTable& table, bool& fusion) {
  table.flag("bias-gelu-fusion", fusion,
             "On GPUs, in bf16 or fp16: cuBLASLt adds biases, computes their gradients, and multiplies by the gradient of GELU "
             "(tanh form) in the same pass as a matrix product. Saves memory traffic; results have other last digits.");
}

void add_text_options(OptionTable& table, std::string& json_field, bool& chat, RecordForm& form, bool& skip_invalid,
                      const std::string& with_masks) {
  table
      .text("json-field", "NAME", json_field,
            "The texts are JSON, lines or an array of objects, or rows of Parquet files. Field NAME of each object is a "
            "document, tokenized by itself, or a list of tokens, which are taken as they are.")
      .unset("text, if the content or the name of a file shows that it is JSON; other files are plain text")
      .sets("field of JSON");
  table
      .flag(
          "chat", chat,
          "The texts are JSON, lines or an array of conversations, {\"messages\": [{\"role\": .., \"content\": ..}, ..]}, also "
          "with \"tools\", or {\"prompt\": .., \"completion\": ..}. Each is a document, written by the chat template in the "
          "tokenizer's folder. " +
              with_masks)
      .sets("conversations");
  add_record_form_options(table, form, chat);
  table.flag("skip-invalid", skip_invalid, "Skip lines or objects of JSON without a usable text, and report their number.")
      .sets("skipping of lines");
}

void add_record_form_options(OptionTable& table, RecordForm& form, const bool& chat) {
  std::vector<std::pair<std::string, std::string>> names;
  std::string about = "The form of the conversations, for --chat.";
  for (const auto& [name, keys] : record_forms()) {
    names.emplace_back(name, name);
    about += format(" {}: {}.", name, keys);
  }
  table.choice<std::string>("json-format", form.name, names, about).sets("form of JSON");
  table
      .text("json-names", "NAMES", form.names,
            "Names that the data have in place of those of --json-format, as in "
            "conversations=dialog,from=speaker,value=text,human=student.")
      .unset("the names of --json-format")
      .sets("names in JSON");
  table.then([&](const OptionTable&) {
    RecordReader{form};  // throws if the form has none of the names
    if (!chat && form != RecordForm())
      throw UserError(
          "--json-format and --json-names change nothing (they are for conversations); give --chat, or leave them out");
  });
}

void add_chat_template_option(OptionTable& table, std::filesystem::path& file, const std::string& more) {
  table
      .path("chat-template", "FILE", file,
            "Template of conversations: a file in Jinja, or, if its name ends in .json, a file with \"chat_template\" such as "
            "tokenizer_config.json." +
                more)
      .alias("chat-template-path")
      .unset("chat_template.jinja or tokenizer_config.json next to the tokenizer")
      .sets("chat template");
  table.then([&file](const OptionTable&) {
    if (!file.empty() && kind_of(file) == PathKind::missing)
      throw UserError(
          format("--chat-template '{}' does not exist (a file with a template is needed); check the path", file.string()));
  });
}

Option& add_threads_option(OptionTable& table, std::size_t& threads) {
  return table.integer("threads", "N", threads, {0, 4096},
                       "OpenMP threads per rank; 0: OMP_NUM_THREADS, or else this rank's share of the node's cores, at most "
                       "SLURM_CPUS_PER_TASK.");
}

void add_base_type_option(OptionTable& table, std::optional<kernels::Quantization>& type, const std::string& help) {
  using Type = std::optional<kernels::Quantization>;
  struct Spellings {
    bool int8 = false, nf4 = false;
  };
  const auto spelled = std::make_shared<Spellings>();  // the steps of the table keep `spelled` alive
  table
      .choice<Type>("base-dtype", type, {{"int8", kernels::Quantization::int8}, {"nf4", kernels::Quantization::nf4}},
                    help + " int8: a scale per row; nf4: 4 bits, with scales for blocks of 64, as in QLoRA.")
      .unset("the type with which given adapters were trained, or that of --precision")
      .sets("type of the base model");
  table.flag("load-in-8bit", spelled->int8, "transformers' spelling of --base-dtype int8.").spelling();
  table.flag("load-in-4bit", spelled->nf4, "transformers' spelling of --base-dtype nf4.").spelling();
  table.then([&type, spelled](const OptionTable& given) {
    if (!spelled->int8 && !spelled->nf4) return;
    if (given.given("base-dtype") || (spelled->int8 && spelled->nf4))
      throw UserError("--base-dtype, --load-in-8bit and --load-in-4bit contradict each other (each sets one type); give one");
    type = spelled->int8 ? kernels::Quantization::int8 : kernels::Quantization::nf4;
  });
}

void add_adapter_option(OptionTable& table, std::filesystem::path& adapter) {
  table
      .path("adapter", "DIR", adapter,
            "use the model with these adapters: a folder of PEFT (adapter_config.json and adapter_model.safetensors), or a "
            "checkpoint of fsdp-train --lora-rank")
      .unset("none, or those of MODEL, if MODEL is such a checkpoint")
      .sets("adapter");
}

void add_no_verify_option(OptionTable& table, bool& no_verify) {
  table
      .flag("no-verify", no_verify,
            "Do not check the checksums of checkpoints and models, nor compare the contents of files between nodes: reading is "
            "faster if the disk is fast, and damaged numbers are not noticed.")
      .sets("unchecked reading");
}

void add_average_option(OptionTable& table, bool& use_ema) {
  table
      .flag("use-ema", use_ema,
            "Take the moving average of the weights that fsdp-train --ema-decay has kept, instead of the weights.")
      .sets("weights of the average");
}

namespace {

/// Returns "2 GPUs", or why no GPU can be used.
std::string gpus_of_this_machine() {
  std::string why;
  if (const int count = visible_gpus(&why); count > 0) return plural(count, "GPU");
  return format("no GPU here ({})", why.empty() ? "there is none" : why);
}

/// The text of --version: the versions of the program, MPI, HDF5 and other libraries, and the GPUs of this machine.
std::string full_version_text(std::string_view program) {
  return version_text(program, {{"MPI", MpiSession::library_version()},
                                {"HDF5", h5::library_version()},
                                {"GEMM", kernels::gemm_description()},
                                {"JSON", format("nlohmann {}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                                                NLOHMANN_JSON_VERSION_PATCH)},
                                {"zstd", zstd_version()},
                                {"CUDA", gpus_of_this_machine()}});
}

}  // namespace

std::optional<std::string> answer(const OptionTable& table, Request request) {
  switch (request) {
    case Request::help:
      return table.help();
    case Request::markdown:
      return table.markdown();
    case Request::version:
      return full_version_text(table.program());
    case Request::print_config:
      return table.config();
    case Request::run:
      break;
  }
  return {};
}

}  // namespace fsdp
