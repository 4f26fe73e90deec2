#!/usr/bin/env bash
# schedulers.sh BIN REPOSITORY: the job files for PBS, LSF and Flux, with stand-ins for the programs of these schedulers. (docs/schedulers.md
# says what was tried with real ones.)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"
export FSDP_BIN=$1
cd "$2"
not_called() { ! grep -q -- "$1" "$work/calls" || fail "was called: $1"; }

metrics=$work/save/metrics.jsonl
# Starts the program once; or ends as $ENDS says, after a line on the reason $REASON in the metrics.
ranks="[[ -n \${ENDS:-} ]] || exec \"\$@\"
[[ -z \${REASON:-} ]] || echo '{\"type\":\"stop\",\"step\":3,\"reason\":\"'\"\$REASON\"'\"}' >>$metrics
exit \"\$ENDS\""
stub mpiexec "[[ \$1 != --version ]] || { echo \"\${MPI-mpiexec (OpenRTE) 4.1.4}\" && exit; }
while [[ \$1 != */* || \$1 == $work/nodes ]]; do shift; done
$ranks"
# shellcheck disable=SC2016
stub flux 'case "$*" in
  "getattr size") echo 2 && exit "${SIZE_ENDS:-0}" ;;
  "getattr hostlist") echo "node[1-2]" && exit ;;
  "--parent job info --original f1 jobspec") echo "the jobspec" && exit ;;
  "--parent job submit") [[ $(cat) == "the jobspec" ]] && echo f2 && exit "${SUBMIT_ENDS:-0}" ;;
esac
while [[ $1 != */* ]]; do shift; done
'"$ranks"
# shellcheck disable=SC2016
stub qstat 'echo "Job Id: $3"; echo "    Submit_arguments = ${SUBMITTED--A x -l walltime=80 pbs/train.pbs}"'
# shellcheck disable=SC2016
stub qsub '[[ -z ${REFUSED:-} ]] || { echo "qsub: $REFUSED" >&2 && exit 1; }
echo 13.server'
stub brequeue "exit \${BREQUEUE_ENDS:-1}"   # where it succeeds, the script waits until LSF ends it
unset "${!SLURM_@}" "${!PBS_@}" "${!LSB_@}" "${!FLUX_@}" REQUEUE MAX_RESTARTS CONFIG FSDP_JOB
printf 'node1\nnode1\nnode2\nnode2\n' >"$work/nodes"
pbs=(env PBS_JOBID=12.server PBS_NODEFILE="$work/nodes" PBS_O_WORKDIR="$PWD" bash pbs/train.pbs)
lsf=(env LSB_JOBID=12 LSB_JOBINDEX=0 LSB_DJOB_HOSTFILE="$work/nodes" bash lsf/train.lsf)
flux=(env FLUX_URI=local:///x FLUX_ENCLOSING_ID=f1 bash flux/train.flux)

# Settings, and what all scripts say of them, are written alike.
settings() { sed -n '/^STOP_BEFORE=/,$p' "$1"; }
for script in pbs/train-gpu.pbs lsf/train.lsf flux/train.flux; do
  [[ $(settings "$script") == "$(settings pbs/train.pbs)" && -n $(settings pbs/train.pbs) ]] || fail "the settings of $script are not those of pbs/train.pbs"
done
bad=$(grep -nE '^#(PBS|BSUB) .* #|^# flux: .* #' pbs/* lsf/* flux/* || true)
[[ -z $bad ]] || fail "a comment on a line for the scheduler: $bad"

# The start: two ranks on each of two nodes, by the launcher of the MPI, and with the end of the job in mind.
for job in pbs lsf; do
  declare -n script=$job
  run 0 "${script[@]}" --print-config
  says "data = quickstart/train.bin"
  says "job 12"
  says "start 1, on node1,node2: $FSDP_BIN/fsdp-train"
  called "mpiexec -n 4 --hostfile $work/nodes --map-by ppr:2:node:PE=8 $FSDP_BIN/fsdp-train"
  called "--stop-before 300s"
  MPI="HYDRA build details:" run 0 "${script[@]}" --print-config
  called "mpiexec -n 4 -ppn 2 -f $work/nodes $FSDP_BIN/fsdp-train"
  MPI="mpiexec version 1.2.12" run 0 "${script[@]}" --print-config
  called "mpiexec -n 4 --ppn 2 --hostfile $work/nodes --cpu-bind depth --depth 8 $FSDP_BIN/fsdp-train"
done
run 0 "${flux[@]}" --print-config
says "job f1, start 1, on node[1-2]: "
called "flux run --nodes=2 --ntasks=4 --cores-per-task=8 $FSDP_BIN/fsdp-train"
called "--stop-before 300s"
run 0 "${pbs[@]/train.pbs/train-gpu.pbs}" --print-config
says "device = cuda"
called "mpiexec -n 8 "
MPICH_GPU_SUPPORT_ENABLED=1 run 0 "${pbs[@]}" --print-config
says "MPICH_GPU_SUPPORT_ENABLED was 1 and is set to 0"
ENDS=1 run 1 "${pbs[@]}"
says "failed with exit code 1"

# What is missing is said before anything is started.
run 2 env -u PBS_NODEFILE PBS_JOBID=12.server bash pbs/train.pbs
says "PBS job 12.server has no list of its nodes"
mkdir "$work/without" && ln -s /usr/bin/* "$work/without" && rm -f "$work"/without/mpiexec*
mv "$work/bin/mpiexec" "$work"
PATH=$work/without run 2 "${pbs[@]}"
says "there is no mpiexec on "
mv "$work/mpiexec" "$work/bin"
run 2 env FLUX_URI=local:///x bash flux/train.flux
says "FLUX_ENCLOSING_ID is not set"
SIZE_ENDS=1 run 2 "${flux[@]}"
says "flux getattr fails"
mkdir "$work/alone" && cp slurm/job.sh "$work/alone"
FSDP_JOB=$work/alone/job.sh run 2 "${pbs[@]}"
says "$work/alone/other-schedulers.sh is missing: copy it with job.sh"

# Jobs whose time is nearly over are started again, with their restarts counted in the metrics; no others.
near="the job ends in 25.0 s"
stopped() { # stopped SCHEDULER [VARIABLE=VALUE...]
  local -n script=$1
  mkdir -p "$work/save" && [[ -e $metrics ]] || echo '{"type":"start"}' >"$metrics"
  ENDS=75 run 75 env SECONDS=100 "${@:2}" "${script[@]}" --save-dir "$work/save" --log-file "$metrics"
}
last_line() { tail -n 1 "$metrics" | grep -qF -- "$1" || fail "the last line of the metrics is: $(tail -n 1 "$metrics")"; }
for job in pbs lsf flux; do
  stopped $job REASON=SIGTERM
  says "this was asked for, by "
  stopped $job REASON="$near" REQUEUE=no
  says "REQUEUE is no"
  stopped $job REASON="$near" SECONDS=10
  says "and would again"
  not_called '^qsub\|^brequeue\|job submit'
  rm "$metrics"
done
stopped pbs REASON="$near"
says "its time is nearly over; it is submitted again as job 13.server"
called "qsub -A x -l walltime=80 pbs/train.pbs"
last_line '"reason":"its time is nearly over","scheduler":"PBS","batch_job":"12.server","first_job":"12.server","next_job":"13.server","restarts":1'
stopped flux REASON="$near"
says "it is submitted again as job f2"
last_line '"scheduler":"Flux","batch_job":"f1","first_job":"f1","next_job":"f2","restarts":1'
stopped lsf REASON="$near"
called "brequeue 12"
says "LSF refuses that; submit the same command again to continue"
last_line '"scheduler":"LSF","batch_job":"12","first_job":"12","next_job":"12","restarts":1'

# The next start knows its number, and the first job, for options that are applied once.
# shellcheck disable=SC2016
printf '#!/bin/bash\necho "starts again: $FSDP_STARTS_AGAIN, first: $FSDP_FIRST_JOB"\n' >"$work/bin/mpiexec"
stopped_again() { run 0 env SECONDS=100 "$@" --save-dir "$work/save" --log-file "$metrics"; }
stopped_again "${lsf[@]}"
says "job 12, start 2, on"
says "starts again: 1, first: 12"
stopped_again env "${pbs[@]/12.server/13.server}"
says "job 13.server, start 2, on"
says "starts again: 1, first: 12.server"
MAX_RESTARTS=0 run 2 "${pbs[@]/12.server/13.server}" --save-dir "$work/save" --log-file "$metrics"
says "this job has gone back into the queue 1 times, more than the 0 of MAX_RESTARTS"

# A resubmission that is refused or cannot be made is said.
stub mpiexec "[[ \$1 != --version ]] || { echo OpenRTE && exit; }
$ranks"
stopped pbs REASON="$near" REFUSED="would exceed limit"
says "qsub: would exceed limit"
says "the job is not submitted again, see the message above; submit the same command again"
stopped pbs REASON="$near" PBS_ARRAY_INDEX=3
says "a job of an array cannot be submitted without the others"
not_called "^qsub"
stopped pbs REASON="$near" SUBMITTED="-l select=2"
says "the file that was submitted is not known (qstat -f has Submit_arguments = -l select=2)"
stub qstat 'echo "qstat: cannot connect to server" >&2; exit 1'
stopped pbs REASON="$near"
says "qstat: cannot connect to server"
says "the job is not submitted again"
stub qstat 'exec sleep 60'   # ended by its limit, here of one second
stub timeout "exec $(type -P timeout) 1 \"\${@:2}\""
stopped pbs REASON="$near"
says "the file that was submitted is not known"
rm "$work/bin/qstat"
stopped pbs REASON="$near"
says "failed to run command"
stopped flux REASON="$near" SUBMIT_ENDS=1
says "the job is not submitted again"
stopped pbs REASON="$near" MAX_RESTARTS=0
says "as MAX_RESTARTS allows"
not_called "^qsub"
mv "$metrics" "$work/save/other"
ENDS=75 run 75 env SECONDS=100 "${pbs[@]}" --save-dir "$work/save" --log-file "$metrics"
says "PBS does not say why"   # nor does the run, without metrics
exit $((failures > 0))
