#!/usr/bin/env bash
# nodes_test.sh REPOSITORY BIN: slurm/train.sbatch with a changing number of nodes. A job of one or two nodes resumes on
# the free nodes, and with --invariant it has the same bits. A job that loses a node continues on the other node, in the
# same allocation, and finishes. Exit status 77: this machine cannot have such a cluster.
# shellcheck source=tests/slurm/support.sh disable=SC2317  # Many functions are called through others here.
set -euo pipefail
. "$1/tests/slurm/support.sh"
fsdp_slurm_test nodes "$1"
fsdp_slurm_programs "$1" "$2"

step "up"
cluster_up --nodes 2 --cpus 2 --gpus 0 --slurmd-timeout 5
small_run
sed -i 's/^max-update.*/max-update = 400/' home/small.cfg
echo "lr = 1e-4" >>home/small.cfg # At larger rates, rounding differences grow with each update.
node_is_idle() { [[ $(at_head sinfo --noheader --nodes="$1" --partition=cpu --format=%T) == idle ]]; }
ranks_of_starts() { sed -nE 's/.*"type":"start".*"world_size":([0-9]+).*/\1/p' "home/$1.jsonl" | paste -sd ' '; }
one_each=(RANKS_PER_NODE=1 STOP_BEFORE=0 --cpus-per-task=1 --mincpus=1 --time=10)

step "a job of one or two nodes is preempted on one"
invariant=(--invariant --batch-size 1) # 8 micro-batches in all
submit_training elastic "${one_each[@]}" --nodes=1-2 -- --max-update 1000000 "${invariant[@]}"
wait_for 30 "it trains" has_done elastic 10
at_head sbatch --partition=urgent --nodelist=node2 --exclusive --output=none --wrap="sleep 12" >/dev/null 2>&1
wait_for 40 "it starts again" has_started elastic 2
wait_for 20 "it trains again" has_done elastic $(($(last_update elastic) + 10))
[[ $(ranks_of_starts elastic) == "2 1" ]] || fail "it has started with these ranks: $(ranks_of_starts elastic)"
says elastic "^job [0-9]+, start 2, on node1:"
wait_for 20 "the other node is free" node_is_idle node2
at_head scontrol requeue "$(at_head squeue --noheader --name=elastic --format=%i)"
wait_for 40 "it starts once more" has_started elastic 3
wait_for 20 "it trains once more" has_done elastic $(($(last_update elastic) + 10))
[[ $(ranks_of_starts elastic) == "2 1 2" ]] || fail "it has started with these ranks: $(ranks_of_starts elastic)"
touch home/elastic/stop
wait_for 20 "it ends" is_over elastic

step "a node dies"
wait_for 20 "both nodes are free" node_is_idle node1,node2
submit_training unlucky "${one_each[@]}" --nodes=2 -- --save-interval-updates 50
wait_for 30 "it trains" has_done unlucky 120
"$cluster" fail node2
submit_training undisturbed "${one_each[@]}" --nodes=1
wait_for 60 "it starts again" has_started unlucky 2
step "the run goes on"
wait_for 40 "it finishes" is_over unlucky
says unlucky "^a node has died or was released; the remaining nodes are node1$"
says unlucky "^continuing on them from the last checkpoint, in this job$"
says unlucky "^done$"
[[ $(grep -c '^job ' home/unlucky.out) == 1 ]] || fail "it has gone back into the queue"
[[ $(ranks_of_starts unlucky) == "2 1" ]] || fail "it has started with these ranks: $(ranks_of_starts unlucky)"
[[ $(updates unlucky | cut -d ' ' -f 1 | sort -nu | paste -sd ' ') == "$(seq -s ' ' 400)" ]] || fail "updates are missing"
is_quiet node1 || fail "this is left: $(leftovers node1)"

step "the losses are those of one node"
wait_for 40 "the other run ends" is_over undisturbed
largest=$(join <(updates undisturbed | sort -k 1,1) <(updates unlucky | sort -k 1,1) | awk '
  {d = ($2 - $3) / $2; if (d < 0) d = -d; if (d > most) most = d; n++} END {print n + 0, most + 0}')
repeated=$(($(updates unlucky | wc -l) - 400))
echo "       updates done twice: $repeated; losses compared and largest relative difference: $largest"
awk -v n="${largest% *}" -v most="${largest#* }" 'BEGIN {exit !(n >= 400 && most < 1e-6)}' || fail "losses differ"

step "2, 1 and 2 nodes have the bits of one"
submit_training straight "${one_each[@]}" --nodes=1 -- --max-update "$(last_update elastic)" "${invariant[@]}"
wait_for 60 "the run ends" is_over straight
[[ $(updates straight) == "$(updates elastic)" ]] || fail "losses differ"
(cd home && ../bin/fsdp-inspect straight elastic | grep -q "are the same, bit for bit") || fail "weights differ"

step "done"
exit $((failures > 0))
