#!/usr/bin/env bash
# gpu_check.sh BUILD [LIBRARY] REPOSITORY: tools/gpu-check where there is no GPU, or, with the library of the double of CUDA, on that.
set -euo pipefail
build=$1 double='' repository=${!#}
(($# < 3)) || double=$2
gpu_check=$repository/tools/gpu-check
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"

mkdir "$work/bin"
# run EXPECTED_STATUS ARGUMENTS...
run() {
  local expected=$1 status=0
  shift
  rm -rf "$work/report"
  PATH=$work/bin:$PATH "$gpu_check" --report "$work/report" "$@" >"$work/output" 2>&1 || status=$?
  [[ $status == "$expected" ]] || fail "status $status instead of $expected with: $*"
}
says() { grep -qE -- "$1" "$work/output" || fail "does not say: $1"; }
# in_report KEY...: what the JSON has there; CMake reads it, which is there.
in_report() {
  cat >"$work/read.cmake" <<'END'
file(READ ${FILE} text)
string(JSON value GET "${text}" ${KEYS})
message(NOTICE "${value}")
END
  local keys
  keys=$(IFS=';' && echo "$*")
  cmake -DFILE="$work/report/report.json" "-DKEYS=$keys" -P "$work/read.cmake" 2>&1
}
nvidia_smi() { printf '#!/bin/bash\n%s\n' "$1" >"$work/bin/nvidia-smi" && chmod +x "$work/bin/nvidia-smi"; }
nvidia_smi 'exit 9'
unset FSDP_CUDA_LIBRARY

if [[ -z $double ]]; then
  export CUDA_VISIBLE_DEVICES=''
  run 77 --build "$build"
  items=$("$gpu_check" --list | wc -l)
  ((items > 30)) || fail "$items items"
  [[ $(in_report not_run) == "$items" && $(in_report passed) == 0 && $(in_report failed) == 0 ]] || fail "the items are not all not run"
  [[ $(grep -c '"status": "not run", "reason": "no GPU can be used here"' "$work/report/report.json") == "$items" ]] || fail "not all have that reason"
  # The prediction stands alone, and the measurement is empty.
  says "0 passed, 0 failed, $items not run"
  [[ $(in_report items 28 name) == step.124M && $(in_report items 28 figures) == "" ]] || fail "step.124M is not item 28, or has figures"
  [[ $(in_report items 28 predicted measured) == OFF && $(in_report items 28 predicted ms) =~ ^[0-9.]+$ ]] || fail "no prediction"
  grep -qE '^step.124M {20,}[0-9.]+ ' "$work/report/report.txt" || fail "the text has no prediction alone"
  grep -qE '^gpu: none: ' "$work/report/report.txt" || fail "the text does not say why"

  # A GPU that is there, and of no use.
  # shellcheck disable=SC2016
  nvidia_smi '[[ $1 == -L ]] && echo "GPU 0: something"'
  run 1 --build "$build"
  nvidia_smi 'exit 9'

  run 2 --only
  run 2 --only '['
  run 2 --only '^no_such_item$'
  run 2 --unknown
  says "unknown argument --unknown"
  run 0 --help

  # A packed folder needs nothing of what it was packed from. Without libfsdp_cuda here: CUDA's libraries are large.
  mkdir -p "$work/build"/{bin,lib,tests}
  cp "$build"/bin/fsdp-{train,bench,plan} "$work/build/bin/"
  cp -a "$build"/lib/libfsdp.so* "$work/build/lib/"
  run 0 --build "$work/build" --pack "$work/packed"
  rm -rf "$work/build"
  for file in tests/data/golden gpu-check gpu-check-torch.py; do [[ -e $work/packed/$file ]] || fail "$file was not packed"; done
  [[ -n $(find "$work/packed/lib" -name 'libstdc++*') && -z $(find "$work/packed/lib" -name 'libc.so*' -o -name 'libm.so*') ]] ||
    fail "the C++ library is to be packed, and the C library is not"
  if ldd "$work/packed/bin/fsdp-train" | grep -q "/usr/lib/.*libmpi"; then # which was built here
    [[ -n $(find "$work/packed/lib" -name 'libmpi*') && -n $(find "$work/packed/openmpi" -name 'mca_*') ]] || fail "MPI was not packed"
  fi
  status=0
  (cd / && env -i PATH="$work/bin:/usr/bin:/bin" CUDA_VISIBLE_DEVICES='' "$work/packed/gpu-check" --report "$work/report") >"$work/output" 2>&1 || status=$?
  [[ $status == 77 ]] || fail "status $status instead of 77 of the packed one"
  grep -q '^fsdp: fsdp-bench [0-9]' "$work/report/report.txt" || fail "packed programs do not start"
  exit $((failures > 0))
fi

export FSDP_CUDA_LIBRARY=$double FSDP_CUDA_DOUBLE_DEVICES=1
run 0 --build "$build" --only '^(out_of_memory|smoke|nccl)'
says '^out_of_memory +passed'
says '^nccl +not run .*needs 4 GPUs, and there are 1'
says '^smoke.step +passed'
says '^golden +not run +left out by --only'
grep -q '"name": "smoke.gemm", "status": "passed", "reason": "", "seconds": [0-9]*, "figures": {"device":"GPU made of threads' "$work/report/report.json" || fail "no figures"
[[ $(in_report passed) == 4 && $(in_report failed) == 0 ]] || fail "not 4 passed"

# What does not fit is not run; what fails, fails.
FSDP_CUDA_DOUBLE_MEMORY=100000000 run 0 --build "$build" --only '^smoke.step$'
says "^smoke.step +not run .*memory is too small"
mkdir -p "$work/build/tests"
ln -s "$build/bin" "$work/build/bin"
printf '#!/bin/bash\necho "two and two are five"; exit 3\n' >"$work/build/tests/test_kernels_gpu"
printf '#!/bin/bash\necho "skipped: not today"; exit 77\n' >"$work/build/tests/test_fsdp_golden_on_gpu"
chmod +x "$work"/build/tests/*
run 1 --build "$work/build" --only '^(kernels.all|golden)$'
says "^kernels.all +failed .*exit status 3; see kernels.all.log"
says "^golden +not run .*skipped: not today"
grep -q "two and two are five" "$work/report/kernels.all.log" || fail "the log lacks the output"
exit $((failures > 0))
