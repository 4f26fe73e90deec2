#!/usr/bin/env bash
# Opens a shell in a Slurm allocation with GPUs, with the same kind of resources as slurm/train-gpu.sbatch, and prints commands to type
# there.
#     slurm/interactive.sh                               (with the settings marked EDIT below)
#     slurm/interactive.sh --time=04:00:00 --account=x   (further options of salloc, which take precedence)
set -euo pipefail

# --- EDIT: what to ask for ---------------------------------------------------------------------------------------------
PARTITION=${PARTITION:-gpu}
GPUS=${GPUS:-4}                       # on one node, with one task for each
CPUS=${CPUS:-8}                       # cores for each task
FSDP_BIN=${FSDP_BIN:-$PWD/build/release/bin}
if [[ ! -e $FSDP_BIN ]] && program=$(type -P fsdp-train); then FSDP_BIN=${program%/*}; fi

resources=(--partition="$PARTITION" --nodes=1 --ntasks-per-node="$GPUS" --gpus-per-node="$GPUS" --cpus-per-task="$CPUS" --time=01:00:00)
launch="srun --mpi=pmix --kill-on-bad-exit=1 --cpus-per-task=$CPUS --cpu-bind=cores --distribution=block:block"

printf -v bin %q "$FSDP_BIN"   # quoted for typing it in a shell

cat <<END
Asking for: salloc ${resources[*]} $*
When the shell is there, these lines run on the GPUs, from the top folder of the checkout; the first one says what to fix:
  $launch $bin/fsdp-doctor --device cuda
  $launch $bin/fsdp-train --config inputs/quickstart.cfg --device cuda --bf16
  $launch --ntasks=1 $bin/fsdp-bench gemm --device cuda --bf16
  srun --ntasks=1 --overlap nvidia-smi
And this one is a shell on the node itself (with --ntasks=1: else there would be one for each task):
  srun --ntasks=1 --cpus-per-task=$CPUS --overlap --pty bash
exit gives the GPUs back.
END
exec salloc "${resources[@]}" "$@"
