# shellcheck shell=bash
# What differs from Slurm in jobs of PBS, LSF and Flux: slurm/job.sh sources this file in such a job, and it replaces functions of that file.
# These schedulers do not tell a job why they stop it. So only --stop-before starts a job again: the run saves before the end of its time.
# docs/schedulers.md describes all cases.
# shellcheck disable=SC2034,SC2154,SC2317  # slurm/job.sh uses these variables and functions, and has the others

here=$(hostname)
restarts=0 ranks_per_node=${RANKS_PER_NODE:-1} cores=${CORES_PER_RANK:-1} MIN_NODES=1 hosts=""
export OMP_NUM_THREADS=$cores
if [[ -n ${PBS_JOBID:-} ]]; then
  scheduler=PBS job_name=$PBS_JOBID hosts=${PBS_NODEFILE:-} stopper=qdel time_limit=walltime
elif [[ -n ${LSB_JOBID:-} ]]; then
  scheduler=LSF job_name=$LSB_JOBID hosts=${LSB_DJOB_HOSTFILE:-} stopper=bkill time_limit=-W
  [[ ${LSB_JOBINDEX:-0} == 0 ]] || job_name+="[$LSB_JOBINDEX]"
else
  scheduler=Flux job_name=${FLUX_ENCLOSING_ID:-} stopper="flux cancel" time_limit=--time-limit
  [[ -n $job_name ]] || refuse "FLUX_ENCLOSING_ID is not set on $here: this is no job of flux batch or flux alloc, or flux is older than 0.71; \
submit the script with flux batch"
  nodes=$(flux getattr size) && node_list=$(flux getattr hostlist) || refuse "flux getattr fails on $here; see the message above"
fi
if [[ $scheduler != Flux ]]; then
  [[ -r $hosts ]] || refuse "$scheduler job $job_name has no list of its nodes on $here (${hosts:-its variable is empty}): submit this script as a batch job"
  nodes=$(sort -u "$hosts" | wc -l) node_list=$(sort -u "$hosts" | paste -sd,)
fi

trap 'interrupted=true' USR2   # LSF sends it when the time is over, and SIGKILL ten minutes later; the run saves and continues

ask_slurm_patiently() { if [[ -f $metrics ]]; then job=known; fi; }   # why_stopped reads the metrics
has_lost_a_node() { return 1; }
watch_first_node() { :; }
is_started_anew() { return 1; }
is_preempted() { return 1; }
is_done() { return 0; }

# Sets `launch` to the command that starts the ranks. mpiexec must belong to the MPI with which the programs were built.
how_to_launch() {
  local ranks=$((nodes * ranks_per_node)) version
  if [[ $scheduler == Flux ]]; then
    launch=(flux run --nodes="$nodes" --ntasks="$ranks" --cores-per-task="$cores" "${LAUNCH_OPTIONS[@]}")
    return
  fi
  type -P mpiexec >/dev/null || refuse "there is no mpiexec on $here: load the module of the MPI with which the programs were built, in a file for SITE"
  version=$(mpiexec --version 2>&1) || true
  case $version in
    *"Open MPI"* | *OpenRTE*) launch=(mpiexec -n "$ranks" --hostfile "$hosts" --map-by "ppr:$ranks_per_node:node:PE=$cores") ;;
    *HYDRA* | *"Intel(R) MPI"*) launch=(mpiexec -n "$ranks" -ppn "$ranks_per_node" -f "$hosts") ;;
    *) launch=(mpiexec -n "$ranks" --ppn "$ranks_per_node" --hostfile "$hosts" --cpu-bind depth --depth "$cores") ;;   # PALS of HPE Cray
  esac
  launch+=("${LAUNCH_OPTIONS[@]}")
}

# The run's own metrics have the reason of its stop, in the words of lib/job/job_end.cpp.
why_stopped() {
  if [[ $(grep '"type":"stop"' "$metrics" | tail -n 1) == *'"reason":"the job ends'* ]]; then echo "its time is nearly over"; fi
}

# A job that is submitted again has a new number. put_back writes it into the metrics, with the number of restarts and of the first job.
first_job=$job_name
count_restarts() {
  local line
  if [[ ! -f $metrics ]]; then return; fi
  line=$(grep '"type":"scheduler"' "$metrics" | grep -F "\"next_job\":\"$job_name\"" | tail -n 1) || return 0
  [[ $line =~ \"first_job\":\"([^\"]*)\".*\"restarts\":([0-9]+) ]] || return 0
  first_job=${BASH_REMATCH[1]} restarts=${BASH_REMATCH[2]}
  export FSDP_STARTS_AGAIN=$restarts FSDP_FIRST_JOB=$first_job   # options such as --restore are for the first start
}

# Submits this job again as it was submitted, and prints the number of the new job.
submit_again() {
  local words=()
  case $scheduler in
    PBS)   # only operators may use qrerun
      if [[ -n ${PBS_ARRAY_INDEX:-} ]]; then
        echo "a job of an array cannot be submitted without the others" >&2
        return 1
      fi
      read -r -a words < <(timeout 20 qstat -f -w "$job_name" | sed -n 's/^    Submit_arguments = //p')
      if ((${#words[@]} == 0)) || [[ ! -f ${words[-1]} ]]; then
        echo "the file that was submitted is not known (qstat -f has Submit_arguments = ${words[*]})" >&2
        return 1
      fi
      timeout 60 qsub "${words[@]}" </dev/null
      ;;
    Flux) timeout 20 flux --parent job info --original "$job_name" jobspec | timeout 60 flux --parent job submit ;;
  esac
}

put_back() {
  local next=$job_name fields
  if [[ $scheduler != LSF ]] && ! next=$(submit_again); then
    echo "the job is not submitted again, see the message above; $again" >&2
    return
  fi
  printf -v fields '"scheduler":"%s","batch_job":"%s","first_job":"%s","next_job":"%s","restarts":%s' "$scheduler" "$job_name" "$first_job" \
    "$next" $((restarts + 1))
  write_reason "$1" "$fields"
  if [[ $scheduler == LSF ]]; then   # the job keeps its number; this ends the script
    echo "the job has stopped because $1; it goes back into the queue"
    if timeout 60 brequeue "$job_name"; then sleep 60; else echo "LSF refuses that; $again" >&2; fi
  else
    echo "the job has stopped because $1; it is submitted again as job $next"
  fi
}
