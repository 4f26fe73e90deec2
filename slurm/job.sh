# shellcheck shell=bash
# What the scripts beside this file have in common: each says at its top what to ask Slurm for and what to run, and then sources this one.
# `train WORDS...` starts fsdp-train with these options on the nodes of the job, sees why it ended, and goes on with fewer nodes, puts the
# job back into the queue, or ends it. `run_once PROGRAM WORDS...` starts one task of another program.
# A script that is copied elsewhere needs a copy of this file, and its path in FSDP_JOB. docs/slurm.md says what happens when.

refuse() {
  echo "$1" >&2
  exit 2
}

# ---- what must be there ------------------------------------------------------------------------------------------------

here=${SLURMD_NODENAME:-this host}
if [[ -n ${SITE:-} ]]; then
  [[ -f $SITE && -r $SITE ]] || refuse "SITE is $SITE, which is no file that can be read on $here (this is $PWD); see slurm/sites/"
  set +eu   # what centres put into such files was not written for these
  # shellcheck disable=SC1090
  . "$SITE" || refuse "SITE, $SITE, ends with $? on $here; what is wrong is said above"
  set -eu
fi
require_program() {
  [[ -x $FSDP_BIN/$1 ]] || refuse "$FSDP_BIN/$1 is no program on $here: submit this script from the top folder of a checkout in which it \
has been built (this is $PWD), or give FSDP_BIN, the folder of the programs"
}
require_file() { # require_file SETTING
  [[ -f ${!1} && -r ${!1} ]] || refuse "${!1} is no file that can be read on $here: submit this script from the folder where this path begins \
(this is $PWD), or give $1 with a whole path"
}

require_numbers() { # require_numbers SETTING...: bash would take 5min for no number, and 010 for eight
  local name
  for name; do
    [[ ${!name} =~ ^(0|[1-9][0-9]*)$ ]] || refuse "$name is ${!name:-empty}, and must be a whole number, such as 5, without a unit"
  done
}

# ---- what Slurm says of this job ---------------------------------------------------------------------------------------

# The number of one job of an array may mean all of them, to scontrol.
job_name=${SLURM_JOB_ID:-}
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then job_name=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
restarts=${SLURM_RESTART_COUNT:-0}

# of_job FIELD: what ask_slurm has just heard of one thing, such as JobState; empty if unknown. Times are compared, so that they may not
# come in the format that the user prefers. The job's name comes first and may hold anything, also "Reason=TimeLimit": it is cut off.
job=""
ask_slurm() {
  local behind_name='^.* UserId=[^=]*\([0-9]+\) GroupId=[^=]*\([0-9]+\) (.*)$'
  job=$(SLURM_TIME_FORMAT=standard timeout 20 scontrol --oneliner show job "$job_name" 2>/dev/null) || job=""
  if [[ $job =~ $behind_name ]]; then job=${BASH_REMATCH[1]}; fi
}
ask_slurm_patiently() { # for a minute
  local end=$((SECONDS + 60))
  until ask_slurm && [[ -n $job ]] || ((SECONDS >= end)); do sleep 5; done
}
of_job() { if [[ " $job " =~ \ "$1"=([^ ]*) ]]; then echo "${BASH_REMATCH[1]}"; fi; }
seconds_left() { # prints nothing if the job has no end
  local end
  if end=$(date --date="$(of_job EndTime)" +%s 2>/dev/null); then echo $((end - $(date +%s))); fi
}
slurm_config=$(scontrol show config 2>/dev/null || true)

# ---- how ranks are started ---------------------------------------------------------------------------------------------

nodes=${SLURM_JOB_NUM_NODES:-1}
ranks_per_node=${SLURM_NTASKS_PER_NODE:-${RANKS_PER_NODE:-1}}
cores=${SLURM_CPUS_PER_TASK:-1}
# These say how the allocation was at the start, and srun would heed them. Each step is told how many nodes and tasks it has instead.
unset SLURM_NTASKS SLURM_NPROCS SLURM_NNODES SLURM_JOB_NUM_NODES SLURM_NTASKS_PER_NODE
export OMP_NUM_THREADS=$cores
export SLURM_EXPORT_ENV=ALL   # whatever `sbatch --export` has said: what SITE and this file set is for the ranks, too

# Tasks are bound to cores where Slurm can do that. Elsewhere nothing may bind them, as all would choose the same cores.
binds=false
if [[ $slurm_config =~ TaskPlugin\ *=[^$'\n']*affinity ]]; then binds=true; fi
step_options=(--kill-on-bad-exit=1 --wait=60 --cpus-per-task="$cores")
if $binds; then step_options+=(--cpu-bind=cores); fi

