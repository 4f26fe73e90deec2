#!/usr/bin/env bash
# doctor_test.sh REPOSITORY BIN: fsdp-doctor in a real Slurm, in correct jobs and in jobs with the mistakes that it must
# find. Exit status 77: this machine cannot have such a cluster.
# shellcheck source=tests/slurm/support.sh disable=SC2317  # Many functions are called through others here.
set -euo pipefail
. "$1/tests/slurm/support.sh"
fsdp_slurm_test doctor "$1"
mkdir bin lib
cp "$2"/fsdp-{doctor,train} bin
cp -a "$2"/../lib/libfsdp.so* lib

fail() {
  echo "$1"
  if [[ -e $work/output ]]; then sed 's/^/  | /' "$work/output"; fi
  failures=$((failures + 1))
}
# examine STATUS COMMAND...: runs COMMAND and stores its output for `says`.
examine() {
  local wanted=$1 status=0
  shift
  (cd home && at_head timeout 100 "$@") >"$work/output" 2>&1 || status=$?
  sed -Ei ':all; N; $!b all; s/\n {26,}/ /g' "$work/output"  # joins the lines of a finding
  [[ $status == "$wanted" ]] || fail "exit status $status instead of $wanted: $*"
}
says() { grep -qE -- "$1" "$work/output" || fail "it does not say: $1"; }
once() { [[ $(grep -cE -- "$1" "$work/output") == 1 ]] || fail "it does not say once: $1"; }

step "up"
cluster_up --nodes 3 --cpus 4 --gpus 0
doctor=(../bin/fsdp-doctor --device cpu --collective-timeout 60)
pmix=(env OMP_NUM_THREADS=1 srun --mpi=pmix --nodes=2)

step "a job without mistakes"
examine 0 "${pmix[@]}" --ntasks-per-node=2 --cpus-per-task=1 "${doctor[@]}"
once "^fsdp-doctor .*: 4 ranks on node1 and node2$"
once "^  ok       MPI  .* connects 4 ranks on 2 nodes; started by srun with PMIx"
once "^  ok       Slurm  .*with 2 nodes and 4 tasks; srun has PMIx"
once "^  ok       threads  .*2 threads of 2 ranks on 2 processors on each node"
once "^  ok       save folder  .*all 2 nodes read and write it"
once "^  ok       clocks "
once "^  ok       HDF5 .*by each node"
once "^  ok       compute        a rank multiplies at "
once "^  ok       network        each node sends and receives at least .*"
says ".by TCP."
once "^  ok       files          files of .* by 4 ranks at once"
once "^  ok       training  .*on 4 ranks .MPI"
once "^all 15 checks are ok"
[[ -z $(ls "$work/home") ]] || fail "it leaves files: $(ls -A "$work/home")"

step "a save folder that is local to a node"
examine 1 "${pmix[@]}" --ntasks=2 "${doctor[@]}" --save-dir /tmp/checkpoints
once "^  failed   save folder    /tmp/checkpoints "
says "files written by node1 cannot be read"
says "choose a --save-dir on a file system that all nodes share"

step "srun without PMIx"
for plugin in none pmi2; do
  examine 1 srun --mpi="$plugin" --nodes=2 --ntasks=2 "${doctor[@]}"
  once "^  failed   MPI  .*has started 2 ranks"
  once "start the job with srun --mpi=pmix"
  once "^1 failed"
  examine 2 srun --mpi="$plugin" --nodes=2 --ntasks=2 ../bin/fsdp-train --version
  once "^fsdp-train: the ranks do not see each other .*srun with.*Open MPI.*srun --mpi=pmix"
  ! grep -q "MPI_Init" "$work/output" || fail "MPI has begun"
done

step "more threads than cores"
examine 0 env OMP_NUM_THREADS=3 srun --mpi=pmix --nodes=2 --ntasks=2 --cpus-per-task=1 "${doctor[@]}"
once "^  warning  threads        oversubscribed: 3 threads of 1 rank on 1 processor of node1 and node2"
says "give each rank 1 thread"

step "an allocation in which nothing was started"
examine 0 env OMP_NUM_THREADS=2 salloc --quiet --nodes=2 --ntasks-per-node=2 "${doctor[@]}"
once "^  warning  Slurm  .*2 nodes and 4 tasks; srun has PMIx; but this is one rank"

# The faults that make a job of several nodes slow. A node's rank is restricted by taskset.
cat >node <<'EOT'
#!/bin/sh
if [ "$(hostname)" = "$1" ] || [ "$1" = all ]; then cpus=0; else cpus=0,1; fi
shift
exec taskset --cpu-list "$cpus" "$@"
EOT
chmod 755 node
if (($(nproc) > 1)); then
  step "a node with half of the others' cores"
  examine 0 srun --mpi=pmix --nodes=3 --ntasks-per-node=1 --cpus-per-task=2 ../node node2 "${doctor[@]}"
  once "^  warning  threads .*1 processor of node2, although the job has asked for 2"

  step "a job on one core"
  examine 0 srun --mpi=pmix --nodes=2 --ntasks-per-node=1 --cpus-per-task=2 ../node all "${doctor[@]}"
  once "^  warning  threads        1 thread of 1 rank on 1 processor of node1 and node2, although the job has asked for 2"
  once "^  ok       compute "
  says "give --cpus-per-task=2 to srun, too"
fi

step "a slow link"
limit=(root tbf rate 100mbit burst 128kb latency 100ms)
if "$cluster" exec --on node2 --as root tc qdisc add dev eth0 "${limit[@]}" 2>/dev/null; then
  examine 0 "${pmix[@]}" --ntasks-per-node=1 --nodes=3 "${doctor[@]}"
  once "^  warning  network        each node sends and receives at least 1[0-9.]+ MB/s at once"
  says "node2 reaches [0-9]+ % of"
  says "--exclude=node2"
else
  echo "this kernel cannot limit a link's rate (it has no tbf), so no link was slow"
fi

step "done"
exit $((failures > 0))
