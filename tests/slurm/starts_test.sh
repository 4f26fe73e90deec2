#!/usr/bin/env bash
# starts_test.sh REPOSITORY BIN: Slurm stops jobs while slurm/train.sbatch starts them, and starts jobs again although
# their ranks are still running, because slurmd of a node has died. All jobs resume; none reports that it is done. Exit
# status 77: this machine cannot have such a cluster.
# shellcheck source=tests/slurm/support.sh disable=SC2317 # Many functions are called through others here.
set -euo pipefail
. "$1/tests/slurm/support.sh"
fsdp_slurm_test starts "$1"
fsdp_slurm_programs "$1" "$2"

step "up"
cluster_up --nodes 4 --cpus 2 --gpus 0 --grace 10 --slurmd-timeout 5
small_run
field() { at_head squeue --noheader --jobs="$1" --format="$2"; } # field JOB FORMAT
begin() { # begin NAME OPTION...: two ranks on each node; prints the number of the job
  local words=(RANKS_PER_NODE=2 STOP_BEFORE=20 --cpus-per-task=1 --mincpus=2 --time=10 "${@:2}")
  submit "$1" train.sbatch "${words[@]}" -- --save-dir "$1" --log-file "$1.jsonl" --save-interval-updates 100 --keep-last 2 --batch-size 2 --collective-timeout 5s
}

step "jobs are preempted while they start"
# The job's name looks like output of Slurm, and must not be read as such.
odd_name="run UserId=a(1) Reason=TimeLimit Restarts=9"
for k in 1 2 3; do
  (
    begin "starting$k" --nodes=1 --nodelist=node$k --job-name="$odd_name" >"job$k"
    wait_for 30 "the script begins" test -e "home/starting$k.out"
    sleep "$(cut -d ' ' -f $k <<<"0 0.2 0.5")"
    timeout 60 "$cluster" exec srun --quiet --partition=urgent --nodelist=node$k --exclusive true
  ) &
done
wait
for k in 1 2 3; do
  wait_for 60 "job $k goes on" has_done starting$k 5
  [[ $(grep -c '^job ' home/starting$k.out) == 2 ]] || fail "job $k has not begun twice"
  says starting$k "because another job takes its place; it goes back into the queue"
done
step "and cancelled"
for k in 1 2 3; do at_head scancel "$(cat job$k)"; done
for k in 1 2 3; do
  are_over() { [[ -z $(field "$(cat "job$k")" %i) ]]; }
  wait_for 20 "job $k ends" are_over
  says starting$k "this was asked for"
done

step "slurmd of a node dies, and the ranks there live"
one=$(begin one --nodes=1 --exclude=node3,node4)
two=$(begin two --nodes=1-2 --exclude=node1,node2)
has_saved() { compgen -G "home/$1/step-*/complete.json" >/dev/null; }
for name in one two; do wait_for 30 "$name saves" has_saved $name; done
[[ $(field "$two" %D) == 2 ]] || fail "two has not begun on two nodes"
for job in $one $two; do
  at_head --on "$(field "$job" %B)" --as root pkill -KILL -x slurmd
done
for name in one two; do
  wait_for 120 "$name starts again" has_started $name 2
  wait_for 20 "$name trains again" has_done $name $(($(last_update $name) + 10))
  says $name "^job [0-9]+, start 2, on node[24]:"
  ! grep -E "^done$|failed with exit code" home/$name.out || fail "$name says the wrong thing"
done
# The ranks of `two` may hang and end before the next start. The ranks of `one` do not hang, so its earlier start saves
# for the later one. The message of that save is lost, because the srun that would print it has ended.
says one "waiting until an earlier start of this job, process [0-9]+ on node1, Slurm job [0-9]+, has saved to one and ended"
grep -q '"reason":"a later start of this job waits for one"' home/one.jsonl || fail "the earlier start was not asked to stop"
says one "^Slurm itself has put the job back into the queue"
[[ $(updates one | cut -d ' ' -f 1 | uniq -d) == "" ]] || fail "one has done updates twice"
says two "a node has died or was released|Slurm itself has put the job back"

step "done"
exit $((failures > 0))
