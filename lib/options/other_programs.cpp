#include "options/other_programs.hpp"

#include <iterator>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/format.hpp"

namespace fsdp {

namespace {

/// A row has option names of other programs that mean the same, separated by spaces, and what to give instead. "name=value" is
/// a name for one value of an option that fsdp-train also has; "name=N,N" means a list for an option that takes one number in
/// fsdp-train.
struct OtherOption {
  std::string_view names, instead, why = "another program's name for it";
};

constexpr std::string_view shards_by_itself = "fsdp-train shards by itself";

// clang-format off
constexpr OtherOption rows[] = {
    // data
    {"training.dataset training.dataset-path dataloader.dataset dataloader.dataset-path train-file train-data-path dataset-name", "give DATA"},
    {"data-path", "give DATA: NAME for NAME.bin and NAME.idx, and shares as in a:0.7,b:0.3"},
    {"valid-data-path validation-file do-eval validation.enable validation.dataset validation.dataset-path validator.enable dataset-val", "give --valid DATA"},
    {"train-subset valid-subset combine-valid-subsets", "give other data sets as DATA and --valid", "a data-bin folder is read with its splits train and valid"},
    {"split", "give --valid another data set; fsdp-tokenize --valid-fraction makes two", "all of DATA is for training"},
    {"nval validation.steps validator.steps eval-iters", "give --max-valid-steps"},
    {"shorten-method shorten-data-split-list", "give --long-rows truncate", "documents that are longer than a sequence take several"},
    {"seq-length max-seq-length max-seq-len max-position-embeddings max-target-positions training.seq-len training.max-context-length", "give --tokens-per-sample"},
    {"reset-position-ids reset-attention-mask", "give --document-attention"},
    {"eod-mask-loss", "give --mask FILE", "a mask has a 1 for each token that counts in the loss"},
    {"tokenizer-name tokenizer-model tokenizer-type vocab-file merge-file bpe hf-assets-path model.hf-assets-path model.tokenizer-path", "give --tokenizer DIR"},
    {"num-workers dataloader-num-workers", "leave it out", "each rank reads its next batch while it computes"},
    // model
    {"model.name model.flavor config-name", "give --arch NAME"},
    {"model-name-or-path checkpoint-dir checkpoint.initial-load-in-hf", "give --model DIR; nothing is downloaded"},
    {"num-layers decoder-layers-to-keep", "give --decoder-layers"},
    {"hidden-size decoder-input-dim decoder-output-dim", "give --decoder-embed-dim"},
    {"ffn-hidden-size", "give --decoder-ffn-embed-dim"},
    {"num-attention-heads", "give --decoder-attention-heads"},
    {"num-query-groups group-query-attention", "give --decoder-kv-heads"},
    {"make-vocab-size-divisible-by output-dictionary-size", "give --vocab-size", "any size of the vocabulary works"},
    {"untie-embeddings-and-output-weights", "give --share-decoder-input-output-embed=false"},
    {"hidden-dropout activation-dropout relu-dropout", "give --dropout"},
    {"swiglu squared-relu normalization norm-epsilon position-embedding-type use-rotary-position-embeddings rotary-base rotary-percent kv-channels disable-bias-linear add-qkv-bias", "give --arch NAME, or --model DIR, whose config.json sets it", "it belongs to the model's family"},
    {"no-bias-gelu-fusion", "leave it out", "biases are fused only with --bias-gelu-fusion"},
    {"use-peft use-lora lora peft-type r", "give --lora-rank R"},
    {"use-dora", "leave it out", "adapters have no magnitude vectors"},
    // batch
    {"micro-batch-size per-device-train-batch-size train-micro-batch-size-per-gpu local-batch-size training.local-batch-size training.batch-size", "give --batch-size"},
    {"global-batch-size train-batch-size training.global-batch-size", "give --total-batch-size"},
    {"required-batch-size-multiple", "leave it out", "each batch has --batch-size sequences"},
    {"required-seq-len-multiple", "give --pad-to-multiple-of"},
    {"update-freq=N,N", "give one number", "one number holds for the whole run"},
    // optimizer and schedule
    {"optim optimizer.name", "give --optimizer"},
    {"optimizer=nag", "give --optimizer sgd --momentum M --nesterov"},
    {"learning-rate max-lr optimizer.lr", "give --lr"},
    {"lr=N,N", "give one number, and --lr-scheduler", "one rate holds for the whole run"},
    {"adam-beta1 adam-beta2 optimizer.beta1 optimizer.beta2", "give --adam-betas"},
    {"adam-epsilon optimizer.eps", "give --adam-eps"},
    {"optimizer.weight-decay start-weight-decay end-weight-decay", "give --weight-decay"},
    {"sgd-momentum", "give --momentum"},
    {"clip-grad max-grad-norm gradient-clipping training.max-norm", "give --clip-norm"},
    {"lr-decay-style lr-scheduler.decay-type", "give --lr-scheduler"},
    {"lr-scheduler=polynomial", "give --lr-scheduler polynomial_decay, with --power"},
    {"lr-scheduler=constant", "give --lr-scheduler fixed, or constant_with_warmup for a warm-up"},
    {"lr-scheduler=reduce_lr_on_plateau lr-scheduler=greedy", "give another --lr-scheduler", "rates do not depend on losses here"},
    {"lr-scheduler=tri_stage lr-scheduler=warmup_stable_decay decay-steps hold-steps phase-ratio lr-wsd-decay-iters lr-wsd-decay-style lr-scheduler.decay-ratio", "give --lr-scheduler wsd, with --warmup-updates and --decay-updates"},
    {"warmup-steps lr-warmup-iters lr-warmup-samples lr-scheduler.warmup-steps", "give --warmup-updates, a number of updates, or --warmup-ratio"},
    {"lr-warmup-fraction", "give --warmup-ratio"},
    {"lr-decay-iters lr-decay-samples lr-period-updates lr-scheduler.total-steps", "give --total-num-update"},
    {"min-lr shrink-min", "give --end-learning-rate, a rate"},
    {"final-lr-scale lr-scheduler.min-lr-factor", "give --min-lr-ratio"},
    {"train-iters max-steps training.steps exit-interval", "give --max-update"},
    {"num-train-epochs", "give --max-epoch"},
    {"train-samples", "give --max-update or --max-epoch"},
    {"stop-time-hours exit-duration-in-mins", "give --stop-before, or send SIGUSR1", "the scheduler knows when a job ends"},
    // precision
    {"mixed-precision torch-dtype training.mixed-precision-param model.converters", "give --precision"},
    {"amp fp16.enabled", "give --fp16"},
    {"bf16.enabled tf32 fp8-format", "give --bf16"},
    {"memory-efficient-fp16 memory-efficient-bf16", "give --bf16 --master-dtype bf16"},
    {"training.dtype main-params-dtype", "give --master-dtype"},
    {"main-grads-dtype accumulate-allreduce-grads-in-fp32", "give --grad-dtype"},
    {"exp-avg-dtype exp-avg-sq-dtype fp16-adam-stats", "give --optimizer-state-dtype"},
    {"fp32-reduce-scatter", "give --reduce-dtype fp32"},
    {"grad-reduce-in-bf16", "give --reduce-dtype bf16"},
    {"ddp-comm-hook training.mixed-precision-reduce", "give --reduce-dtype"},
    {"initial-loss-scale loss-scale amp-init-scale", "give --fp16-init-scale"},
    {"loss-scale-window amp-scale-window", "give --fp16-scale-window"},
    {"hysteresis", "give --fp16-scale-tolerance", "it is a share of the updates here"},
    {"store-ema", "give --ema-decay"},
    {"ema-fp32 ema-update-freq ema-seed-model", "leave it out", "the average is in fp32, moves after each update, and begins with the weights"},
    {"fp16-no-flatten-grads", "leave it out", "gradients keep their names and shapes"},
    // ranks and devices
    {"nproc-per-node nprocs-per-node num-processes num-gpus multi-gpu distributed-world-size distributed-num-procs", "start that many, as in mpirun -np 8", "the launcher sets the number of ranks"},
    {"nnodes num-nodes num-machines hostfile", "start the job with srun or mpirun", "the launcher chooses the nodes"},
    {"node-rank machine-rank local-rank distributed-rank distributed-init-method distributed-port master-addr master-port main-process-ip main-process-port rdzv-backend rdzv-endpoint", "leave it out", "the launcher numbers the ranks, and they find each other by MPI"},
    {"distributed-backend", "give --comm, if not auto", "ranks find each other by MPI"},
    {"cpu use-cpu", "give --device cpu"},
    {"device-id gpu-ids", "set CUDA_VISIBLE_DEVICES", "each rank takes the GPU of its local rank"},
    {"num-cpu-threads-per-process", "give --threads"},
    {"heartbeat-timeout distributed-timeout-minutes comm.init-timeout-seconds comm.train-timeout-seconds", "give --collective-timeout"},
    {"max-restarts exit-signal-handler", "see docs/slurm.md"},
    // sharding
    {"fsdp fsdp-version fsdp-sharding-strategy use-fsdp use-deepspeed use-megatron-lm use-torch-fsdp2 use-megatron-fsdp use-custom-fsdp data-parallel-sharding-strategy", "give --sharding-strategy", shards_by_itself},
    {"zero-stage stage zero-optimization.stage", "give --sharding-strategy optim (1), grad-op (2) or full (3)", shards_by_itself},
    {"use-distributed-optimizer zero-sharding", "give --sharding-strategy optim", shards_by_itself},
    {"fsdp-reshard-after-forward parallelism.fsdp-reshard-after-forward", "give --sharding-strategy full (true) or grad-op (false)"},
    {"mics-shard-size zero-hpz-partition-size parallelism.data-parallel-shard-degree parallelism.data-parallel-replicate-degree", "give --sharding-strategy hybrid --shard-group-size N, the ranks of a group"},
    {"tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size expert-model-parallel-size sequence-parallel tensor-parallel-size model-parallel-size pipeline-model-parallel parallelism.tensor-parallel-degree parallelism.pipeline-parallel-degree parallelism.context-parallel-degree parallelism.expert-parallel-degree", "give --sharding-strategy full", "models are sharded over data-parallel ranks only"},
    {"auto-wrap-policy fsdp-auto-wrap-policy", "give --wrap-policy transformer, size or none"},
    {"min-params-to-wrap fsdp-min-num-params", "give --wrap-policy size --min-num-params N"},
    {"fsdp-transformer-layer-cls-to-wrap bucket-cap-mb allgather-bucket-size reduce-bucket-size", "give --wrap-layers", "a unit, of one or more blocks, is gathered and reduced at once"},
    {"fsdp-backward-prefetch fsdp-backward-prefetch-policy", "give --backward-prefetch pre, post or none"},
    {"fsdp-forward-prefetch", "give --forward-prefetch, which is the default"},
    {"limit-all-gathers=true limit-all-gathers=True limit-all-gathers=false limit-all-gathers=False", "leave it out, or give a number of units", "the number of gathered units always has a limit"},
    {"stage3-max-live-parameters stage3-prefetch-bucket-size", "give --limit-all-gathers", "it is a number of units here"},
    {"overlap-comm overlap-grad-reduce overlap-param-gather", "leave it out, or on CPUs give --comm-thread", "communication overlaps with computation by itself"},
    {"use-orig-params fsdp-use-orig-params", "leave it out", "parameters always have their names"},
    {"sync-module-states fsdp-sync-module-states fsdp-cpu-ram-efficient-loading", "leave it out", "each rank reads or draws its own shards"},
    // memory and kernels
    {"fsdp-activation-checkpointing deepspeed-activation-checkpointing activation-checkpoint.mode recompute-activations recompute-granularity", "give --checkpoint-activations, with --checkpoint-policy block or selective"},
    {"recompute-method", "give --recompute-num-layers N for block, or --checkpoint-activations --checkpoint-every N for uniform"},
    {"activation-checkpoint.selective-ac-option", "give --recompute-num-layers N"},
    {"fsdp-offload-params offload-param-device training.enable-cpu-offload", "give --offload-params cpu or nvme"},
    {"optimizer-cpu-offload offload-optimizer-device offload", "give --offload-optimizer cpu or nvme"},
    {"aio aio.block-size aio.queue-depth aio.thread-count aio.intra-op-parallelism aio.single-submit aio.overlap-events aio.use-gds aio-block-size aio-queue-depth aio-thread-count aio-single-submit aio-overlap-events", "leave it out", "the file's tiles of 1 MiB and its eight threads are fixed"},
    {"offload-param.buffer-count offload-param.buffer-size offload-optimizer.buffer-count buffer-count buffer-size max-in-cpu", "give --limit-all-gathers for parameters, else leave it out", "the plan has two slots for what is loaded"},
    {"offload-optimizer.pipeline-read offload-optimizer.pipeline-write pipeline-read pipeline-write", "leave it out", "units are always read and written while others are computed"},
    {"offload-optimizer.ratio offload-optimizer-fraction optimizer-offload-fraction", "leave it out", "all of the optimizer's state is in one place"},
    {"offload-param.device offload-param.nvme-path offload-optimizer.device offload-optimizer.nvme-path zero-optimization.offload-optimizer zero-optimization.offload-param", "give --offload-params or --offload-optimizer, with --nvme-path for nvme"},
    {"memory-estimation.enable profiling.enable-memory-snapshot", "give --dry-run, or see fsdp-plan", "memory is planned before the run"},
    {"compile torch-compile compile.enable training.compile", "leave it out", "kernels are compiled when the program is built"},
    {"use-flash-attn", "leave it out", "attention keeps no matrix of scores"},
    {"debug.batch-invariant", "give --invariant"},
    // checkpoints and validation
    {"save output-dir dump-folder job.dump-folder checkpoint.folder", "give --save-dir"},
    {"save-steps save-strategy checkpoint.interval", "give --save-interval-updates, or --save-interval-epochs 1 for each epoch"},
    {"save-total-limit keep-interval-updates keep-last-epochs keep-last-n-checkpoints checkpoint.keep-latest-k", "give --keep-last N"},
    {"keep-interval-updates-pattern", "give --keep-every N"},
    {"load resume-from-checkpoint restore-file continue-once checkpoint.load-step", "give --restore PATH for another checkpoint", "the same command resumes its run"},
    {"finetune finetune-from-model checkpoint.initial-load-path checkpoint.initial-load-model-only", "give --finetune-from PATH"},
    {"use-sharded-state use-dist-ckpt", "leave it out", "checkpoints are sharded"},
    {"no-load-optim", "give --reset-optimizer"},
    {"no-save-optim no-save-optimizer-state ckpt-format checkpoint.last-save-model-only checkpoint.last-save-in-hf zero3-save-16bit-model push-to-hub", "see fsdp-consolidate", "a run needs all of its checkpoint"},
    {"async-save save-async write-checkpoints-asynchronously checkpoint.async-mode", "leave it out, or give --no-async-save", "saves are asynchronous"},
    {"no-last-checkpoints checkpoint.enable checkpoint.load-only", "give --no-save to save nothing", "a run ends with a save"},
    {"overwrite-output-dir", "give another --save-dir", "steps that are there are not overwritten"},
    {"eval-interval eval-steps eval-strategy evaluation-strategy validation.freq validator.freq", "give --validate-interval-updates, or --validate-interval-epochs 1 for each epoch"},
    // the run
    {"config-file job.config-file", "give --config FILE, with the names of these options"},
    {"deepspeed deepspeed-config", "see docs/from-deepspeed.md for each key", "its keys are options here"},
    {"fsdp-config", "see docs/from-pytorch.md for each key", "its keys are options here"},
    {"debug.seed", "give --seed"},
    {"debug.print-config job.print-config", "give --print-config"},
    {"logging-steps metrics.log-freq steps-per-print", "give --log-interval"},
    {"tensorboard-dir tensorboard-logdir logging-dir metrics.enable-tensorboard", "give --tensorboard DIR"},
    {"wandb-project report-to metrics.enable-wandb metric-logger", "leave it out", "the run writes report.html into --save-dir; fsdp-report compares runs"},
    {"log-params-norm", "give --log-group-norms"},
    {"no-progress-bar", "give --log-format simple"},
    {"profile timing-log-level wall-clock-breakdown profiling.enable-profiling profiler profiler.enable-profiling", "give --trace FILE"},
    {"profiling.profile-freq profiler.profile-freq", "give --trace-updates"},
    {"comm.trace-buf-size", "see fsdp-inspect --flight", "the last operations of each rank are always recorded"},
    // TRL and the Trainer, for which no row above has the name
    {"dataset-config dataset-train-split dataset-test-split dataset-num-proc datasets model-revision base-model trust-remote-code dataset-streaming dataset-kwargs base-model-name-or-path revision hub-revision", "give DATA and --model DIR; nothing is downloaded", "data and models are files"},
    {"dataset-text-field column", "give --json-field"},
    {"max-length sequence-len", "give --tokens-per-sample"},
    {"packing=True packing=true packing-strategy sample-packing multipack-real-batches packed", "give --packing best-fit, with --break-mode complete and --document-attention; documents that are too long: --long-rows truncate (TRL's bfd) or split (bfd_split)"},
    {"packing=False packing=false", "give --break-mode eos: a document in each sequence"},
    {"train-sampling-strategy", "give --group-by-length for group_by_length, and --shuffle for random"},
    {"length-column-name", "leave it out", "lengths are counted"},
    {"padding-free", "leave it out", "a micro-batch is computed up to its last target; see --group-by-length"},
    {"pad-to-sequence-len", "give --pad-to-multiple-of, with the number of --tokens-per-sample", "a micro-batch is computed up to its last target"},
    {"excess-length-strategy truncation-mode", "give --long-rows drop, truncate or split"},
    {"shuffle-dataset", "give --shuffle"},
    {"data-seed full-determinism", "give --seed", "a run depends only on its options"},
    {"add-eos-token eos-token", "give fsdp-tokenize --append-eos"},
    {"pad-token", "leave it out", "padding is no token"},
    {"val-set-size", "give fsdp-tokenize --valid-fraction", "all of DATA is for training"},
    {"do-train do-predict prediction-loss-only remove-unused-columns", "leave it out; fsdp-evaluate and fsdp-generate are programs of their own", "fsdp-train trains"},
    {"per-device-eval-batch-size eval-accumulation-steps bf16-full-eval fp16-full-eval", "leave it out", "validation has the batches and the precision of training"},
    {"eval-delay logging-first-step logging-strategy logging-nan-inf-filter log-level log-on-each-node include-tokens-per-second include-num-input-tokens-seen disable-tqdm", "give --log-format, --log-interval, --validate-interval-updates", "updates and validations are logged at these intervals"},
    {"num-epochs max-epochs epochs", "give --max-epoch"},
    {"accumulate-grad-batches", "give --update-freq"},
    {"gradient-clip-val clip-grad-norm", "give --clip-norm"},
    {"dtype", "give --precision"},
    {"attn-implementation use-liger-kernel use-liger torch-compile-backend torch-compile-mode", "leave it out", "there is one kernel for each operation"},
    {"activation-offloading enable-activation-offloading activation-checkpoint-cpu-offload offload-residual cpu-checkpointing", "give --offload-activations"},
    {"gradient-checkpointing-kwargs activation-checkpointing activation-checkpointing-kwargs enable-activation-checkpointing ac-mode ac-option", "give --checkpoint-activations, with --checkpoint-policy"},
    {"optim-args lr-scheduler-kwargs", "give --adam-betas, --adam-eps, --momentum, --decay-updates, --min-lr-ratio, --num-cycles, --power", "each number is an option"},
    {"save-safetensors save-only-model", "see fsdp-consolidate --format safetensors", "a run needs all of its checkpoint"},
    {"load-best-model-at-end", "give --keep-best loss, and use the folder 'best' in --save-dir"},
    {"greater-is-better maximize-best-checkpoint-metric early-stopping-threshold", "leave it out", "the smallest validation loss is the best"},
    {"keep-best-checkpoints", "give --keep-best loss", "the best checkpoint is kept, and no others for their loss"},
    {"no-epoch-checkpoints", "leave it out", "saves by epochs are made only with --save-interval-epochs"},
    {"ignore-data-skip", "give --reset-dataloader"},
    {"auto-find-batch-size", "see fsdp-bench tuning"},
    {"dataloader-drop-last dataloader-pin-memory dataloader-persistent-workers dataloader-prefetch-factor", "leave it out", "each rank reads its next batch while it computes"},
    {"ddp-find-unused-parameters ddp-bucket-cap-mb ddp-broadcast-buffers accelerator-config parallelism-config average-tokens-across-devices", "leave it out", shards_by_itself},
    {"ddp-timeout", "give --collective-timeout"},
    {"no-cuda", "give --device cpu"},
    {"use-mps-device", "leave it out", "there are kernels for x86-64, aarch64 and CUDA"},
    {"hub-model-id hub-token hub-strategy hub-private-repo", "upload the folder of fsdp-consolidate --format safetensors", "nothing is uploaded"},
    {"run-name project trackio-space-id", "give --log-file", "metrics are lines of JSON"},
    {"bnb-4bit-quant-type bnb-4bit-use-double-quant use-bnb-nested-quant", "give --base-dtype nf4", "its scales are always quantized, too"},
    {"bnb-4bit-compute-dtype", "give --precision", "matrices are expanded to that type"},
    {"criterion=label_smoothed_cross_entropy", "give --label-smoothing E V / (V - 1), for fairseq's E and V tokens", "fairseq spreads E over the other V - 1 tokens"},
    {"loss-type", "leave it out", "the loss is the cross entropy of the targets (TRL's nll); TRL's dft and losses of preferences are not here"},
    {"eval-packing", "leave it out", "validation is packed as training is"},
    {"exclude-modules layers-pattern", "give --lora-targets with shell globs"},
    {"lora-task-type task-type inference-mode fan-in-fan-out auto-mapping peft-version runtime-config megatron-config megatron-core", "leave it out", "adapters are those of causal language models"},
    {"init-lora-weights layer-replication loftq-config eva-config corda-config lora-ga-config lora-bias lora-target-parameters target-parameters use-qalora qalora-group-size use-bdlora velora-config arrow-config kasa-config monteclora-config alora-invocation-tokens", "leave it out", "adapters are PEFT's LoRA, with its usual first values"},
    {"bnb-4bit-quant-storage", "leave it out", "quantized matrices are stored as they are computed with"},
    {"batch-eval-metrics include-for-metrics eval-do-concat-batches eval-use-gather-object label-names", "see fsdp-evaluate --per-token", "a validation gives loss, accuracy and entropy"},
    {"dataloader-in-order dataloader-multiprocessing-context ddp-static-graph save-on-each-node enable-jit-checkpoint restore-callback-states-from-checkpoint liger-kernel-config torch-empty-cache-steps use-cache skip-memory-metrics debug ignore-bias-buffers log-level-replica router-aux-loss-coef optim-target-modules hub-always-push trackio-bucket-id trackio-static-space-id", "leave it out; see docs/from-trl.md", "it has no counterpart"},
    // torchtune, for which no row above has the name
    {"max-steps-per-epoch", "give --max-update", "it ends the run"},
    {"num-warmup-steps", "give --warmup-updates"},
    {"log-every-n-steps", "give --log-interval"},
    {"run-val-every-n-steps", "give --validate-interval-updates"},
    {"batch-size-val", "leave it out", "validation has the batches of training"},
    {"fsdp-cpu-offload", "give --offload-params cpu"},
    {"custom-sharded-layers", "give --wrap-policy custom, with --wrap-units"},
    {"train-on-input", "leave it out, or give --json-field for texts that are learned as a whole", "with --chat only answers are learned"},
    {"memory-efficient-fsdp-wrap", "leave it out", "the embedding and the head are units of their own unless they are tied"},
    {"optimizer-in-bwd", "leave it out", "the norm of the whole gradient is known before an update"},
    {"lora-attn-modules apply-lora-to-mlp apply-lora-to-output", "give --lora-targets"},
    {"quantize-base", "give --base-dtype nf4"},
    {"enable-async-checkpointing", "leave it out, or give --no-async-save", "saves are asynchronous"},
    {"save-adapter-weights-only", "see fsdp-consolidate --adapter", "a run needs all of its checkpoint"},
    {"dpo orpo kto dpo-alpha reference-free ref-model model-init-kwargs precompute-ref-log-probs rpo-alpha sync-ref-model beta", "train on the chosen answers, or use TRL with the model of fsdp-consolidate", "DPO and other training on preferences are not here"},
    {"ppo grpo reward-model-path reward-funcs num-generations kl-coef max-prompt-length max-completion-length generate-during-eval use-vllm num-ppo-epochs", "use TRL with the model of fsdp-consolidate", "reward models and reinforcement learning are not here"},
    {"sweep sweep-config hp-space n-trials hyperparameter-search", "start a job for each choice: slurm/array-sweep.sbatch", "a run has one set of options"},
    {"user-dir experimental.custom-import", "see docs/extending.md", "there is no Python here"},
};
// clang-format on

std::vector<std::string> words(std::string_view names) {
  std::istringstream stream{std::string(names)};
  return {std::istream_iterator<std::string>(stream), {}};
}

}  // namespace

void add_options_of_other_programs(OptionTable& table) {
  for (const OtherOption& row : rows)
    for (const std::string& name : words(row.names)) table.elsewhere(name, format("({}); {}", row.why, row.instead));
  table.config_elsewhere({"\"zero_optimization\"", "\"train_micro_batch_size_per_gpu\"", "\"train_batch_size\""},
                         "(it is a configuration of DeepSpeed, in JSON); give lines 'name = value' with the options that "
                         "docs/from-deepspeed.md has for its keys");
  table.config_elsewhere(
      {"fsdp_config:", "distributed_type:"},
      "(it is a configuration of Hugging Face's accelerate, in YAML); give lines 'name = value' with the options "
      "of --help all");
  table.config_elsewhere({"model_name_or_path:", "base_model:"},
                         "(it is a configuration of TRL or axolotl, in YAML); give lines 'name = value' with the options that "
                         "docs/from-trl.md has for its keys");
  table.config_elsewhere({"_component_:"},
                         "(it is a recipe of torchtune, in YAML); give lines 'name = value' with the options that "
                         "docs/from-torchtune.md has for its keys");
  table.config_elsewhere(
      // [model], [training] and similar sections are missing here, because configuration files of fsdp-train have them, too.
      {"[parallelism]", "[activation_checkpoint]", "[lr_scheduler]", "[job]", "[profiling]", "[experimental]"},
      "(it is a configuration of torchtitan, in TOML); give lines 'name = value' with the options of --help all");
}

std::string names_of_other_programs() {
  std::string out =
      "\n### Names of other programs\n\nIf one of these is given, the error message names what is on its right. A key of a "
      "section, as in torchtitan's files, is written with a point.\n\n| fairseq, PyTorch, Hugging Face, torchtitan, torchtune, "
      "DeepSpeed, "
      "Megatron-LM | here |\n|---|---|\n";
  for (const OtherOption& row : rows) {
    std::string names;
    for (const std::string& name : words(row.names)) names += format("{}`--{}`", names.empty() ? "" : ", ", name);
    out += format("| {} | {}{} |\n", names, row.instead, row.why == OtherOption{}.why ? "" : format(" ({})", row.why));
  }
  return out;
}

}  // namespace fsdp
