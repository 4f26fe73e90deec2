#!/usr/bin/env bash
# cluster_test.sh REPOSITORY: tests/slurm/cluster starts a Slurm that runs, preempts and requeues jobs and notices dead
# nodes. It leaves nothing behind, however it ends. Exit status 77: this machine cannot have such a cluster.
# shellcheck source=tests/slurm/support.sh disable=SC2317  # Many functions are called through others here.
set -euo pipefail
. "$1/tests/slurm/support.sh"
fsdp_slurm_test cluster "$1"

fail() {
  echo "$1"
  if [[ -e $work/output ]]; then sed 's/^/  | /' "$work/output"; fi
  failures=$((failures + 1))
}
# run EXPECTED_STATUS COMMAND...
run() {
  local expected=$1 status=0
  shift
  "$@" >"$work/output" 2>&1 || status=$?
  [[ $status == "$expected" ]] || fail "status $status instead of $expected of: $*"
}
says() { grep -qF -- "$1" "$work/output" || fail "does not say: $1"; }
is() { [[ $(cat "$work/output") == "$1" ]] || fail "is not: $1"; }

list_interfaces() { ip -brief link | awk '{print $1}'; }
interfaces=$(list_interfaces)
mounts=$(wc -l </proc/self/mounts)
# Counts the processes whose /etc is mounted from the cluster's folder.
count_processes() { { grep -lF "$FSDP_CLUSTER_STATE/etc" /proc/[0-9]*/mountinfo 2>/dev/null || true; } | wc -l; }
is_clean() {
  [[ ! -e $FSDP_CLUSTER_STATE ]] || fail "$1: its folder is left"
  [[ $(count_processes) == 0 ]] || fail "$1: $(count_processes) processes are left"
  [[ $(list_interfaces) == "$interfaces" ]] || fail "$1: interfaces are left: $(list_interfaces)"
  [[ $(wc -l </proc/self/mounts) == "$mounts" ]] || fail "$1: mounts are left"
}

step "what it refuses"
run 0 "$cluster" --help
says "--slurmd-timeout SECONDS"
run 2 "$cluster"
run 2 "$cluster" start
run 2 "$cluster" up --nodes 0
run 2 "$cluster" up --nodes 5
run 2 "$cluster" up --cred-expire 4
run 2 "$cluster" up --task-plugin other
if [[ $(id -u) == 0 ]]; then
  run 77 setpriv --reuid=65534 --regid=65534 --clear-groups "$cluster" up
else
  run 77 "$cluster" up
fi
says "needs root"
[[ $(wc -l <"$work/output") == 1 ]] || fail "says more than one line to users"

step "up"
status=0
"$cluster" up --cpus 2 --slurmd-timeout 5 --kill-wait 3 --work "$work/home" >"$work/output" 2>&1 || status=$?
if [[ $status == 77 ]]; then
  cat "$work/output"
  is_clean "a machine that cannot do it"
  exit $((failures > 0 ? 1 : 77))
fi
[[ $status == 0 ]] || { fail "up ends with $status" && exit 1; }
(($(count_processes) >= 7)) || fail "the test does not see the cluster's processes"
run 2 "$cluster" up
says "is up in $FSDP_CLUSTER_STATE already"
run 0 "$cluster" status
says "node2   on     10.77.0.12"

step "exec"
run 0 at_head bash -c 'id -un && pwd && hostname'
is $'hpcuser\n'"$work"$'\nhead'
run 0 at_head --on node1 --as root bash -c 'id -un && pwd && hostname'
is $'root\n'"$work"$'\nnode1'
run 7 at_head --on node2 bash -c 'exit 7'
run 127 at_head no-such-program
run 0 bash -c "echo words | $cluster exec --on=node2 cat"
is words
run 0 script --quiet --return --command "$cluster exec --on node1 tty" /dev/null
says /dev/pts/
run 0 at_head --on node1 touch /tmp/mine /dev/shm/mine
run 1 at_head --on node2 test -e /tmp/mine -o -e /dev/shm/mine
[[ ! -e /tmp/mine && ! -e /dev/shm/mine ]] || fail "what a node has in /tmp is in the machine's, too"
run 2 at_head --on node3 true
run 2 at_head --as nosuch true

