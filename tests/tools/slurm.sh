#!/usr/bin/env bash
# slurm.sh BIN REPOSITORY: the scripts in slurm/ with stand-ins for Slurm's programs: what they ask for is well-formed, and the commands
# that they start, or tell users to type, are ones that the programs in BIN accept.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"
export FSDP_BIN=$1
cd "$2"

# Starts the program once, as if for one task; or ends as $SRUN_ENDS says.
# shellcheck disable=SC2016
usual_srun() {
  stub srun 'if [[ $1 == --mpi=list ]]; then echo "${MPI_TYPES-none pmix_v4 pmix}" && exit; fi
[[ -z ${SRUN_ENDS:-} ]] || exit "$SRUN_ENDS"
while [[ $1 == -* ]]; do shift; done
exec "$@"'
}
usual_srun
# shellcheck disable=SC2016
stub mpirun 'while [[ $1 != */* ]]; do shift; done
exec "$@"'
# shellcheck disable=SC2016
stub scontrol 'case "$*" in
  "show config") echo "TaskPlugin              = ${TASK_PLUGIN:-task/none}" ;;
  *"show job"*) echo "JobId=17 JobName=${JOB_NAME:-x} UserId=b(2) GroupId=domain users(3) ${SHOWN:-JobState=RUNNING}" ;;
esac'
stub salloc ''
unset CUDA_VISIBLE_DEVICES SLURM_JOB_ID SLURM_CPUS_PER_TASK SLURM_RESTART_COUNT SLURM_NTASKS REQUEUE MAX_RESTARTS CONFIG

