#!/usr/bin/env bash
# mpich_test.sh REPOSITORY BIN LIB: the programs in BIN with the libfsdp in LIB, which is linked with MPICH, under srun. Exit status 77: MPICH is
# not installed (LIB is empty), or this machine cannot have such a cluster.
# shellcheck source=tests/slurm/support.sh
set -euo pipefail
. "$1/tests/slurm/support.sh"
if [[ -z ${3-} ]]; then
  echo "MPICH is not installed: tools/install --tests installs it, and the build must be configured again"
  exit 77
fi
fsdp_slurm_test mpich "$1"
fsdp_slurm_programs "$1" "$2"
rm lib/*
cp -a "$3"/libfsdp.so* lib

step "up"
cluster_up --nodes 2 --cpus 2 --gpus 0
small_run
run() { # run EXPECTED_STATUS NAME SRUN_OPTION...: on both nodes
  local expected=$1 name=$2 status=0
  shift 2
  (cd home && at_head timeout 60 srun --nodes=2 --ntasks=2 --cpus-per-task=1 "$@" ../bin/fsdp-train --config small.cfg --max-update 3 --save-dir "$name" \
    --log-file "$name.jsonl") >"home/$name.out" 2>&1 || status=$?
  [[ $status == "$expected" ]] || fail "$name: status $status instead of $expected"
}

step "srun --mpi=pmi2"
run 0 pmi2 --mpi=pmi2
[[ $(updates pmi2 | wc -l) == 3 ]] || fail "pmi2 has not trained"
says pmi2 "strategy full over 2 ranks"
says pmi2 "groups of 2 ranks on several nodes"

step "slurm/train.sbatch"
sed -i 's/^SRUN_OPTIONS=.*/SRUN_OPTIONS=(--mpi=pmi2)/' train.sbatch
submit_training script --nodes=2 --ntasks-per-node=1 --mincpus=1 --cpus-per-task=1 --time=10 -- --max-update 3
wait_for 30 "the job ends" is_over script
says script "^done; next: fsdp-evaluate"
[[ $(updates script) == "$(updates pmi2)" ]] || fail "the losses of the script's job are others"

step "plugins that MPICH does not know"
for plugin in pmix none; do
  run 2 $plugin --mpi=$plugin
  [[ $(grep -cE "the ranks do not see each other .srun with.* but cannot connect those of MPICH 4.*srun --mpi=pmi2" "home/$plugin.out") == 1 ]] ||
    fail "$plugin does not say once what to do"
  [[ ! -e home/$plugin ]] || fail "$plugin has trained"
done

step "done"
exit $((failures > 0))
