#!/usr/bin/env bash
# jobs_test.sh REPOSITORY BIN: the other scripts of slurm/ in a real Slurm, and other uses of Slurm: an array, a job
# that depends on another, a terminal on a node, scancel during a save. Exit status 77: this machine cannot have such a
# cluster.
# shellcheck source=tests/slurm/support.sh disable=SC2317  # Many functions are called through others here.
set -euo pipefail
. "$1/tests/slurm/support.sh"
fsdp_slurm_test jobs "$1"
fsdp_slurm_programs "$1" "$2"

step "up"
cluster_up --nodes 2 --cpus 4 --gpus 2
small_run
two_ranks=(--nodes=1 --mincpus=2 --cpus-per-task=1 --time=10)

step "an array, and a model made by a job that waits for the training"
submit sweep array-sweep.sbatch VALUES="1e-3 2e-3" "${two_ranks[@]}" --array=0-1 --output=sweep-%a.out -- --max-update 30 >/dev/null
submit empty array-sweep.sbatch VALUES="1e-3" "${two_ranks[@]}" --array=3 -- --max-update 30 >/dev/null
training=$(submit trained train.sbatch CUDA_VISIBLE_DEVICES= "${two_ranks[@]}" -- --max-update 30 --save-dir trained)
submit model consolidate.sbatch CHECKPOINT=trained OUT=model --dependency=afterok:"$training" >/dev/null

step "training on the GPUs of a node"
# Slurm's GPUs are pretended. The program uses the double of CUDA, which needs two libraries.
cp "$2"/../lib/libfsdp_cuda_double.so "$2"/../tests/cuda_double/libfsdp_cuda.so lib
submit gpus train-gpu.sbatch FSDP_CUDA_LIBRARY="$work/lib/libfsdp_cuda.so" LD_LIBRARY_PATH="$work/lib" FSDP_CUDA_DOUBLE_DEVICES=2 \
  RANKS_PER_NODE=2 "${two_ranks[@]}" --gpus-per-node=2 -- --max-update 10 --save-dir gpus --log-file gpus.jsonl >/dev/null

step "a terminal on a node, also in the partition of GPUs"
for partition in cpu gpu; do
  gpus=()
  if [[ $partition == gpu ]]; then gpus=(--gpus-per-node=1); fi
  # shellcheck disable=SC2016
  printf '%s\n' 'tty; echo "task $SLURM_PROCID of $SLURM_NTASKS on $(hostname), GPUs ${CUDA_VISIBLE_DEVICES:-none}"' exit |
    timeout 30 script --quiet --return --command \
      "$cluster exec srun --partition=$partition --ntasks=1 ${gpus[*]} --pty bash --norc" "home/terminal-$partition.out" >/dev/null ||
    fail "the terminal ends with $?"
  says terminal-$partition "/dev/pts/[0-9]"
done
says terminal-cpu "task 0 of 1 on node[12], GPUs none"
says terminal-gpu "task 0 of 1 on node[12], GPUs [01]"

step "the model is there"
for name in sweep empty trained model gpus; do wait_for 60 "$name is over" is_over $name; done
bin/fsdp-inspect home/model home/trained >compared 2>/dev/null || fail "the model is not that of the checkpoints: $(cat compared)"
[[ -e home/model/config.json ]] || fail "there is no configuration"
says gpus "^collectives of GPUs: NCCL "
[[ $(last_update gpus) == 10 && -e home/gpus/step-00000010/complete.json ]] || fail "the job on GPUs has not done its updates"
for value in 1e-3 2e-3; do
  [[ $(grep -c '"type":"train"' home/sweep/lr-$value.jsonl) == 30 ]] || fail "the job for $value has not done its updates"
  [[ -e home/sweep/lr-$value/step-00000030/complete.json ]] || fail "the job for $value has not saved"
  grep -q "\"lr\":0.00${value%e-3}[,}]" home/sweep/lr-$value.jsonl || fail "the job for $value has had another rate"
done
says empty "job 3 of the array has no value [(]VALUES has 1[)]; submit with --array=0-0"