for script in slurm/*.sbatch; do
  bash -n "$script"
  bad=$(grep '^#SBATCH' "$script" | grep -vE '^#SBATCH --[a-z]+(-[a-z]+)*(=[^ ]+)?( +#.*)?$' || true)
  [[ -z $bad ]] || { echo "$script: not an option of sbatch: $bad" && failures=$((failures + 1)); }
done
for script in slurm/train.sbatch slurm/train-gpu.sbatch slurm/array-sweep.sbatch; do
  run 0 bash "$script" --print-config
  says "data = quickstart/train.bin"
  called "--kill-on-bad-exit=1"
  for status in 1 75; do SRUN_ENDS=$status run "$status" bash "$script"; done
done

# Settings, and what all scripts say of them, are written alike.
settings() { sed -n '/^STOP_BEFORE=/,/^\. /p' "$1"; }
for script in slurm/{train-gpu,finetune,array-sweep}.sbatch; do
  [[ $(settings "$script") == "$(settings slurm/train.sbatch)" && -n $(settings slurm/train.sbatch) ]] ||
    fail "the settings of $script are not those of train.sbatch"
done

# A script that was copied needs job.sh.
cp slurm/train.sbatch slurm/job.sh "$work"
(cd "$work" && CONFIG=$OLDPWD/inputs/quickstart.cfg run 2 bash ./train.sbatch --print-config)
says "slurm/job.sh is not there (this is $work)"
(cd "$work" && FSDP_JOB=job.sh CONFIG=$OLDPWD/inputs/quickstart.cfg run 0 bash ./train.sbatch --print-config)
says "save-dir = quickstart/checkpoints"

# Scripts of an installation, submitted from another folder: its programs are in PATH.
mkdir -p "$work/prefix/share/fsdp" "$work/elsewhere"
ln -s "$FSDP_BIN" "$work/prefix/bin"
ln -s "$PWD/slurm" "$work/prefix/share/fsdp/slurm"
installed() { # installed COMMAND...
  (cd "$work/elsewhere" && run 0 env -u FSDP_BIN PATH="$work/bin:$PATH:$work/prefix/bin" CONFIG="$OLDPWD/inputs/quickstart.cfg" "$@")
}
installed bash "$work/prefix/share/fsdp/slurm/train.sbatch" --print-config
says "save-dir = quickstart/checkpoints"
called "$work/prefix/bin/fsdp-train"
installed "$work/prefix/share/fsdp/slurm/interactive.sh"
says "$work/prefix/bin/fsdp-doctor"

# Fine-tuning asks for what the workshop's script does, in its words. Its batch is what its two settings say, in as many micro-batches as
# it takes with the GPUs that the job has, or refused.
for line in partition=gpu nodes=1 ntasks=2 cpus-per-task=10 gres=gpu:2 time=02:00:00; do
  grep -q "^#SBATCH --$line " slurm/finetune.sbatch || grep -qx "#SBATCH --$line" slurm/finetune.sbatch || fail "finetune.sbatch does not ask for $line"
done
run 2 bash slurm/finetune.sbatch
says "the job has no GPU"
export CUDA_VISIBLE_DEVICES=0,1,2,3
MODEL=none run 2 bash slurm/finetune.sbatch
says "there is no none/config.json"
mkdir "$work/model" && echo '{}' >"$work/model/config.json"
export MODEL=$work/model
DATA=none.bin run 2 bash slurm/finetune.sbatch
says "or give DATA with a whole path"
touch "$work/train.bin"
export DATA=$work/train.bin
TOTAL_BATCH_SIZE=32 BATCH_SIZE_PER_DEVICE=8 run 0 bash slurm/finetune.sbatch --max-update 30 --print-config
says "update-freq = 4"   # the stand-in for srun starts one rank
says "Gradient accumulation steps: 1"
says "max-update = 30"
says "lr = 1e-05"
run 0 bash slurm/finetune.sbatch --max-update 3 --warmup_updates=1 --lr 0.5 --print-config
says "warmup-updates = 1"
says "lr = 0.5"
says "clip-norm = 1"
# So does what is given by another name, of which the program has no more than these.
own_words() { # own_words VALUE WORDS...: what fsdp-train says of its options where the script gets these
  run 0 bash slurm/finetune.sbatch "${@:2}" --print-config
  says "$1"
}
own_words "checkpoint-activations = true" --gradient_checkpointing
own_words "checkpoint-activations = false" --checkpoint_activations=false
own_words "batch-size = 2" --batch_size_per_device 2
own_words "batch-size = 2" --max-sentences=2
own_words "max-tokens = 2048" --max_tokens 2048
own_words "total-batch-size = 16" --total-batch-size 16
own_words "update-freq = 3" --gradient_accumulation_steps 3
own_words "update-freq = 3" --update-freq=3
own_words "precision = fp16" --fp16
own_words "precision = fp32" --precision fp32
own_words "precision = bf16" --param_dtype=bf16
own_words "bf16 = true" --bf16
own_words "tokens-per-sample = 512" --block_size 512
own_words "save-dir = x" --save-dir x
own_words "log-file = x" --log-file x
own_words "data = $work/model/config.json" --data "$work/model/config.json"
own_words "no-save = true" --no-save
says "save-interval = 0s"
own_words "save-interval-updates = 50" --save-interval-updates 50
says "keep-last = 2"
own_words "clip-value = 1" --clip-value 1
own_words "device = cpu" --device cpu
while read -r names; do   # an option that the script gives, and its other names
  for name in ${names#* }; do
    grep -qE -- "${name}[ \"]" slurm/finetune.sbatch || fail "finetune.sbatch does not know ${names%% *} as $name"
  done
done < <(sed -n '/^## fsdp-train/,/^## fsdp-evaluate/p' docs/options.md | sed -n 's/^| `\(--[^|]*<br>[^|]*\)|.*/\1/p' |
  sed -E 's/ [A-Z|]+//g; s/`//g; s/<br>/ /g' | while read -r name rest; do
    ! sed -n '/^OPTIONS=/,$p' slurm/finetune.sbatch | grep -q -- "$name" || echo "$name $rest"; done)
