# shellcheck shell=bash
# The common part of the scripts in this folder: each script first says which resources it needs and what to run, and then sources this file.
# `train WORDS...` starts fsdp-train with these options on the nodes of the job. After it ends, `train` finds out why, and either continues
# with fewer nodes, requeues the job, or ends it. `run_once PROGRAM WORDS...` starts one task of another program.
# If you copy a script to another folder, copy this file, too, and set FSDP_JOB to its path. docs/slurm.md describes all cases.
# In a job of PBS, LSF or Flux, other-schedulers.sh in the same folder replaces some of these functions.

refuse() {
  echo "$1" >&2
  exit 2
}

# ---- checks before the start -----------------------------------------------------------------------------------------

here=${SLURMD_NODENAME:-this host}
if [[ -n ${SITE:-} ]]; then
  [[ -f $SITE && -r $SITE ]] || refuse "SITE is $SITE, which is not a readable file on $here (this is $PWD); see slurm/sites/"
  set +eu   # the site's file may not be written for -eu
  # shellcheck disable=SC1090
  . "$SITE" || refuse "SITE, $SITE, ends with $? on $here; see the messages above"
  set -eu
fi
# If this checkout has no programs, those in PATH are used. A module or SITE has put them there.
if [[ $FSDP_BIN == "$PWD/build/release/bin" && ! -e $FSDP_BIN ]] && program=$(type -P fsdp-train); then FSDP_BIN=${program%/*}; fi
require_program() {
  [[ -x $FSDP_BIN/$1 ]] || refuse "$FSDP_BIN/$1 is not a program on $here: submit this script from the top folder of a checkout in which it \
has been built (this is $PWD), or with fsdp-train in PATH, or give FSDP_BIN, the folder of the programs"
}
require_file() { # require_file SETTING
  [[ -f ${!1} && -r ${!1} ]] || refuse "${!1} is not a readable file on $here: submit this script from the folder where this path begins \
(this is $PWD), or give $1 with a whole path"
}

require_numbers() { # require_numbers SETTING...: bash does not accept 5min as a number, and reads 010 as eight
  local name
  for name; do
    [[ ${!name} =~ ^(0|[1-9][0-9]*)$ ]] || refuse "$name is ${!name:-empty}, and must be a whole number, such as 5, without a unit"
  done
}

# ---- Slurm's state of this job ---------------------------------------------------------------------------------------

# For scontrol, the number of a job in an array may stand for all jobs of the array.
job_name=${SLURM_JOB_ID:-}
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then job_name=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
if [[ -n $job_name ]] && ! type -P scontrol >/dev/null; then
  echo "there is no scontrol on $here, as in some containers: the job does not save before its end and is not requeued; start this script \
outside of the container"
  job_name=""
fi
restarts=${SLURM_RESTART_COUNT:-0}
count_restarts() { :; }   # for schedulers that do not count them

# ask_slurm reads the state of the job; `of_job FIELD` then prints one field of it, such as JobState; empty if unknown. SLURM_TIME_FORMAT
# makes times comparable. The job's name comes first and may contain anything, even "Reason=TimeLimit": it is cut off.
job=""
ask_slurm() {
  local behind_name='^.* UserId=[^=]*\([0-9]+\) GroupId=[^=]*\([0-9]+\) (.*)$'
  job=$(SLURM_TIME_FORMAT=standard timeout 20 scontrol --oneliner show job "$job_name" 2>/dev/null) || job=""
  if [[ $job =~ $behind_name ]]; then job=${BASH_REMATCH[1]}; fi
}
ask_slurm_patiently() { # retries for a minute
  local end=$((SECONDS + 60))
  until ask_slurm && [[ -n $job ]] || ((SECONDS >= end)); do sleep 5; done
}
of_job() { if [[ " $job " =~ \ "$1"=([^ ]*) ]]; then echo "${BASH_REMATCH[1]}"; fi; }
seconds_left() { # prints nothing if the job has no time limit
  local end
  if end=$(date --date="$(of_job EndTime)" +%s 2>/dev/null); then echo $((end - $(date +%s))); fi
}
slurm_config=$(scontrol show config 2>/dev/null || true)

# ---- the launch of the ranks -----------------------------------------------------------------------------------------

nodes=${SLURM_JOB_NUM_NODES:-1} node_list=${SLURM_JOB_NODELIST:-this host}
ranks_per_node=${SLURM_NTASKS_PER_NODE:-${RANKS_PER_NODE:-1}}
cores=${SLURM_CPUS_PER_TASK:-1}
# These variables describe the allocation at the start, and srun would obey them. Instead, each step gets its numbers of nodes and tasks.
unset SLURM_NTASKS SLURM_NPROCS SLURM_NNODES SLURM_JOB_NUM_NODES SLURM_NTASKS_PER_NODE
export OMP_NUM_THREADS=$cores
export SLURM_EXPORT_ENV=ALL   # overrides `sbatch --export`: the ranks need the variables that SITE and this file set

# Tasks are bound to cores if Slurm can do that. Otherwise nothing may bind them, because all would choose the same cores.
binds=false
if [[ $slurm_config =~ TaskPlugin\ *=[^$'\n']*affinity ]]; then binds=true; fi
step_options=(--kill-on-bad-exit=1 --wait=60 --cpus-per-task="$cores")
if $binds; then step_options+=(--cpu-bind=cores); fi

# GPU-aware MPI hangs next to NCCL (docs/gpu.md). Only Cray MPICH reads this variable; some sites' modules set it to 1.
if [[ ${MPICH_GPU_SUPPORT_ENABLED:-0} != 0 ]]; then
  echo "MPICH_GPU_SUPPORT_ENABLED was $MPICH_GPU_SUPPORT_ENABLED and is set to 0: GPU-aware MPI may hang next to NCCL, and fsdp-train does not \
use it"
fi
export MPICH_GPU_SUPPORT_ENABLED=0

# Sets `launch` to the command that starts the ranks on the remaining nodes. Cray MPICH needs Slurm's plugin of Cray.
how_to_launch() {
  local plugins plugin=""
  plugins=$(srun --mpi=list 2>&1) || true
  if [[ $plugins == *pmix* ]]; then plugin=pmix; elif [[ $plugins == *cray_shasta* ]]; then plugin=cray_shasta; fi
  if [[ -n $plugin ]]; then
    launch=(srun --mpi="$plugin" --nodes="$nodes" --ntasks-per-node="$ranks_per_node" "${step_options[@]}" "${SRUN_OPTIONS[@]}")
  else
    # mpirun finds the nodes by itself. It is not a Slurm step, so signals reach it only through this script.
    launch=(mpirun -np $((nodes * ranks_per_node)) --map-by "ppr:$ranks_per_node:node:PE=$cores")
    $binds || launch=(mpirun -np $((nodes * ranks_per_node)) --map-by "ppr:$ranks_per_node:node" --bind-to none)
  fi
}


# ---- training --------------------------------------------------------------------------------------------------------

# If Slurm sends SIGTERM to the ranks, this shell may receive it, too, and must outlive them. SIGUSR1 comes only if the job was submitted
# with --signal=B:USR1@SECONDS: then it is Slurm's warning before the time limit, which this shell passes on.
launcher="" interrupted=false warned=false
# shellcheck disable=SC2317  # The trap calls it.
warn() {
  interrupted=true warned=true
  echo "Slurm warns that the time of this job is nearly over"
  [[ -z $launcher ]] || kill -USR1 "$launcher" 2>/dev/null || true
}
trap warn USR1
trap 'interrupted=true' TERM

# Runs the command on the remaining nodes, and sets `status` to its exit code.
run_step() {
  how_to_launch
  "${launch[@]}" "${command[@]}" &
  launcher=$!
  if $warned; then kill -USR1 "$launcher" 2>/dev/null || true; fi   # the warning may have come before the launcher started
  interrupted=true
  while $interrupted; do   # a trap ends `wait` and sets it
    interrupted=false status=0
    wait "$launcher" || status=$?
  done
  launcher=""
}

# True if Slurm has restarted the job on other nodes, because it took this node for dead, while this script continues to run.
is_started_anew() {
  local count
  count=$(of_job Restarts)
  ((${count:-0} > restarts))
}
is_node_of_job() { [[ -z ${SLURMD_NODENAME:-} ]] || scontrol show hostnames "$(of_job NodeList)" 2>/dev/null | grep -qx -- "$SLURMD_NODENAME"; }

# True if another job is preempting this one, with a grace time.
is_preempted() {
  local since
  since=$(of_job PreemptTime)
  [[ $(of_job JobState) == RUNNING && $since == 2* && ! $since < $(of_job StartTime) ]]   # not the time of an earlier start
}
# True if preemption has ended the run while it was starting: by the signal, or because the run found that its time was nearly over.
is_preempted_at_start() { [[ $status =~ ^(2|1[2-9][0-9])$ ]] && is_preempted; }

# True if the job has fewer nodes than the step had. Slurm notices a dead node after some minutes, removes it from the job and ends the
# step; the exit code of srun is then 0. MPI may notice first and end the ranks. So after a failure this starts a task on every node; if a
# node does not answer, it waits until Slurm has noticed.
has_lost_a_node() {
  local patience=300 end
  [[ -n $job_name && $nodes -gt 1 && ! $status =~ ^(2|75)$ ]] || return 1
  if [[ $slurm_config =~ SlurmdTimeout\ *=\ *([0-9]+) ]]; then patience=${BASH_REMATCH[1]}; fi
  end=$((SECONDS + patience + 60))
  while :; do
    ask_slurm
    if [[ $(of_job JobState) != RUNNING ]] || is_started_anew; then return 1; fi
    if (($(of_job NumNodes) < nodes)); then return 0; fi
    if ((status == 0 || SECONDS >= end)) || is_preempted_at_start; then return 1; fi
    if timeout 20 srun --overlap --mem=0 --quiet --nodes="$nodes" --ntasks-per-node=1 --cpus-per-task=1 true 2>/dev/null; then return 1; fi
    sleep 2
  done
}

# With --no-kill, Slurm (22.05) also removes the first node from the job if that dies, and this script dies with it: nothing would happen
# until the job's time limit. So a task on another node checks that the first node still belongs to the job, and requeues the job if it does
# not.
watcher=""
watch_first_node() {
  [[ -z $watcher ]] || kill "$watcher" 2>/dev/null || true
  watcher=""
  if [[ -z $job_name ]] || ((nodes < 2)); then return; fi
  # shellcheck disable=SC2016
  srun --overlap --mem=0 --quiet --nodes=1 --ntasks=1 --cpus-per-task=1 --exclude="$here" bash -c '
    trap "" USR2   # this signal is for the run
    while sleep 15; do
      read -r first nodes < <(squeue --noheader --states=running --jobs="$1" --format="%B %N") && [[ -n $nodes ]] || continue
      scontrol show hostnames "$nodes" | grep -qx -- "$first" && continue
      if [[ $2 == yes ]]; then scontrol requeue "$1"; else scancel "$1"; fi   # nothing is left that could continue the job
    done' watch "$job_name" "$REQUEUE" >/dev/null 2>&1 &
  watcher=$!
}

# True if the run has stopped because its time was nearly over: --stop-before makes it stop then.
time_is_nearly_over() {
  local left
  left=$(seconds_left)
  $warned || { [[ -n $left ]] && ((left <= STOP_BEFORE)); }
}

# Prints why Slurm has stopped the job; nothing if Slurm has not stopped it, or if the job cannot be requeued any more.
why_stopped() {
  if [[ $(of_job Reason) == TimeLimit ]]; then
    echo "its time is over"
  elif [[ $(of_job JobState) != RUNNING ]]; then
    return   # scancel
  elif is_preempted; then
    echo "another job takes its place"
  elif time_is_nearly_over; then
    echo "its time is nearly over"
  fi
}

put_back() { # put_back WHY: puts the job back into the queue
  echo "Slurm has stopped the job because $1; it goes back into the queue"
  write_reason "$1"
  scontrol requeue "$job_name" || echo "Slurm refuses that; $again" >&2
}

# requeue WHY: requeues the job, or prints why it does not.
again="submit the same command again to continue" scheduler=Slurm stopper=scancel time_limit=--time
requeue() {
  if [[ $REQUEUE != yes ]]; then
    echo "$scheduler has stopped the job because $1; $again (REQUEUE is $REQUEUE)"
  elif ((restarts >= MAX_RESTARTS)); then
    echo "the job has gone back into the queue $restarts times, as MAX_RESTARTS allows; $again"
  else
    put_back "$1"
  fi
}

# Called after a run has stopped with everything saved: finds out why, and requeues the job or tells the user what to do.
go_on() {
  local why
  why=$(why_stopped)
  if [[ -z $job_name ]]; then
    echo "$again"
  elif [[ -z $job ]]; then
    echo "$scheduler does not say why; $again"
  elif [[ -z $why ]]; then
    echo "this was asked for, by $stopper, a signal or a file; $again"
  elif [[ $why == *nearly* ]] && ((SECONDS < 60)); then
    echo "the job had to stop after $SECONDS s because its time is nearly over, and would again: make $time_limit longer, or STOP_BEFORE less; then \
$again"
  else
    requeue "$why"
  fi
}

# True if exit code 0 of srun means that the run is complete: it is also 0 if Slurm took a node for dead.
is_done() { [[ -z $job_name ]] || { [[ $(of_job JobState) == RUNNING ]] && is_node_of_job; }; }

run_once() { # run_once PROGRAM WORDS...
  local status=0 REQUEUE=${REQUEUE:-yes} MAX_RESTARTS=${MAX_RESTARTS:-100}
  require_program "$1"
  local command=("$FSDP_BIN/$1" "${@:2}")
  echo "job ${job_name:-none}, start $((restarts + 1)), on $node_list: ${command[*]}"
  srun --nodes=1 --ntasks=1 "${step_options[@]}" "${command[@]}" || status=$?
  ask_slurm
  if is_preempted_at_start; then requeue "another job takes its place"; fi
  exit "$status"
}

# find_metrics WORDS...: sets `metrics` to the run's metrics file and `page` to its page; empty if the run has none.
metrics="" page=""
find_metrics() {
  local config
  [[ -x $FSDP_BIN/fsdp-plan && -x $FSDP_BIN/fsdp-report ]] || return 0
  config=$("$FSDP_BIN/fsdp-plan" "$@" --print-config 2>/dev/null) || return 0
  local folder branch
  folder=$(sed -n 's/^save-dir = //p' <<<"$config") branch=$(sed -n 's/^decay-from = //p' <<<"$config")
  # A path that cannot be in such a file, and a run without saves, have no page.
  if [[ -z $folder || $config == *$'\n'"no-save = true"* ]]; then return; fi
  if [[ ${branch:-0} != 0 ]]; then folder=$folder/decay-from-$branch; fi
  metrics=$(sed -n 's/^log-file = //p' <<<"$config")
  metrics=${metrics:-$folder/metrics.jsonl} page=$folder/report.html
  if [[ $config == *$'\n'"no-report = true"* ]]; then page=""; fi
}

# Writes why Slurm has ended this start into the metrics, for the page.
write_reason() { # write_reason WHY [FIELDS]
  local line fields=${2:-"\"slurm_job\":\"$job_name\""}
  [[ -f $metrics ]] || return 0
  line=$(printf '{"type":"scheduler","reason":"%s",%s,"time":%s}' "$1" "$fields" "$(date +%s)")
  [[ -z $(tail -c 1 "$metrics") ]] || line=$'\n'$line   # a run that was killed may have left an incomplete line
  echo "$line" >>"$metrics" || true
}

# Writes the page, which a run that was killed could not write, and which does not have the scheduler's reason.
write_report() {
  [[ -n $page && -f $metrics ]] || return 0
  local run=$metrics
  if [[ $metrics -ef ${page%/*}/metrics.jsonl ]]; then run=${page%/*}; fi
  # Without --out, fsdp-report does not replace a report.html that it has not made.
  (program=$(realpath "$FSDP_BIN/fsdp-report") run=$(realpath "$run") && cd "${page%/*}" && "$program" "$run") || true
}

train() { # train WORDS...
  local status=75 all_nodes=$nodes command
  require_program fsdp-train
  require_numbers RANKS_PER_NODE STOP_BEFORE MAX_RESTARTS MIN_NODES
  [[ $REQUEUE =~ ^(yes|no)$ ]] || refuse "REQUEUE is ${REQUEUE:-empty}, and must be yes or no"
  [[ " $* " != *\ --stop[-_]before[=\ ]* ]] || refuse "--stop-before comes from STOP_BEFORE: give that, in seconds"
  find_metrics "$@"
  count_restarts
  ((restarts <= MAX_RESTARTS)) || refuse "this job has gone back into the queue $restarts times, more than the $MAX_RESTARTS of \
MAX_RESTARTS; see above what it has done, and submit it again"
  command=("$FSDP_BIN/fsdp-train" "$@")
  if [[ -n $job_name ]] && ((STOP_BEFORE > 0)); then command+=(--stop-before "${STOP_BEFORE}s"); fi
  echo "job ${job_name:-none}, start $((restarts + 1)), on $node_list: ${command[*]}"
  watch_first_node
  $warned || run_step   # the warning may come before the run starts
  while has_lost_a_node; do
    nodes=$(of_job NumNodes)
    echo "a node has died or was released; the remaining nodes are $(of_job NodeList)"
    if ((nodes < MIN_NODES)) || time_is_nearly_over || ! is_node_of_job; then
      status=1   # srun has ended with 0
      break
    fi
    echo "continuing on them from the last checkpoint, in this job"
    write_reason "a node has died or was released"
    # If MPI noticed first, Slurm (22.05) never ends the dead step, which occupies the resources that the new step needs.
    step_options+=(--overlap --mem=0)
    # mpirun finds the nodes from these variables.
    SLURM_JOB_NODELIST=$(of_job NodeList) SLURM_TASKS_PER_NODE="$ranks_per_node(x$nodes)"
    SLURM_NODELIST=$SLURM_JOB_NODELIST SLURM_JOB_CPUS_PER_NODE="$((ranks_per_node * cores))(x$nodes)"
    watch_first_node
    export FSDP_STARTS_AGAIN=1   # options such as --restore are for the first start of the job
    run_step
  done
  [[ -z $watcher ]] || kill "$watcher" 2>/dev/null || true
  if ((status == 75)); then echo "stopped with everything saved"; fi
  [[ -z $job_name ]] || ask_slurm_patiently
  if is_started_anew; then
    echo "Slurm itself has put the job back into the queue"
    ((status != 0)) || status=1   # srun has ended with 0
  elif ((status == 75)); then
    go_on
  elif ((status == 0)) && is_done; then
    echo "done"
  elif is_preempted_at_start; then
    requeue "another job takes its place"
  elif ((nodes < all_nodes)); then
    requeue "a node has died or was released, and the run cannot continue on the others"
  elif ((status == 0)); then
    echo "srun has ended with 0, as it also does when a node dies, and this is no longer a running job on $here; $again"
    status=1
  else
    echo "failed with exit code $status; see the messages above" >&2
  fi
  [[ $status =~ ^(0|2|75)$ ]] || write_report
  exit "$status"
}

if [[ -z ${SLURM_JOB_ID:-} && -n ${PBS_JOBID:-}${LSB_JOBID:-}${FLUX_URI:-} ]]; then
  [[ -r ${BASH_SOURCE[0]%/*}/other-schedulers.sh ]] || refuse "${BASH_SOURCE[0]%/*}/other-schedulers.sh is missing: copy it with job.sh"
  # shellcheck source=slurm/other-schedulers.sh
  . "${BASH_SOURCE[0]%/*}/other-schedulers.sh"
fi
