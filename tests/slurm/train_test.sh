#!/usr/bin/env bash
# train_test.sh REPOSITORY BIN: slurm/train.sbatch in a real Slurm. Jobs whose time ends, or that are preempted, are
# requeued and resume with the same bits as an undisturbed job. Jobs that a user stops are not requeued. Exit status 77:
# this machine cannot have such a cluster.
# shellcheck source=tests/slurm/support.sh disable=SC2317  # Many functions are called through others here.
set -euo pipefail
. "$1/tests/slurm/support.sh"
fsdp_slurm_test train "$1"
fsdp_slurm_programs "$1" "$2"

step "up"
cluster_up --nodes 2 --cpus 4 --gpus 0 --grace 20 --kill-wait 10
small_run
cp home/small.cfg home/limited.cfg

step "three jobs"
two_ranks=(--nodes=1 --mincpus=2 --cpus-per-task=1)
submit_training limited CONFIG=limited.cfg STOP_BEFORE=25 "${two_ranks[@]}" --nodelist=node1 --time=1
submit_training undisturbed "${two_ranks[@]}" --nodelist=node1 --time=10 -- --save-interval-updates 50
submit_training preempted "${two_ranks[@]}" --nodelist=node2 --exclusive --time=10
wait_for 30 "the job trains" has_done preempted 10

step "one is preempted, and goes on"
timeout 60 "$cluster" exec srun --partition=urgent --nodelist=node2 --exclusive hostname >/dev/null 2>&1
wait_for 40 "the preempted job starts again" has_started preempted 2
says preempted "^SIGTERM: saving after update [0-9]+, then stopping; the last update took "
says preempted "another job takes its place; it goes back into the queue"
again=$(last_update preempted)
wait_for 20 "it trains again" has_done preempted $((again + 10))

step "its user stops it by a signal"
at_head scancel --signal=USR1 --name=preempted
wait_for 20 "it ends" is_over preempted
says preempted "this was asked for"

step "one stops before its time ends, goes on, and is done"
has_stopped() { grep -q "\"type\":\"stop\"" "home/$1.jsonl"; }
wait_for 60 "the limited job stops" has_stopped limited
stopped=$(sed -nE 's/.*"step":([0-9]+).*"type":"stop".*/\1/p' home/limited.jsonl)
again=$(((stopped / 50 + 2) * 50))
sed -i "s/^max-update.*/max-update = $again/" home/limited.cfg
wait_for 40 "the limited job is done" is_over limited
says limited "^stopping after step $stopped [(]the job ends in 2[0-9]"
says limited "its time is nearly over; it goes back into the queue"
says limited "^done; next: fsdp-evaluate"

step "the pages have Slurm's reasons"
has_reason() { grep -q "stopped: [^<]*; Slurm: $2<" "home/$1/report.html" || fail "the page of $1 has not the reason: $2"; }
has_reason preempted "another job takes its place"
has_reason limited "its time is nearly over"

step "one is cancelled"
wait_for 60 "the undisturbed job is as far as the others" test -e home/undisturbed/"$(printf 'step-%08d' "$again")"/complete.json
at_head scancel --name=undisturbed
wait_for 20 "it ends" is_over undisturbed
says undisturbed "stopped with everything saved"
says undisturbed "this was asked for"
sleep 8 # A requeued job would start during this time.
for name in limited undisturbed preempted; do
  starts=$(grep -c '"type":"start"' "home/$name.jsonl")
  wanted=2
  if [[ $name == undisturbed ]]; then wanted=1; fi
  [[ $starts == "$wanted" ]] || fail "$name has started $starts times"
  [[ $(grep -c '^job ' "home/$name.out") == "$wanted" ]] || fail "the log of $name does not have all of its starts"
done

step "weights and losses are the same"
step_folder=$(printf 'step-%08d' "$again")
bin/fsdp-inspect "home/limited/$step_folder" "home/undisturbed/$step_folder" >compared || fail "weights differ: $(cat compared)"
for name in limited preempted; do
  at=$(sed -nE 's/.*"step":([0-9]+).*"type":"stop".*/\1/p' "home/$name.jsonl" | head -n 1)
  same=$(join <(updates undisturbed | sort -k 1,1) <(updates "$name" | sort -k 1,1) | awk '{n += $2 "" == $3 ""; d += $2 "" != $3 ""} END {print n + 0, d + 0}')
  echo "       $name: stopped after update $at; equal and different losses: $same"
  [[ ${same#* } == 0 ]] || fail "$name: losses differ from those of the undisturbed run"
  ((${same% *} >= at + 10)) || fail "$name: too few losses to compare"
done

step "done"
exit $((failures > 0))