called "--ntasks-per-node=4"
CUDA_VISIBLE_DEVICES=4,7 TOTAL_BATCH_SIZE=16 run 0 bash slurm/finetune.sbatch --print-config
says "Using 2 GPUs on each of 1 nodes"
says "Gradient accumulation steps: 2"
called "--ntasks-per-node=2"
BATCH_SIZE_PER_DEVICE=four run 2 bash slurm/finetune.sbatch
says "BATCH_SIZE_PER_DEVICE is four, and must be a whole number"
SAVE_DIR=tuned/ run 0 bash slurm/finetune.sbatch --print-config
says "log-file = tuned.jsonl"
TOTAL_BATCH_SIZE=12 BATCH_SIZE_PER_DEVICE=8 run 2 bash slurm/finetune.sbatch --print-config
says "--total-batch-size 12 is not a multiple of --batch-size 8 x 1 ranks = 8"
unset MODEL DATA CUDA_VISIBLE_DEVICES

# A job of an array has its own value, and checkpoints and metrics that are named so; it is never taken for the whole array.
cd "$work"
export FSDP_JOB=$OLDPWD/slurm/job.sh CONFIG=$OLDPWD/inputs/quickstart.cfg
SLURM_ARRAY_TASK_ID=2 SLURM_ARRAY_JOB_ID=40 SLURM_JOB_ID=43 run 0 bash "$OLDPWD/slurm/array-sweep.sbatch" --print-config
says "lr = 0.002"
says "save-dir = sweep/lr-2e-3"
says "log-file = sweep/lr-2e-3.jsonl"
OPTION=seed VALUES="7 8" SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_JOB_ID=40 SLURM_JOB_ID=43 run 0 bash "$OLDPWD/slurm/array-sweep.sbatch" --print-config
says "seed = 8"
OPTION=seed VALUES=$(seq 7 8) SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_JOB_ID=40 SLURM_JOB_ID=43 run 0 bash "$OLDPWD/slurm/array-sweep.sbatch" --print-config
says "seed = 8"
SLURM_ARRAY_TASK_ID=4 SLURM_ARRAY_JOB_ID=40 SLURM_JOB_ID=44 run 2 bash "$OLDPWD/slurm/array-sweep.sbatch"
says "submit with --array=0-3"
preempted="JobState=RUNNING StartTime=2026-01-02T10:00:00 PreemptTime=2026-01-02T11:00:00 Restarts=0"
SHOWN=$preempted SRUN_ENDS=75 SLURM_ARRAY_TASK_ID=0 SLURM_ARRAY_JOB_ID=40 SLURM_JOB_ID=40 run 75 bash "$OLDPWD/slurm/array-sweep.sbatch"
called "scontrol requeue 40_0"
cd - >/dev/null
unset FSDP_JOB CONFIG

# One task makes a model of the checkpoints.
run 2 bash slurm/consolidate.sbatch --verify
called "srun --nodes=1 --ntasks=1"
called "fsdp-consolidate quickstart/checkpoints quickstart/model --format safetensors --verify"
SHOWN=$preempted SRUN_ENDS=143 SLURM_JOB_ID=17 run 143 bash slurm/consolidate.sbatch
called "scontrol requeue 17"

# Sites: what they set is there for the program; what fails in them is no start.
prefix=${FSDP_BIN%/bin}
PREFIX=$prefix SITE=slurm/sites/prefix.sh run 0 env FSDP_BIN=/nowhere bash slurm/train.sbatch --print-config
called "$prefix/bin/fsdp-train"
# shellcheck disable=SC2317  # The site calls it.
module() { echo "module $*" && [[ $* != "load gcc"* || -z ${MODULES_FAIL:-} ]]; }
export -f module
SITE=slurm/sites/modules.sh run 0 bash slurm/train.sbatch --print-config
says "module load gcc openmpi hdf5"
MODULES_FAIL=1 SITE=slurm/sites/modules.sh run 2 bash slurm/train.sbatch --print-config
says "SITE, slurm/sites/modules.sh, ends with 1"
unset -f module
mkdir -p "$work/spack/share/spack"
echo 'spack() { echo "spack $*"; }' >"$work/spack/share/spack/setup-env.sh"
SPACK_ROOT=$work/spack SITE=slurm/sites/spack.sh run 0 bash slurm/train.sbatch --print-config
says "spack env activate fsdp"
# shellcheck disable=SC2317  # The sites call it.
module() { :; }
export -f module
for site in alps isambard-ai jupiter vista roihu lumi-c perlmutter frontier-cpu polaris; do
  SITE=slurm/sites/$site.sh run 0 bash slurm/train-gpu.sbatch --print-config
  case $site in alps | isambard-ai | lumi-c | perlmutter | frontier-cpu) called "--mpi=cray_shasta" ;; esac
