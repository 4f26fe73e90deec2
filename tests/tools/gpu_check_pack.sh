#!/usr/bin/env bash
# gpu_check_pack.sh BUILD LIBRARY REPOSITORY: a pack of tools/gpu-check starts in a root of Debian 11, whose C library (2.31) is older than the
# one that the programs were linked with (2.36). There it runs on the double of CUDA. Exit status 77: there can be no such root here.
set -euo pipefail
build=$1 double=$2 repository=$3
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"

# CUDA's libraries are large: the double is packed instead.
mkdir -p "$work/build"/{bin,lib,tests}
cp "$build"/bin/fsdp-{train,bench,plan,doctor,consolidate} "$work/build/bin/"
cp -a "$build"/lib/libfsdp.so* "$work/build/lib/"
cp "$double" "$work/build/lib/libfsdp_cuda.so"
cp "$build"/tests/test_{jobs_gpu,comm_nccl} "$work/build/tests/"
LD_LIBRARY_PATH=$build/lib "$repository/tools/gpu-check" --build "$work/build" --pack "$work/pack" >"$work/output"
rm -rf "$work/build"
for file in tests/golden/runs gpu-check gpu-check-torch.py; do [[ -e $work/pack/$file ]] || fail "$file was not packed"; done

# Packing fails if a library is missing.
check() { "$repository/tools/packaging/bundle" --check "$work/pack"; }
check || fail "the pack is not complete"
mkdir "$work/aside" && mv "$work/pack/lib"/libhdf5* "$work/aside/"
! check 2>"$work/output" || fail "a missing library is not noticed"
grep -q 'programs/fsdp-train needs what is not in the bundle: .*libhdf5' "$work/output" || fail "the missing library is not named"
mv "$work/aside"/* "$work/pack/lib/"
((failures == 0)) || exit 1

# shellcheck source-path=SCRIPTDIR source=debian11.sh
source "$(dirname "$(realpath "$0")")/debian11.sh"
make_root "$build/debian11" "$work/pack" /pack
in_root 'ldd --version | head -n 1; /pack/gpu-check --report /pack/without' >"$work/output" 2>&1 && fail "status 0 without a GPU"
grep -q 'GLIBC 2.31' "$work/output" || fail "not the C library of Debian 11"
grep -q '^gpu: none: no driver' "$work/pack/without/report.txt" || fail "without a driver the page does not say so"
grep -q '^fsdp: fsdp-bench [0-9]' "$work/pack/without/report.txt" || fail "packed programs do not start"
in_root "FSDP_CUDA_DOUBLE_DEVICES=2 FSDP_CUDA_LIBRARY=/pack/lib/libfsdp_cuda.so /pack/gpu-check --report /pack/report --only '^(smoke|out_of_memory|nccl.info|same_bits.tiny|trace.tiny)'" \
  2>&1 | grep -v 'left out by --only' >"$work/output" || fail "status $?"
for item in smoke.step out_of_memory nccl.info same_bits.tiny trace.tiny; do
  grep -qE "^$item +passed" "$work/output" || fail "$item did not pass"
done
in_root "FSDP_CUDA_DOUBLE_NCCL_VERSION=23007 FSDP_CUDA_LIBRARY=/pack/lib/libfsdp_cuda.so /pack/gpu-check --report /pack/report --pending \
  --only '^(smoke.step|nccl.shared.abort)$'" >"$work/output" 2>&1 || fail "--pending: status $?"
grep -qE '^  nccl.shared.abort +passed +good: ' "$work/pack/report/report.txt" || fail "--pending has no NCCL on one GPU"
exit $((failures > 0))
