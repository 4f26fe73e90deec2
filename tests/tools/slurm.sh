#!/usr/bin/env bash
# slurm.sh BIN REPOSITORY: the scripts in slurm/ with stand-ins for Slurm's programs: what they ask for is well-formed, and the commands
# that they start, or tell users to type, are ones that the programs in BIN accept.
set -euo pipefail
export FSDP_BIN=$1
cd "$2"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
failures=0

fail() {
  echo "$1"
  cat "$work/output"
  failures=$((failures + 1))
}
stub() { # stub NAME BODY
  printf '#!/bin/bash\necho "%s $*" >>"%s/calls"\n%s\n' "$1" "$work" "$2" >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}
says() { grep -qF -- "$1" "$work/output" || fail "does not say: $1"; }
called() { grep -qF -- "$1" "$work/calls" || fail "was not called: $1"; }
# run EXPECTED_STATUS COMMAND...
run() {
  local expected=$1 status=0
  shift
  : >"$work/calls"
  PATH=$work/bin:$PATH "$@" >"$work/output" 2>&1 || status=$?
  [[ $status == "$expected" ]] || fail "status $status instead of $expected of: $*"
}

# Starts the program once, as if for one task; or ends as $SRUN_ENDS says.
# shellcheck disable=SC2016
stub srun '[[ -z ${SRUN_ENDS:-} ]] || exit "$SRUN_ENDS"
while [[ $1 == -* ]]; do shift; done
exec "$@"'
stub scontrol ''
stub salloc ''
unset SLURM_JOB_ID SLURM_CPUS_PER_TASK REQUEUE CONFIG

for script in slurm/*.sbatch; do
  bash -n "$script"
  bad=$(grep '^#SBATCH' "$script" | grep -vE '^#SBATCH --[a-z]+(-[a-z]+)*(=[^ ]+)?( +#.*)?$' || true)
  [[ -z $bad ]] || { echo "$script: not an option of sbatch: $bad" && failures=$((failures + 1)); }
  run 0 bash "$script" --print-config
  says "save-dir = quickstart/checkpoints"
  called "--kill-on-bad-exit=1"
  for status in 1 75; do SRUN_ENDS=$status run "$status" bash "$script"; done
done

# On GPUs: the device is asked for, and a job that was stopped goes back into the queue, but not one whose time is too short.
run 0 bash slurm/train-gpu.sbatch --print-config --max-update 600
says "device = cuda"
says "precision = bf16"
says "max-update = 600"
export SLURM_JOB_ID=17
SRUN_ENDS=75 run 75 env SECONDS=100 bash slurm/train-gpu.sbatch
called "scontrol requeue 17"
for other in SECONDS=0 REQUEUE=no; do
  SRUN_ENDS=75 run 75 env SECONDS=100 $other bash slurm/train-gpu.sbatch
  ! grep -q scontrol "$work/calls" || fail "was requeued with $other"
done
SRUN_ENDS=1 run 1 env SECONDS=100 bash slurm/train-gpu.sbatch
! grep -q scontrol "$work/calls" || fail "a failed job was requeued"

# The session asks for the same resources, the user's options last, and what it says to type works.
run 0 slurm/interactive.sh --time=04:00:00
asked=$(grep '^salloc' "$work/calls")
[[ $asked == *"--ntasks-per-node=4 --gpus-per-node=4 "* && $asked == *" --time=04:00:00" ]] || fail "salloc was called so: $asked"
for option in partition nodes ntasks-per-node gpus-per-node cpus-per-task; do
  wanted=$(sed -nE "s/^#SBATCH (--$option=[^ ]+).*/\1/p" slurm/train-gpu.sbatch)
  [[ " $asked " == *" $wanted "* ]] || fail "the job has $wanted"
done
mapfile -t lines < <(grep -E '^  srun .*fsdp-' "$work/output")
((${#lines[@]} >= 2)) || fail "fewer lines to type than programs"
for line in "${lines[@]}"; do
  for option in --cpu-bind=cores --distribution=block:block --gpu-bind=none; do
    [[ $line == *" $option "* ]] || fail "$option is not in: $line"
  done
  run 0 bash -c "$line --print-config"
done

exit $((failures > 0))