done
unset -f module
# shellcheck disable=SC2016
stub sbcast 'cp "${@: -2:1}" "${@: -1}"'
mkdir -p "$work/archive/fsdp-x/bin"
# shellcheck disable=SC2016
printf '#!/bin/sh\necho "from the archive: $0"\n' >"$work/archive/fsdp-x/bin/fsdp-train"
chmod +x "$work/archive/fsdp-x/bin/fsdp-train"
tar -C "$work/archive" -cf "$work/archive.tar" fsdp-x
ARCHIVE=$work/archive.tar NODE_FOLDER=$work SITE=slurm/sites/sbcast.sh run 0 bash slurm/train.sbatch
says "from the archive: $work/fsdp-none/fsdp-x/bin/fsdp-train"
[[ ! -e $work/fsdp-none ]] || fail "the folder of the archive is left"
ARCHIVE=none.tar NODE_FOLDER=$work SITE=slurm/sites/sbcast.sh run 2 bash slurm/train.sbatch
says "SITE, slurm/sites/sbcast.sh, ends with 1"
SITE=none.sh run 2 bash slurm/train.sbatch
says "SITE is none.sh, which is not a readable file"

# On GPUs the device is asked for.
run 0 bash slurm/train-gpu.sbatch --print-config --max-update 600
says "device = cuda"
says "precision = bf16"
says "max-update = 600"
! grep -q -e --gpu-bind "$work/calls" || fail "GPUs are bound, or CUDA_VISIBLE_DEVICES is removed (--gpu-bind=none, before Slurm 23.11)"

# What the script sets is for the ranks, too, whatever the job was submitted with.
# shellcheck disable=SC2016
stub srun 'if [[ $1 == --mpi=list ]]; then echo pmix && exit; fi
echo "ranks get ${SLURM_EXPORT_ENV:-all}"'
SLURM_EXPORT_ENV=NONE run 0 bash slurm/train.sbatch
says "ranks get ALL"
usual_srun