step "tools/gpu-check on the GPUs of two nodes"
# It starts the ranks of its items by a srun of its own. The double of NCCL connects no nodes, which fsdp-doctor finds twice: when it looks
# at NCCL's network, and when it trains.
mkdir tools
cp "$1/tools/gpu-check" tools
cp "$2"/fsdp-{bench,doctor} bin
at_head env FSDP_CUDA_LIBRARY="$work/lib/libfsdp_cuda.so" LD_LIBRARY_PATH="$work/lib" FSDP_CUDA_DOUBLE_DEVICES=1 \
  srun --partition=gpu --nodes=2 --ntasks=2 --gpus-per-node=1 "$work/tools/gpu-check" --build "$work" --report "$work/home/gpu-check" \
  --only '^nodes.doctor$' >home/gpu-check.out 2>&1 || true
grep -qE 'ok +MPI .* connects 2 ranks on 2 nodes; started by srun with PMIx' home/gpu-check/nodes.doctor.log ||
  fail "gpu-check has not started ranks on both nodes: $(cat home/gpu-check/nodes.doctor.log)"
[[ $(grep -cE '^  failed ' home/gpu-check/nodes.doctor.log) == 2 ]] || fail "not two faults: $(cat home/gpu-check/nodes.doctor.log)"

step "fine-tuning of that model"
# Trains on CPUs, because the GPUs are pretended. Slurm's part of the script is unchanged.
sed 's/--device cuda --bf16 --checkpoint-activations --tokens-per-sample 1024/--device cpu --tokens-per-sample 64/' finetune.sbatch >finetune-cpu.sbatch
grep -q -- "--device cpu" finetune-cpu.sbatch || fail "finetune.sbatch has other options than this test thinks"
finetune() { # finetune NAME TOTAL_BATCH_SIZE
  # The script asks for two tasks, for the two GPUs of one node.
  submit "$1" finetune-cpu.sbatch TOTAL_BATCH_SIZE="$2" BATCH_SIZE_PER_DEVICE=2 MODEL=model DATA=train.bin SAVE_DIR="$1" \
    --error="$1.out" --cpus-per-task=1 --time=10 -- --max-update 25 >/dev/null
}
finetune tuned 12
finetune untuned 10
for name in tuned untuned; do wait_for 40 "$name is over" is_over $name; done
says tuned "^Using 2 GPUs on each of 1 nodes"
says tuned "^Gradient accumulation steps: 3"
says tuned "^done; next: fsdp-evaluate"
grep -q '"update-freq":3' home/tuned.jsonl || fail "12 sequences on 2 ranks, 2 at once, are not 3 micro-batches"
says untuned "total-batch-size 10 is not a multiple of --batch-size 2 x 2 ranks = 4"

step "scancel in the midst of a save"
# With 24 MB for each of two ranks, a save takes long enough that scancel hits it.
larger=(--decoder-layers 4 --decoder-embed-dim 256)
submit_training cancelled "${two_ranks[@]}" -- "${larger[@]}" --save-interval-updates 5 --keep-last 2
saves() { compgen -G "home/cancelled/step-*.tmp" >/dev/null; }
complete() { compgen -G "home/cancelled/step-*/complete.json" | sort | tail -n 1; }
wait_for 40 "there is a complete step" compgen -G "home/cancelled/step-*/complete.json" >/dev/null
before=$(complete)
wait_for 30 "it saves" saves
at_head scancel --name=cancelled
wait_for 30 "it ends" is_over cancelled
after=$(complete)
[[ ! $after < $before ]] || fail "the last complete step is older than before"
last=$((10#$(sed -E 's|.*/step-([0-9]+)/.*|\1|' <<<"$after")))
done=$(last_update cancelled)
echo "       last update and last complete step: $done $last"
[[ $last == "$done" ]] || fail "scancel has cost updates"
bin/fsdp-inspect "${after%/complete.json}" --verify >verified 2>&1 || fail "the step is damaged: $(tail -n 3 verified)"
submit_training cancelled "${two_ranks[@]}" -- "${larger[@]}" --max-update $((last + 3))
wait_for 30 "it starts again" has_started cancelled 2
wait_for 30 "it is done" is_over cancelled
says cancelled "^restored step $last from checkpoint"
[[ $(updates cancelled | cut -d ' ' -f 1 | paste -sd ' ') == "$(seq -s ' ' $((last + 3)))" ]] || fail "updates are missing, or done twice"
is_quiet node1 node2 || fail "this is left: $(leftovers node1 node2)"

step "done"
exit $((failures > 0))
