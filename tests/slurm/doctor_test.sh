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
  [[ $status == "$wanted" ]] || fail "exit status $status instead of $wanted: $*"
}
says() { grep -qE -- "$1" "$work/output" || fail "it does not say: $1"; }
once() { [[ $(grep -cE -- "$1" "$work/output") == 1 ]] || fail "it does not say once: $1"; }

step "up"
cluster_up --nodes 2 --cpus 4 --gpus 0
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
once "^  ok       training  .*on 4 ranks .MPI"
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

step "done"
exit $((failures > 0))