# Tasks are bound where Slurm can, and mpirun starts them where srun cannot.
run 0 bash slurm/train.sbatch --print-config
! grep -q bind "$work/calls" || fail "tasks are bound though Slurm cannot"
TASK_PLUGIN=task/cgroup,task/affinity run 0 bash slurm/train.sbatch --print-config
called "--cpu-bind=cores"
MPI_TYPES="none pmi2" SLURM_JOB_NUM_NODES=2 run 0 bash slurm/train.sbatch --print-config
called "mpirun -np 4 --map-by ppr:2:node --bind-to none"
MPI_TYPES="none cray_shasta pmi2" MPICH_GPU_SUPPORT_ENABLED=1 run 0 bash slurm/train.sbatch --print-config   # as on HPE Cray systems
called "srun --mpi=cray_shasta --nodes=1"
says "MPICH_GPU_SUPPORT_ENABLED was 1 and is set to 0"
mkdir "$work/container"   # without scontrol
ln -s /usr/bin/* "$work/container"
rm -f "$work/container/scontrol"
mv "$work/bin/scontrol" "$work"
SLURM_JOB_ID=17 PATH=$work/container run 0 bash slurm/train.sbatch --print-config
says "there is no scontrol on this host"
called "srun --mpi=pmix --nodes=1"
SLURM_JOB_ID=17 SRUN_ENDS=75 PATH=$work/container run 75 bash slurm/train.sbatch
says "submit the same command again to continue"
mv "$work/scontrol" "$work/bin"
MPI_TYPES="none pmi2" TASK_PLUGIN=task/affinity SLURM_CPUS_PER_TASK=3 run 0 bash slurm/train.sbatch --print-config
called "mpirun -np 2 --map-by ppr:2:node:PE=3"

# What is missing is said before anything is started.
FSDP_BIN=$work run 2 bash slurm/train.sbatch
says "$work/fsdp-train is not a program"
CONFIG=none.cfg run 2 bash slurm/train.sbatch
says "none.cfg is not a readable file"
! grep -q fsdp-train "$work/calls" || fail "was started without a configuration"

FSDP_JOB=slurm run 2 bash slurm/train.sbatch
says "slurm is not there"

# So are settings that bash would take for something else.
for setting in STOP_BEFORE=5min STOP_BEFORE=08 STOP_BEFORE=0300 MAX_RESTARTS=many MIN_NODES=-1 RANKS_PER_NODE=two; do
  run 2 env "$setting" bash slurm/train.sbatch
  says "${setting%%=*} is ${setting#*=}, and must be a whole number"
done
for word in true YES 1; do
  REQUEUE=$word run 2 bash slurm/train.sbatch
  says "REQUEUE is $word, and must be yes or no"
done
for words in "--stop-before 60s" "--stop_before=60s"; do
  # shellcheck disable=SC2086
  run 2 bash slurm/train.sbatch --max-update 5 $words
  says "--stop-before comes from STOP_BEFORE"
done
! grep -q fsdp-train "$work/calls" || fail "was started with settings that are wrong"

SLURM_RESTART_COUNT=101 run 2 bash slurm/train.sbatch
says "more than the 100 of MAX_RESTARTS"

# A job goes back into the queue only where Slurm has stopped it.
export SLURM_JOB_ID=17
queue() { # queue YES_OR_NO STATUS WORDS SHOWN [VARIABLE=VALUE...]
  local wanted=$1 status=$2 words=$3 shown="Reason=None Restarts=0 StartTime=2026-01-02T10:00:00 EndTime=2099-01-01T00:00:00 $4"
  shift 4
  SHOWN=$shown SRUN_ENDS=$status run "$status" env "$@" bash slurm/train.sbatch
  says "$words"
  if [[ $wanted == yes ]]; then
    called "scontrol requeue 17"
  else
    ! grep -q "^scontrol requeue" "$work/calls" || fail "was requeued: $words"
  fi
}
preempted="JobState=RUNNING PreemptTime=2026-01-02T11:00:00"
queue yes 75 "another job takes its place" "$preempted"
queue yes 75 "another job takes its place" "$preempted" SLURM_RESTART_COUNT=0
queue no 75 "asked for, by scancel, a signal or a file" "JobState=RUNNING PreemptTime=None"
queue no 75 "asked for, by scancel, a signal or a file" "JobState=RUNNING PreemptTime=2026-01-01T11:00:00"   # before this start
queue no 75 "asked for, by scancel, a signal or a file" "JobState=COMPLETING PreemptTime=None"               # scancel
queue no 75 "REQUEUE is no" "$preempted" REQUEUE=no
queue no 75 "as MAX_RESTARTS allows" "$preempted" MAX_RESTARTS=3 SLURM_RESTART_COUNT=3
queue no 1 "failed with exit code 1" "$preempted"
queue yes 2 "another job takes its place" "$preempted"     # while it started
queue yes 143 "another job takes its place" "$preempted"
queue no 2 "failed with exit code 2" "JobState=RUNNING PreemptTime=None"
queue no 143 "failed with exit code 143" "JobState=RUNNING PreemptTime=None"
# What stands in the name of a job is not what Slurm says.
queue no 75 "asked for, by scancel, a signal or a file" "JobState=COMPLETING" JOB_NAME="a UserId=a(1) Reason=TimeLimit Restarts=9"
# Slurm has taken this node for dead: srun says 0, and the job may run elsewhere.
queue no 0 "done" "JobState=RUNNING"
SHOWN="JobState=RUNNING Restarts=1" SRUN_ENDS=0 run 1 bash slurm/train.sbatch
says "Slurm itself has put the job back"
SHOWN="JobState=NODE_FAIL Restarts=0" SRUN_ENDS=0 run 1 bash slurm/train.sbatch
says "srun has ended with 0, as it also does when a node dies"
# Times come in one format, whatever the user prefers.
# shellcheck disable=SC2016
stub scontrol 'case "$*" in
  *"show job"*)
    if [[ ${SLURM_TIME_FORMAT:-standard} == standard ]]; then times="StartTime=2026-01-02T10:00:00 PreemptTime=2026-01-02T11:00:00"
    else times="StartTime=10:00:00 PreemptTime=11:00:00"; fi
    echo "JobId=17 JobState=RUNNING Restarts=0 EndTime=2099-01-01T00:00:00 $times" ;;
esac'
SLURM_TIME_FORMAT=relative SRUN_ENDS=75 run 75 bash slurm/train.sbatch
says "another job takes its place"
called "scontrol requeue 17"
# shellcheck disable=SC2016
stub scontrol 'case "$*" in
  *"show job"*) echo "JobId=17 JobName=x ${SHOWN:-}" ;;
esac'
shown="EndTime=2099-01-01T00:00:00 JobState=COMPLETING"
SHOWN="$shown Reason=TimeLimit Restarts=0" SRUN_ENDS=75 run 75 bash slurm/train.sbatch
says "its time is over"
called "scontrol requeue 17"
SHOWN="$shown Reason=None Restarts=1" SRUN_ENDS=75 run 75 bash slurm/train.sbatch
says "Slurm itself has put the job back"
near="Restarts=0 JobState=RUNNING StartTime=2026-01-02T10:00:00 EndTime=$(date --date="200 seconds" +%FT%T)"
SHOWN=$near SRUN_ENDS=75 run 75 env SECONDS=100 bash slurm/train.sbatch
says "its time is nearly over"
called "--stop-before 300s"
called "scontrol requeue 17"
SHOWN=$near SRUN_ENDS=75 run 75 env SECONDS=10 bash slurm/train.sbatch
says "make --time longer, or STOP_BEFORE less"
! grep -q "^scontrol requeue" "$work/calls" || fail "was requeued though it would stop at once again"
SHOWN=$near SRUN_ENDS=75 STOP_BEFORE=60 run 75 env SECONDS=100 bash slurm/train.sbatch
says "asked for, by scancel, a signal or a file"

# A node dies: srun says 0, and fewer nodes are left. The next step is on these, without what the job once asked for.
# shellcheck disable=SC2016
stub scontrol 'case "$*" in
  *"show job"*) echo "JobId=17 JobState=RUNNING Restarts=0 StartTime=2026-01-02T10:00:00 EndTime=2099-01-01T00:00:00 NodeList=a NumNodes=${LEFT:-1}" ;;
esac'
# shellcheck disable=SC2016
stub srun 'if [[ $1 == --mpi=list ]]; then echo pmix && exit; fi
case "$*" in
  *--quiet*) exit "${NODES_ANSWER:-0}" ;;
  *--nodes=2*) exit "${FIRST_ENDS:-0}" ;;
  *) exit "${NEXT_ENDS:-0}" ;;
esac'
export SLURM_JOB_NUM_NODES=2 SLURM_NTASKS=4
for FIRST_ENDS in 0 1 137; do
  export FIRST_ENDS
  run 0 bash slurm/train.sbatch
  says "a node has died or was released; the remaining nodes are a"
  says "continuing on them from the last checkpoint, in this job"
  called "srun --mpi=pmix --nodes=1 --ntasks-per-node=2"
  ! grep -q "^scontrol requeue" "$work/calls" || fail "was requeued though it went on"
  MIN_NODES=2 run 1 bash slurm/train.sbatch
  called "scontrol requeue 17"
  ! grep -q "^srun --mpi=pmix --nodes=1" "$work/calls" || fail "went on with fewer nodes than MIN_NODES"
done
NEXT_ENDS=2 run 2 bash slurm/train.sbatch
says "the run cannot continue on the others; it goes back into the queue"
called "scontrol requeue 17"
NEXT_ENDS=2 REQUEUE=no run 2 bash slurm/train.sbatch
! grep -q "^scontrol requeue" "$work/calls" || fail "was requeued though REQUEUE is no"
FIRST_ENDS=2 run 2 bash slurm/train.sbatch
! grep -q "^srun --mpi=pmix --nodes=1" "$work/calls" || fail "a wrong command was started again"
SLURMD_NODENAME=b FIRST_ENDS=0 run 1 bash slurm/train.sbatch   # the first node, on which slurmd has died, and this script lives
called "scontrol requeue 17"
! grep -q "^srun --mpi=pmix --nodes=1" "$work/calls" || fail "went on from a node that is no longer the job's"
LEFT=2 FIRST_ENDS=1 run 1 bash slurm/train.sbatch
says "failed with exit code 1"
unset SLURM_JOB_NUM_NODES SLURM_NTASKS FIRST_ENDS
# shellcheck disable=SC2016
stub scontrol 'case "$*" in
  *"show job"*) echo "JobId=17 JobName=x ${SHOWN:-}" ;;
esac'
# The warning before the limit is passed on to what the shell has started, and does not count where it comes at once.
# shellcheck disable=SC2016
stub srun 'if [[ $1 == --mpi=list ]]; then echo pmix && exit; fi
trap "exit 75" USR1
kill -USR1 $PPID
for ((i = 0; i < 100; i++)); do sleep 0.1; done'
SHOWN="Restarts=0 JobState=RUNNING EndTime=2099-01-01T00:00:00" run 75 env SECONDS=100 bash slurm/train.sbatch
says "its time is nearly over"
called "scontrol requeue 17"
SHOWN="Restarts=0 JobState=RUNNING EndTime=2099-01-01T00:00:00" run 75 env SECONDS=10 bash slurm/train.sbatch
says "and would again"
unset SLURM_JOB_ID
# shellcheck disable=SC2016
stub srun 'while [[ $1 == -* ]]; do shift; done
exec "$@"'

# The session asks for the same resources, the user's options last, and what it says to type works.
run 0 slurm/interactive.sh --time=04:00:00
asked=$(grep '^salloc' "$work/calls")
[[ $asked == *"--ntasks-per-node=4 --gpus-per-node=4 "* && $asked == *" --time=04:00:00" ]] || fail "salloc was called so: $asked"
for option in partition nodes gpus-per-node cpus-per-task; do
  wanted=$(sed -nE "s/^#SBATCH (--$option=[^ ]+).*/\1/p" slurm/train-gpu.sbatch)
  [[ " $asked " == *" $wanted "* ]] || fail "the job has $wanted"
done
mapfile -t lines < <(grep -E '^  srun .*fsdp-' "$work/output")
((${#lines[@]} >= 2)) || fail "fewer lines to type than programs"
[[ $(FSDP_BIN="/a b/bin" PATH=$work/bin:$PATH slurm/interactive.sh) == *" /a\\ b/bin/fsdp-doctor "* ]] || fail "a path with a space cannot be typed"
for line in "${lines[@]}"; do
  for option in --cpu-bind=cores --distribution=block:block; do
    [[ $line == *" $option "* ]] || fail "$option is not in: $line"
  done
  run 0 bash -c "$line --print-config"
done

exit $((failures > 0))
