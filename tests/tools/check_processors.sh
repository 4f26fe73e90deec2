#!/usr/bin/env bash
# check_processors.sh REPOSITORY: runs tools/check-processors on the repository, and on a copy in which each kind of line is planted that it must find.
set -euo pipefail
repository=$1
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"
check=$repository/tools/check-processors
"$check" "$repository" || fail "the repository itself does not pass"

copy=$work
mkdir -p "$copy/lib/base" "$copy/lib/kernels/rows"
# finds FILE LINE: with this line as FILE the check fails and shows it.
finds() {
  local status=0 output
  printf '%s\n' "$2" >"$copy/$1"
  output=$("$check" "$copy") || status=$?
  rm "$copy/$1"
  [[ $status == 1 && $output == "$1:1: $2" ]] || fail "status $status and '$output' instead of the line: $2"
}
for line in '#include <immintrin.h>' '#include <arm_neon.h>' '#include <cpuid.h>' 'x = _mm_add_ps(x, y);' '__m256i x;' 'asm volatile("isb");' \
  'if (__builtin_cpu_supports("fma")) return;' '__builtin_ia32_pause();' '#if defined(__x86_64__)' '#ifdef __AVX512F__' '#ifdef __ARM_NEON' \
  '[[gnu::target("arch=x86-64-v3")]] void f();' 'return CpuLevel::v4;' 'case CpuLevel::neon:'; do
  finds lib/base/planted.hpp "$line"
done
mkdir -p "$copy/lib/kernels/cuda" # its files may have assembly, but not these
for line in '#include <cuda_runtime_api.h>' 'x += __shfl_xor_sync(all, x, 1);' '__syncwarp();' '#include <cublasLt.h>' '#include <nccl.h>'; do
  finds lib/kernels/cuda/planted.cu "$line"
done
finds lib/CMakeLists.txt 'target_compile_options(fsdp PRIVATE -march=native)'
finds lib/base/planted.cmake '  set(flags -mavx2)'
finds CMakePresets.json '"CMAKE_CXX_FLAGS": "-O1 -mcpu=neoverse-v2"'

# Allowed: comments, names that only contain such a word, files of a processor.
printf '%s\n' '// _mm_pause() and asm' 'int plasma(int normal_mm_of);' >"$copy/lib/base/planted.hpp"
printf '%s\n' '# -march=native' >"$copy/lib/CMakeLists.txt"
for file in lib/base/x86_64.hpp lib/base/aarch64.cpp lib/kernels/rows/amx.cpp; do echo '#include <immintrin.h>' >"$copy/$file"; done
"$check" "$copy" || fail "allowed lines are refused"

status=0
"$check" "$copy/lib/base" 2>/dev/null || status=$?
[[ $status == 2 ]] || fail "status $status instead of 2 without sources"

exit $((failures > 0))
