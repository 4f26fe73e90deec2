#!/usr/bin/env bash
# jobs_test.sh REPOSITORY BUILD LIB MPIRUN...: the programs of BUILD, which is a build with Open MPI whose launcher is MPIRUN, with the libfsdp in
# LIB, which is linked with MPICH. Exit status 77: MPICH is not installed (LIB is empty).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../tools/support.sh
source "$1/tests/tools/support.sh"
build=$2 lib=$3
openmpi=("${@:4}")
mpich=(mpirun.mpich)
if [[ -z $lib ]] || ! command -v mpirun.mpich >/dev/null; then
  echo "MPICH is not installed: tools/install --tests installs it, and the build must be configured again"
  exit 77
fi
cd "$work"
mkdir bin lib
cp "$build"/bin/fsdp-{train,tokenize,doctor} bin
cp -a "$lib"/libfsdp.so* lib

# Programs find libfsdp relative to themselves, and only libfsdp is linked with MPI.
needed() { readelf --dynamic "$1" | sed -nE 's/.*\(NEEDED\).*\[(libmp[^]]*)\]/\1/p'; }
[[ $(needed bin/fsdp-train) == "" ]] || fail "fsdp-train itself is linked with $(needed bin/fsdp-train)"
[[ $(needed lib/libfsdp.so) == libmpich.* ]] || fail "libfsdp is linked with $(needed lib/libfsdp.so)"
bin/fsdp-train --version >output
says "MPICH 4"

run() { # run EXPECTED_STATUS COMMAND...: within 30 s
  local expected=$1 status=0
  shift
  timeout --kill-after=5 30 "$@" >output 2>&1 || status=$?
  [[ $status == "$expected" ]] || fail "status $status instead of $expected of: $*"
}
once() { [[ $(grep -cE -- "$1" output) == 1 ]] || fail "does not say once: $1"; }

# A job of 2 ranks, and 3 ranks that continue it: the same losses as with Open MPI.
seq 20000 >text
bin/fsdp-tokenize text --tokenizer bytes --out train.bin >/dev/null
model=(train.bin --arch gpt2 --vocab-size 256 --decoder-layers 2 --decoder-embed-dim 64 --decoder-attention-heads 4 --tokens-per-sample 32
  --total-batch-size 6 --save-interval-updates 4)
train() { # train NAME BIN LAUNCHER...
  local name=$1 bin=$2
  shift 2
  run 0 "$@" -np 2 "$bin/fsdp-train" "${model[@]}" --save-dir "$name" --log-file "$name.jsonl" --batch-size 1 --max-update 4 --comm mpi
  run 0 "$@" -np 3 "$bin/fsdp-train" "${model[@]}" --save-dir "$name" --log-file "$name.jsonl" --batch-size 2 --max-update 8
}
losses() { sed -nE 's/.*"loss":([^,}]*).*"step":([0-9]+).*"type":"train".*/\2 \1/p' "$1.jsonl"; }
train openmpi "$build/bin" "${openmpi[@]}"
train mpich bin "${mpich[@]}"
[[ $(losses openmpi | wc -l) == 8 ]] || fail "there are not 8 losses: $(losses openmpi)"
[[ $(losses mpich) == "$(losses openmpi)" ]] || fail "losses differ: $(paste <(losses openmpi) <(losses mpich))"

# Several ranks of the other MPI's launcher: one message, which names both MPIs, before MPI_Init. One rank works.
few=("${model[@]}" --save-dir few)
run 2 "${openmpi[@]}" -np 2 bin/fsdp-train "${few[@]}" --max-update 1
once "the ranks do not see each other .mpirun of Open MPI has started at least 2 ranks .*cannot connect those of MPICH 4.*--mpi=pmi2"
run 2 "${mpich[@]}" -np 2 "$build/bin/fsdp-train" "${few[@]}" --max-update 1
once "the ranks do not see each other .mpirun of MPICH or Intel MPI has started at least 2 ranks .*cannot connect those of Open MPI v4.*--mpi=pmix"
! grep -q MPI_Init output || fail "MPI has started"
run 1 "${openmpi[@]}" -np 2 bin/fsdp-doctor
once "failed +MPI +mpirun of Open MPI has started 2 ranks, and MPICH 4.* cannot"
[[ ! -e few ]] || fail "a refused job has trained"
run 0 bin/fsdp-train "${few[@]}" --max-update 1
run 0 "${openmpi[@]}" -np 1 bin/fsdp-train "${few[@]}" --max-update 2
run 0 "${mpich[@]}" -np 1 "$build/bin/fsdp-train" "${few[@]}" --max-update 3

# A program that is itself linked with Open MPI.
cp "$build/tests/test_api_program" bin
run 2 bin/test_api_program none
once "has loaded two MPIs .*libmpi\.so.* and .*libmpich\.so.*; build all of them with the same MPI"

# A rank that fails ends the job of MPICH.
: >train.bin
run 2 "${mpich[@]}" -np 2 bin/fsdp-train "${model[@]}" --save-dir other --max-update 1
once "^fsdp-train: .*train.bin"

exit $((failures > 0))
