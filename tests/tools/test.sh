#!/usr/bin/env bash
# test.sh REPOSITORY: the command line of tools/test, with stand-ins for cmake and ctest that print how they were called.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"

unset FSDP_PYTHON
# A copy, so that a failure cannot configure or build anything.
mkdir "$work/repository" "$work/repository/tools" "$work/bin"
cp "$1"/tools/test{,-matrix} "$work/repository/tools/"
stub() {
  printf '#!/bin/bash\n%s\n' "$2" >"$1"
  chmod +x "$1"
}
run() { # run EXPECTED_STATUS ARGUMENTS...
  local expected=$1 status=0
  shift
  (cd / && PATH=$work/bin:$PATH "$work/repository/tools/test" "$@") >"$work/output" 2>&1 || status=$?
  [[ $status == "$expected" ]] || fail "status $status instead of $expected with: $*"
}
silent() { ! grep -qF -- "$1" "$work/output" || fail "says: $1"; }

# shellcheck disable=SC2016  # expands when the stub runs
stub "$work/bin/cmake" 'echo "cmake $* in $PWD"'
stub "$work/bin/ctest" 'echo "ctest $*"
printf "%s\n" " 1/2 Test  #12: jobs.long ....   Passed   12.50 sec" " 2/2 Test   #3: base.short ...***Failed    0.25 sec"
printf "\n50%% tests passed, 1 tests failed out of 2\n\nTotal Test time (real) =  13.00 sec\n"
exit 8'
# shellcheck disable=SC2016
stub "$work/repository/tools/install" 'echo "install $*"; [[ $1 != --check ]]'

run 0 --help
says "--filter REGEX"
silent "cmake"
for bad in --unknown "-j 0" "-j x" -j --filter; do
  # shellcheck disable=SC2086  # two words
  run 2 $bad
  silent "cmake"
done

# The whole run, from another folder; the exit status is that of ctest, whose summary comes last.
mkdir -p "$work/repository/build/ci"
printf '0\t9000\t1\t%s.cpp.o\t1\n' slow >"$work/repository/build/ci/.ninja_log"
printf '500\t%d\t1\t%s\t1\n' 2000 slow.cpp.o 5000 library.so 3000 slower.cpp.o >>"$work/repository/build/ci/.ninja_log"
run 8
says "install "
says "cmake --preset ci --log-level=NOTICE in $work/repository"
says "cmake --build --preset ci --parallel"
diff - <(tail -n 10 "$work/output") <<'END' || fail "the last lines are others"

The slowest tests:
     12.5 s  jobs.long
      0.2 s  base.short
The slowest files of the build, each when it was last compiled:
      2.5 s  slower.cpp.o
      1.5 s  slow.cpp.o
50% tests passed, 1 tests failed out of 2

Total Test time (real) =  13.00 sec
END
says "--label-exclude ^long$"

# As many jobs as cores, whatever OpenMP is told.
OMP_NUM_THREADS=1 run 8
says "cmake --build --preset ci --parallel $(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)"

run 8 --long -j 3 --filter comm. --no-install
says "install --check"
says "Going on without installing"
says "--build --preset ci --parallel 3"
says "ctest --preset ci --parallel 4 --no-tests=error --tests-regex comm."
silent "--label-exclude"

# Tests that CTest skips are named at the end. With --all, only those that need a GPU may be skipped.
# shellcheck disable=SC2016
stub "$work/bin/ctest" 'if [[ $* == *show-only* ]]; then
  printf "  Test #1: gpu.kernels\n  Test  #12: gpu.jobs\n"
else
  printf "python: %s\n" "${FSDP_PYTHON:-none}"
  printf "100%% tests passed, 0 tests failed out of 28\nThe following tests did not run:\n\t  1 - gpu.kernels (Skipped)\n"
  [[ -e nothing-else ]] || printf "\t 27 - slurm.train (Skipped)\n\t 28 - jobs.python (Skipped)\n"
fi'
run 0
says "python: none"
says "Left out, as they need a GPU: gpu.kernels"
says "Left out, as this machine lacks what they need: slurm.train jobs.python"
says "As root, tools/test --all installs that"
mkdir -p "$work/repository/build/python/bin"
stub "$work/repository/build/python/bin/python" ""
run 1 --all
says "install --tests --no-python"
[[ $(grep -c "^install --tests$" "$work/output") == 1 ]] || fail "Python's packages are not installed"
says "python: $work/repository/build/python/bin/python"
says "tests were skipped that need no GPU"
: >"$work/repository/nothing-else"
run 0 --all
silent "As root"

# The matrix: a table of rows at the end. A row that could not run, or whose tests were all skipped, has not passed.
run 0 --matrix --list
says "clang-19"
run 2 --matrix --filter
run 2 --matrix --no-install --filter nothing
says "no row matches 'nothing'"
stub "$work/bin/ninja" 'printf "%s: phony\n" test_nn_golden test_kernels_gemm apps/all'
# shellcheck disable=SC2016
stub "$work/bin/ctest" 'echo "ctest $* in $PWD, level $FSDP_CPU_LEVEL"; echo " 1/2 Test  #1: nn.golden ....   Passed   0.50 sec"
[[ ! -e fails ]]'
mkdir -p "$work/repository/build/matrix-g++"
run 0 --matrix --filter '^(v2|aarch64)$' -j 3
says "install --matrix"
grep -qE '^v2 +[0-9]+ s  passed$' "$work/output" || fail "v2 has not passed"
grep -qE '^aarch64 +[0-9]+ s  not run: there is no tools/aarch64$' "$work/output" || fail "aarch64 has run"
cp "$work/repository/build/matrix-v2.log" "$work/output"
says "--parallel 3 --target apps/all test_kernels_gemm test_nn_golden in"
says "ctest --parallel 4 --no-tests=error"
says "|nn\.golden|"
says "in $work/repository/build/matrix-g++, level v2"
run 1 --matrix --no-install --filter aarch64
: >"$work/repository/build/matrix-g++/fails"
run 1 --matrix --no-install --filter '^v[23]$'
says "FAILED: build/matrix-v2.log"
# shellcheck disable=SC2016
stub "$work/bin/ctest" 'printf "100%% tests passed, 0 tests failed out of 1\n\t  1 - nn.golden (Skipped)\n"'
run 1 --matrix --no-install --filter '^v2$'
says "not run: all of its tests were skipped: nn.golden"

exit $((failures > 0))
