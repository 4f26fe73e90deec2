#!/usr/bin/env bash
# mirror.sh REPOSITORY: the folders of tests/ are those of lib/, or one of the kinds of tests below. A test in the folder of a room of lib/ includes
# a header of that room, itself or by headers of tests/; <fsdp/fsdp.hpp> has the public headers of api/ and layers/. A test that starts programs
# (jobs/) may be in the room whose errors or results it checks.
set -euo pipefail
cd "$1/tests"
status=0 others=(
  apps tools tools_cli bench         # apps/ and tools/: their code, their scripts, command lines, what users measure
  jobs slurm mpich gpu               # whole programs: under mpirun, in Slurm, with another MPI, on a real GPU
  simulator                          # predictions next to published measurements
  extending install headers fuzz     # docs/extending*.md, the installed package, headers on their own, damaged files
  cuda_double golden support         # no tests of a room: a GPU in software with its tests, golden data, helpers of tests
)
for folder in */; do
  folder=${folder%/}
  [[ -d ../lib/$folder || " ${others[*]} " == *" $folder "* ]] ||
    { echo "tests/$folder has the name of no folder of lib/, and tests/tools/mirror.sh does not list it"; status=1; }
done

# includes FILE: the headers that a test includes, and those that headers of tests/ include for it
includes() {
  local header
  while read -r header; do
    echo "$header"
    [[ -e ${1%/*}/$header ]] && header=${1%/*}/$header
    [[ ! -e $header ]] || includes "$header"
  done < <(sed -nE 's/^#include ["<]([a-z0-9_/]+\.hpp)[">]$/\1/p' "$1")
}
for folder in ../lib/*/; do
  room=${folder:7:-1}
  for file in "$room"/*.cpp; do
    [[ -e $file ]] || continue
    found=$(includes "$file")
    [[ $room =~ ^(api|layers)$ && $found == *fsdp/fsdp.hpp* ]] ||
      grep -qE "^($room|jobs)/" <<<"$found" ||
      { echo "tests/$file includes no header of lib/$room/"; status=1; }
  done
done
exit $status
