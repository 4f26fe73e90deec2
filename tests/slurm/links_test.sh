#!/usr/bin/env bash
# links_test.sh REPOSITORY BIN: two nodes with two ranks each. The interface counters of the nodes show the network
# traffic per update that fsdp-plan predicts. A suspended job continues. A rank that hangs ends the job on both nodes,
# and no process is left. Exit status 77: this machine cannot have such a cluster.
# shellcheck source=tests/slurm/support.sh disable=SC2317  # Many functions are called through others here.
set -euo pipefail
. "$1/tests/slurm/support.sh"
fsdp_slurm_test links "$1"
fsdp_slurm_programs "$1" "$2"

step "up"
cluster_up --nodes 2 --cpus 2 --gpus 0
small_run
two_each=(RANKS_PER_NODE=2 STOP_BEFORE=0 --nodes=2 --mincpus=2 --cpus-per-task=1 --time=10)
model=(--arch gpt2 --vocab-size 256 --decoder-layers 4 --decoder-embed-dim 128 --decoder-attention-heads 4 --tokens-per-sample 32 --batch-size 1)
printf '%s\n' "data = train.bin" "max-update = 40" "log-interval = 1000" >home/wide.cfg

# sent NODE: prints the bytes that the node has sent so far. planned STRATEGY: prints the planned bytes that a node
# sends per update.
sent() { at_head --on "$1" --as root ip -s -j link show eth0 | grep -oE '"tx":\{"bytes":[0-9]+' | grep -oE '[0-9]+$'; }
planned() {
  bin/fsdp-plan "${model[@]}" --nodes 2 --ranks-per-node 2 --json | sed "s|[{,]|\n|g" | awk -F '[:" ]+' -v wanted="$1" '
    $2 == "out_of_node" {bytes = $3} $2 == "strategy" && $3 == wanted {print bytes}'
}

step "bytes between the nodes"
for strategy in full hybrid; do
  before=$(($(sent node1) + $(sent node2)))
  submit_training $strategy CONFIG=wide.cfg "${two_each[@]}" -- "${model[@]}" --sharding-strategy $strategy
  wait_for 40 "$strategy runs" has_started $strategy 1
  wait_for 60 "$strategy ends" is_over $strategy
  [[ $(last_update $strategy) == 40 ]] || fail "$strategy has not done its updates"
  measured=$((($(sent node1) + $(sent node2) - before) / 80)) plan=$(planned $strategy)
  printf '       %s: %d bytes leave a node for an update, %d by the plan\n' $strategy $measured "$plan"
  ((100 * measured > 90 * plan && 100 * measured < 110 * plan)) || fail "$strategy does not send what is planned"
done

step "a job is suspended for longer than its time-out"
submit_training hangs CONFIG=wide.cfg "${two_each[@]}" -- "${model[@]}" --max-update 1000000 --collective-timeout 5s
wait_for 40 "it trains" has_done hangs 10
job=$(at_head squeue --noheader --name=hangs --format=%A)
at_head --as root scontrol suspend "$job"
sleep 6.5
suspended=$(last_update hangs)
at_head --as root scontrol resume "$job"
wait_for 30 "it trains again" has_done hangs $((suspended + 20))

step "a rank hangs"
at_head --on node2 --as root bash -c 'pgrep -x fsdp-train | head -n 1 | xargs kill -STOP'
began=$SECONDS
wait_for 40 "it ends" is_over hangs
echo "       the job was over $((SECONDS - began)) s later"
says hangs "failed with exit code"
says hangs "rank [23] on node2.* has not arrived at "
wait_for 15 "nothing is left" is_quiet node1 node2

step "done"
exit $((failures > 0))
