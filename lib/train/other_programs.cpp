#include "train/other_programs.hpp"

#include <array>
#include <string_view>

#include "base/format.hpp"

namespace fsdp {

namespace {

struct Row {
  std::string_view program, option, why, instead;
};

constexpr std::string_view fairseq = "fairseq", torch = "torchrun", hugging_face = "Hugging Face", deepspeed = "DeepSpeed";

// clang-format off
constexpr std::array rows = {
    // data
    Row{fairseq, "max-tokens", "sequences have one length here, so that a batch is a number of them", "give --batch-size"},
    Row{fairseq, "max-sentences", "it is the old name of the batch size", "give --batch-size"},
    Row{fairseq, "max-tokens-valid", "validation has the batches of training", "leave it out"},
    Row{fairseq, "batch-size-valid", "validation has the batches of training", "leave it out"},
    Row{fairseq, "num-workers", "each rank reads its next batch while it computes", "leave it out"},
    Row{fairseq, "data-buffer-size", "each rank reads its next batch while it computes", "leave it out"},
    Row{fairseq, "required-batch-size-multiple", "every batch has --batch-size sequences", "leave it out"},
    Row{fairseq, "skip-invalid-size-inputs-valid-test", "sequences are cut to length", "leave it out"},
    Row{fairseq, "dataset-impl", "formats are recognised by what is in a file", "leave it out"},
    Row{fairseq, "train-subset", "of a data-bin folder, DATA is its split train", "name another data set as DATA"},
    Row{fairseq, "valid-subset", "of a data-bin folder, the split valid is validated on", "name another data set by --valid"},
    Row{fairseq, "ignore-unused-valid-subsets", "no other splits are read", "leave it out"},
    Row{fairseq, "disable-validation", "nothing is validated without --valid or a split valid", "leave --valid out"},
    Row{fairseq, "shorten-method", "documents that are longer than a sequence take several", "see --break-mode"},
    Row{fairseq, "max-target-positions", "it follows from the model", "give --tokens-per-sample"},
    Row{fairseq, "add-bos-token", "tokens are taken as they are", "put them there when you tokenize"},
    Row{fairseq, "past-target", "language models predict the next token", "leave it out"},
    Row{fairseq, "self-target", "language models predict the next token", "leave it out"},
    Row{fairseq, "curriculum", "sequences come as in the file, or shuffled from the first pass on", "give --shuffle, or leave it out"},
    // model
    Row{fairseq, "share-decoder-input-output-embed", "it follows from --arch", "choose an --arch with tied embeddings"},
    Row{fairseq, "decoder-input-dim", "it is the width", "give --decoder-embed-dim"},
    Row{fairseq, "decoder-output-dim", "it is the width", "give --decoder-embed-dim"},
    Row{fairseq, "decoder-normalize-before", "it follows from --arch", "leave it out"},
    Row{fairseq, "decoder-learned-pos", "it follows from --arch", "leave it out"},
    Row{fairseq, "activation-fn", "it follows from --arch", "leave it out"},
    Row{fairseq, "activation-dropout", "no family here has it", "give --dropout"},
    Row{fairseq, "decoder-layerdrop", "no layers are dropped", "leave it out"},
    Row{fairseq, "adaptive-softmax-cutoff", "the softmax is over the whole vocabulary", "leave it out"},
    Row{fairseq, "tie-adaptive-weights", "the softmax is over the whole vocabulary", "leave it out"},
    Row{fairseq, "adaptive-input", "each token has an embedding of the same width", "leave it out"},
    Row{fairseq, "offload-activations", "activations stay on the GPU", "give --checkpoint-activations"},
    Row{fairseq, "min-params-to-wrap", "it is called otherwise", "give --wrap-policy size --min-num-params N"},
    Row{fairseq, "criterion", "the loss is the cross entropy of the next token", "leave it out"},
    Row{fairseq, "label-smoothing", "the loss is the cross entropy of the next token", "leave it out"},
    // optimizer
    Row{fairseq, "sentence-avg", "the loss is the mean over tokens", "leave it out"},
    Row{fairseq, "min-lr", "schedules have an end", "give --end-learning-rate"},
    Row{fairseq, "stop-min-lr", "schedules have an end", "give --max-update"},
    Row{fairseq, "warmup-init-lr", "a warm-up begins at 0", "leave it out"},
    Row{fairseq, "warmup-ratio", "a warm-up is a number of updates", "give --warmup-updates"},
    Row{fairseq, "force-anneal", "schedules go by updates", "give --lr-scheduler with --total-num-update"},
    Row{fairseq, "lr-shrink", "schedules go by updates", "give --lr-scheduler with --total-num-update"},
    Row{fairseq, "lr-period-updates", "a cosine falls once", "give --total-num-update"},
    Row{fairseq, "use-old-adam", "there is one Adam", "leave it out"},
    Row{fairseq, "stop-time-hours", "a job's end is known to Slurm", "give --stop-before, or send SIGUSR1"},
    Row{fairseq, "use-bmuf", "gradients are summed in every update", "leave it out"},
    // precision
    Row{fairseq, "memory-efficient-fp16", "the fp32 copy is what --master-dtype says", "give --fp16, or --bf16 --master-dtype bf16"},
    Row{fairseq, "memory-efficient-bf16", "the fp32 copy is what --master-dtype says", "give --bf16 --master-dtype bf16"},
    Row{fairseq, "fp16-no-flatten-grads", "gradients keep their names and shapes in the flat buffer", "leave it out"},
    Row{fairseq, "on-cpu-convert-precision", "the GPU rounds", "leave it out"},
    Row{fairseq, "amp", "each type is an option of its own", "give --fp16 or --bf16"},
    // distributed
    Row{fairseq, "distributed-world-size", "the launcher says how many ranks there are", "start that many, as in mpirun -np 8"},
    Row{fairseq, "distributed-rank", "the launcher gives ranks", "leave it out"},
    Row{fairseq, "distributed-backend", "ranks find each other by MPI", "give --comm, if not auto"},
    Row{fairseq, "distributed-init-method", "ranks find each other by MPI", "leave it out"},
    Row{fairseq, "distributed-port", "ranks find each other by MPI, without a port", "leave it out"},
    Row{fairseq, "device-id", "the device follows from the local rank", "leave it out"},
    Row{fairseq, "cpu", "it is called otherwise", "give --device cpu"},
    Row{fairseq, "bucket-cap-mb", "gradients are reduced unit by unit", "give --wrap-layers"},
    Row{fairseq, "find-unused-parameters", "the plan knows what each layer uses", "leave it out"},
    Row{fairseq, "gradient-as-bucket-view", "gradients lie where they are reduced from", "leave it out"},
    Row{fairseq, "heartbeat-timeout", "a rank that does not come is found out in the collective", "give --collective-timeout"},
    Row{fairseq, "zero-sharding", "strategies have names", "give --sharding-strategy optim for os"},
    Row{fairseq, "use-sharded-state", "checkpoints are sharded", "leave it out"},
    Row{fairseq, "not-fsdp-flatten-parameters", "units are flat", "leave it out"},
    Row{fairseq, "fp32-reduce-scatter", "it is called otherwise", "give --reduce-dtype fp32"},
    Row{fairseq, "model-parallel-size", "models are sharded over data parallel ranks alone", "give --sharding-strategy full"},
    Row{fairseq, "pipeline-model-parallel", "models are sharded over data parallel ranks alone", "give --sharding-strategy full"},
    Row{fairseq, "tpu", "there are CPUs and NVIDIA's GPUs", "give --device cpu or cuda"},
    // checkpoints
    Row{fairseq, "restore-file", "it is called otherwise", "give --restore PATH, or --finetune-from PATH"},
    Row{fairseq, "finetune-from-model", "it is called otherwise", "give --finetune-from PATH"},
    Row{fairseq, "reset-lr-scheduler", "the rate is a function of the update and the command's options", "leave it out"},
    Row{fairseq, "reset-meters", "there are no meters in a checkpoint", "leave it out"},
    Row{fairseq, "keep-interval-updates", "it is called otherwise", "give --keep-last N"},
    Row{fairseq, "keep-interval-updates-pattern", "it is called otherwise", "give --keep-every N"},
    Row{fairseq, "keep-last-epochs", "saves go by updates", "give --keep-last N"},
    Row{fairseq, "keep-best-checkpoints", "checkpoints are kept by their number", "give --keep-last N or --keep-every N"},
    Row{fairseq, "no-epoch-checkpoints", "no pass over the data saves by itself", "leave it out"},
    Row{fairseq, "no-last-checkpoints", "a run ends with a save", "give --no-save"},
    Row{fairseq, "no-save-optimizer-state", "a run that goes on needs it", "leave it out; fsdp-consolidate leaves it out"},
    Row{fairseq, "best-checkpoint-metric", "no checkpoint is the best one", "leave it out"},
    Row{fairseq, "patience", "runs do not stop by themselves", "give --max-update"},
    Row{fairseq, "validate-interval", "validation goes by updates", "give --validate-interval-updates"},
    Row{fairseq, "validate-after-updates", "validation goes by updates", "give --validate-interval-updates"},
    Row{fairseq, "write-checkpoints-asynchronously", "saves are", "leave it out"},
    // run
    Row{fairseq, "tensorboard-logdir", "metrics are lines of JSON", "give --log-file"},
    Row{fairseq, "wandb-project", "metrics are lines of JSON", "give --log-file"},
    Row{fairseq, "no-progress-bar", "it is called otherwise", "give --log-format simple"},
    Row{fairseq, "user-dir", "there is no Python here", "see docs/extending.md"},
    Row{fairseq, "empty-cache-freq", "all memory is planned, and taken once", "leave it out"},
    Row{fairseq, "profile", "it is called otherwise", "give --trace FILE"},
    Row{fairseq, "scoring", "texts are not translated here", "use fsdp-evaluate"},
    Row{fairseq, "fast-stat-sync", "every update has one small sum over ranks", "leave it out"},
    // torchrun and torch
    Row{torch, "nproc-per-node", "the launcher says how many ranks there are", "start that many, as in mpirun -np 8"},
    Row{torch, "nnodes", "the launcher says which nodes there are", "start the job with srun or mpirun"},
    Row{torch, "node-rank", "the launcher gives ranks", "leave it out"},
    Row{torch, "master-addr", "ranks find each other by MPI", "leave it out"},
    Row{torch, "master-port", "ranks find each other by MPI, without a port", "leave it out"},
    Row{torch, "rdzv-backend", "ranks find each other by MPI", "leave it out"},
    Row{torch, "rdzv-endpoint", "ranks find each other by MPI", "leave it out"},
    Row{torch, "max-restarts", "Slurm puts a job back into the queue", "see docs/slurm.md"},
    Row{torch, "compile", "kernels are compiled when the program is built", "leave it out"},
    // transformers.TrainingArguments
    Row{hugging_face, "per-device-train-batch-size", "it is called otherwise", "give --batch-size"},
    Row{hugging_face, "per-device-eval-batch-size", "validation has the batches of training", "leave it out"},
    Row{hugging_face, "learning-rate", "it is called otherwise", "give --lr"},
    Row{hugging_face, "num-train-epochs", "it is called otherwise", "give --max-epoch"},
    Row{hugging_face, "max-steps", "it is called otherwise", "give --max-update"},
    Row{hugging_face, "warmup-steps", "it is called otherwise", "give --warmup-updates"},
    Row{hugging_face, "lr-scheduler-type", "it is called otherwise", "give --lr-scheduler"},
    Row{hugging_face, "max-grad-norm", "it is called otherwise", "give --clip-norm"},
    Row{hugging_face, "output-dir", "it is called otherwise", "give --save-dir"},
    Row{hugging_face, "save-steps", "it is called otherwise", "give --save-interval-updates"},
    Row{hugging_face, "save-total-limit", "it is called otherwise", "give --keep-last"},
    Row{hugging_face, "logging-steps", "it is called otherwise", "give --log-interval"},
    Row{hugging_face, "eval-steps", "it is called otherwise", "give --validate-interval-updates"},
    Row{hugging_face, "resume-from-checkpoint", "the same command goes on", "give --restore PATH for another checkpoint"},
    Row{hugging_face, "model-name-or-path", "it is called otherwise", "give --model DIR; nothing is downloaded"},
    Row{hugging_face, "fsdp", "strategies have names", "give --sharding-strategy"},
    Row{hugging_face, "optim", "it is called otherwise", "give --optimizer"},
    Row{hugging_face, "report-to", "metrics are lines of JSON", "give --log-file"},
    Row{hugging_face, "dataloader-num-workers", "each rank reads its next batch while it computes", "leave it out"},
    // DeepSpeed
    Row{deepspeed, "deepspeed", "it is a trainer of its own", "see docs/from-deepspeed.md for each key of its configuration"},
    Row{deepspeed, "deepspeed-config", "options are those of fsdp-train", "see docs/from-deepspeed.md for each key"},
    Row{deepspeed, "zero-stage", "strategies have names", "give --sharding-strategy optim (1), grad-op (2) or full (3)"},
    Row{deepspeed, "num-gpus", "the launcher says how many ranks there are", "start that many, as in mpirun -np 8"},
    Row{deepspeed, "hostfile", "the launcher says which nodes there are", "start the job with srun or mpirun"},
    Row{deepspeed, "local-rank", "the local rank is the launcher's", "leave it out"},
};
// clang-format on

}  // namespace

void add_options_of_other_programs(OptionTable& table) {
  for (const Row& row : rows)
    table.elsewhere(std::string(row.option), format("(it is of {}; {}); {}", row.program, row.why, row.instead));
}

}  // namespace fsdp