# Sets `launch` to what starts the ranks on the nodes that are left.
how_to_launch() {
  if [[ $(srun --mpi=list 2>&1) == *pmix* ]]; then
    launch=(srun --mpi=pmix --nodes="$nodes" --ntasks-per-node="$ranks_per_node" "${step_options[@]}" "${SRUN_OPTIONS[@]}")
  else
    # mpirun finds the nodes by itself. Slurm does not start it as a step, so that signals reach it through this script alone.
    launch=(mpirun -np $((nodes * ranks_per_node)) --map-by "ppr:$ranks_per_node:node:PE=$cores")
    $binds || launch=(mpirun -np $((nodes * ranks_per_node)) --map-by "ppr:$ranks_per_node:node" --bind-to none)
  fi
}


# ---- training ----------------------------------------------------------------------------------------------------------

# Where Slurm sends SIGTERM to the ranks, this shell may get it, too, and has to outlive them. SIGUSR1 comes only if somebody has submitted
# the job with --signal=B:USR1@SECONDS: then it is a warning of Slurm's, for this shell to pass on.
launcher="" interrupted=false warned=false
# shellcheck disable=SC2317  # The trap calls it.
warn() {
  interrupted=true warned=true
  echo "Slurm warns that the time of this job is nearly over"
  [[ -z $launcher ]] || kill -USR1 "$launcher" 2>/dev/null || true
}
trap warn USR1
trap 'interrupted=true' TERM

# Starts the command on the nodes that are left, and sets `status` to its exit code.
run_step() {
  how_to_launch
  "${launch[@]}" "${command[@]}" &
  launcher=$!
  if $warned; then kill -USR1 "$launcher" 2>/dev/null || true; fi   # the trap may have come before there was whom to tell
  interrupted=true
  while $interrupted; do   # by a trap, which ends `wait`
    interrupted=false status=0
    wait "$launcher" || status=$?
  done
  launcher=""
}

# If slurmd of this node dies, or the node is cut off, Slurm takes it for dead and starts the job anew elsewhere, while this script continues.
is_started_anew() {
  local count
  count=$(of_job Restarts)
  ((${count:-0} > restarts))
}
is_node_of_job() { [[ -z ${SLURMD_NODENAME:-} ]] || scontrol show hostnames "$(of_job NodeList)" 2>/dev/null | grep -qx -- "$SLURMD_NODENAME"; }

# True if another job preempts this one, with a grace time.
is_preempted() {
  local since
  since=$(of_job PreemptTime)
  [[ $(of_job JobState) == RUNNING && $since == 2* && ! $since < $(of_job StartTime) ]]   # not that of an earlier start
}
# True if that has ended the run while it started: by the signal, or because the run found that its time was nearly over.
is_preempted_at_start() { [[ $status =~ ^(2|1[2-9][0-9])$ ]] && is_preempted; }

# True if the job has fewer nodes than the step had. Slurm notices a dead node after some minutes, takes it from the job and ends the step;
# the exit code of srun is then 0. MPI may notice first and end the ranks. So after a failure the nodes are asked, and if one does not answer,
# this waits for Slurm to notice.
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

# With --no-kill Slurm (22.05) takes also the first node from the job when it dies, and with it this script: nothing would happen until the
# time of the job is over. So a task on another node looks whether the first is still the job's, and if not puts the job back into the queue.
watcher=""
watch_first_node() {
  [[ -z $watcher ]] || kill "$watcher" 2>/dev/null || true
  watcher=""
  if [[ -z $job_name ]] || ((nodes < 2)); then return; fi
  # shellcheck disable=SC2016
  srun --overlap --mem=0 --quiet --nodes=1 --ntasks=1 --cpus-per-task=1 --exclude="$here" bash -c '
    trap "" USR2   # it is for the run
    while sleep 15; do
      read -r first nodes < <(squeue --noheader --states=running --jobs="$1" --format="%B %N") && [[ -n $nodes ]] || continue
      scontrol show hostnames "$nodes" | grep -qx -- "$first" && continue
      if [[ $2 == yes ]]; then scontrol requeue "$1"; else scancel "$1"; fi   # nobody is left to go on
    done' watch "$job_name" "$REQUEUE" >/dev/null 2>&1 &
  watcher=$!
}

# Whether the run has stopped because the time is nearly over: it was told to stop that long before.
time_is_nearly_over() {
  local left
  left=$(seconds_left)
  $warned || { [[ -n $left ]] && ((left <= STOP_BEFORE)); }
}