step "a job on two nodes"
cd "$work/home"
cat >job.sh <<'END'
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=2 --output=%x.out
srun --mpi=pmix bash -c 'echo $SLURM_PROCID $(hostname) $(id -un) gpus $CUDA_VISIBLE_DEVICES' | sort
END
run 0 at_head sbatch --wait job.sh
cp job.sh.out "$work/output"
is $'0 node1 hpcuser gpus 0,1\n1 node2 hpcuser gpus 0,1'

step "preemption"
cat >preempted.sh <<'END'
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --output=%x.out --open-mode=append
echo "start ${SLURM_RESTART_COUNT:-0}"
if [[ -z ${SLURM_RESTART_COUNT:-} ]]; then srun bash -c "echo a task; sleep 60"; fi
END
run 0 at_head sbatch --parsable preempted.sh
job=$(cat "$work/output")
wait_for 30 "the job's tasks start" grep -qs "a task" preempted.sh.out
run 0 at_head srun --partition=urgent --nodes=2 hostname
says node1
is_over() { [[ -z $(at_head squeue --noheader --jobs="$job") ]]; }
wait_for 40 "the job was requeued and is over" is_over
cp preempted.sh.out "$work/output"
says "PREEMPTION"
says "start 1"

step "a node fails"
cat >unlucky.sh <<'END'
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --output=%x.out --open-mode=append
echo "start ${SLURM_RESTART_COUNT:-0}"
if [[ -z ${SLURM_RESTART_COUNT:-} ]]; then seconds=120; else seconds=0; fi
srun --mpi=pmix bash -c "echo task on \$(hostname); sleep $seconds"
END
run 0 at_head sbatch --parsable unlucky.sh
job=$(cat "$work/output")
wait_for 30 "the job runs on node2" grep -qs "task on node2" unlucky.sh.out
run 0 "$cluster" fail node2
run 2 "$cluster" fail node2
run 2 at_head --on node2 true
run 0 "$cluster" status
says "node2   off"
# Asks about all nodes, because Slurm answers questions about a single node from data that may be old.
is_down() { [[ $(at_head sinfo --noheader --Node --partition=cpu --format='%N %T') == *"node2 down"* ]]; }
wait_for 60 "Slurm notices" is_down
step "and is back"
run 0 "$cluster" heal node2
run 2 "$cluster" heal node2
run 0 at_head srun --nodes=2 hostname
says node2
wait_for 30 "the job is over" is_over
cp unlucky.sh.out "$work/output"
says "start 1"
again=$(sed '1,/start 1/d' unlucky.sh.out | sort | paste -sd ' ')
[[ $again == "task on node1 task on node1 task on node2 task on node2" ]] ||
  fail "the requeued job did not run on both nodes"

step "down"
cd "$work"
run 0 "$cluster" down
is_clean "down"
[[ -e $work/home/job.sh.out ]] || fail "down has removed the folder of --work"
run 0 "$cluster" down
run 1 "$cluster" status

step "interrupted starts"
# interrupt EXPECTED_STATUS SIGNAL FILE: starts `up`, and sends SIGNAL to all its processes once the cluster has FILE,
# as a terminal would.
interrupt() {
  local pid status=0
  set -m  # Otherwise a background process ignores SIGINT and has no process group of its own.
  "$cluster" up --work "$work/other" >"$work/output" 2>&1 &
  pid=$!
  set +m
  wait_for 20 "$3 is there" test -e "$FSDP_CLUSTER_STATE/$3"
  kill "-$2" -- "-$pid"
  wait "$pid" 2>/dev/null || status=$?
  [[ $status == "$1" ]] || fail "up ends with $status instead of $1 after $2 at $3"
}
for moment in settings etc head node1/first node2/first; do
  interrupt 130 INT "$moment"
  is_clean "Ctrl-C at $moment"
  [[ ! -e $work/other ]] || fail "Ctrl-C at $moment: the folder of --work is left"
done
no_processes() { [[ $(count_processes) == 0 ]]; }
for moment in head node2/first; do
  interrupt 137 KILL "$moment"
  wait_for 10 "the cluster ends after a kill -9 of up at $moment" no_processes
  run 0 "$cluster" down
  is_clean "kill -9 of up at $moment"
done

step "a killed head"
run 0 "$cluster" up --nodes 1
kill -KILL "$(cut -d ' ' -f 1 "$FSDP_CLUSTER_STATE/head")"
wait_for 10 "the cluster ends with its head" no_processes
run 2 at_head true
run 0 "$cluster" up --nodes 1
run 0 "$cluster" down
is_clean "a killed head"

step "done"
exit $((failures > 0))