# Why Slurm has stopped the job, in words; nothing if Slurm has not, or if the job cannot go back into the queue any more.
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

# requeue WHY: or says why not.
again="submit the same command again to continue"
requeue() {
  if [[ $REQUEUE != yes ]]; then
    echo "Slurm has stopped the job, as $1; $again (REQUEUE is $REQUEUE)"
  elif ((restarts >= MAX_RESTARTS)); then
    echo "the job has gone back into the queue $restarts times, as MAX_RESTARTS allows; $again"
  else
    echo "Slurm has stopped the job, as $1; it goes back into the queue"
    scontrol requeue "$job_name" || echo "Slurm refuses that; $again" >&2
  fi
}

# Of a run that has saved everything: why it has stopped, and what follows from that.
go_on() {
  local why
  why=$(why_stopped)
  if [[ -z $job_name ]]; then
    echo "$again"
  elif [[ -z $job ]]; then
    echo "Slurm does not say why; $again"
  elif [[ -z $why ]]; then
    echo "this was asked for, by scancel, a signal or a file; $again"
  elif [[ $why == *nearly* ]] && ((SECONDS < 60)); then
    echo "the job had to stop after $SECONDS s, as its time is nearly over, and would again: make --time longer, or STOP_BEFORE less; then \
$again"
  else
    requeue "$why"
  fi
}

# True if exit code 0 of srun means that all is done: it is also 0 if Slurm takes a node for dead.
is_done() { [[ -z $job_name ]] || { [[ $(of_job JobState) == RUNNING ]] && is_node_of_job; }; }

run_once() { # run_once PROGRAM WORDS...
  local status=0 REQUEUE=${REQUEUE:-yes} MAX_RESTARTS=${MAX_RESTARTS:-100}
  require_program "$1"
  local command=("$FSDP_BIN/$1" "${@:2}")
  echo "job ${job_name:-none}, start $((restarts + 1)), on ${SLURM_JOB_NODELIST:-this host}: ${command[*]}"
  srun --nodes=1 --ntasks=1 "${step_options[@]}" "${command[@]}" || status=$?
  ask_slurm
  if is_preempted_at_start; then requeue "another job takes its place"; fi
  exit "$status"
}

train() { # train WORDS...
  local status=75 all_nodes=$nodes command
  require_program fsdp-train
  require_numbers RANKS_PER_NODE STOP_BEFORE MAX_RESTARTS MIN_NODES
  [[ $REQUEUE =~ ^(yes|no)$ ]] || refuse "REQUEUE is ${REQUEUE:-empty}, and must be yes or no"
  [[ " $* " != *\ --stop[-_]before[=\ ]* ]] || refuse "--stop-before comes from STOP_BEFORE: give that, in seconds"
  ((restarts <= MAX_RESTARTS)) || refuse "this job has gone back into the queue $restarts times, more than the $MAX_RESTARTS of \
MAX_RESTARTS; see above what it has done, and submit it again"
  command=("$FSDP_BIN/fsdp-train" "$@")
  if [[ -n $job_name ]] && ((STOP_BEFORE > 0)); then command+=(--stop-before "${STOP_BEFORE}s"); fi
  echo "job ${job_name:-none}, start $((restarts + 1)), on ${SLURM_JOB_NODELIST:-this host}: ${command[*]}"
  watch_first_node
  $warned || run_step   # it may have been warned before it could start
  while has_lost_a_node; do
    nodes=$(of_job NumNodes)
    echo "a node has died or was given back; what is left is $(of_job NodeList)"
    if ((nodes < MIN_NODES)) || time_is_nearly_over || ! is_node_of_job; then
      status=1   # srun has ended with 0
      break
    fi
    echo "going on with that from the last checkpoint, in this job"
    # If MPI noticed first, Slurm (22.05) never ends the dead step, which holds the resources that the new one needs.
    step_options+=(--overlap --mem=0)
    # mpirun finds the nodes by these variables.
    SLURM_JOB_NODELIST=$(of_job NodeList) SLURM_TASKS_PER_NODE="$ranks_per_node(x$nodes)"
    SLURM_NODELIST=$SLURM_JOB_NODELIST SLURM_JOB_CPUS_PER_NODE="$((ranks_per_node * cores))(x$nodes)"
    watch_first_node
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
    requeue "a node has died or was given back, and the run cannot go on with the others"
  elif ((status == 0)); then
    echo "srun has ended with 0, as it also does when a node dies, and this is no longer a running job on $here; $again"
    status=1
  else
    echo "failed with exit code $status; what went wrong is said above" >&2
  fi
  exit "$status"
}
