#!/usr/bin/env bash
# failing_rank.sh EXPECTED_STATUS COMMAND...: passes if COMMAND (an mpirun) ends within 60 s with this status ("any": not 0).
set -uo pipefail
expected=$1
shift
output=$(timeout --kill-after=5 60 "$@" 2>&1)
status=$?
if [[ $status == 124 || $status == 137 && $output != *"signal 9"* ]]; then
  echo "still running after 60 s: $*"
elif [[ $status == 0 || ($expected != any && $status != "$expected") ]]; then
  echo "ended with $status instead of $expected: $*"
elif [[ $* == *" hang "* ]]; then
  named='^ranks 1 and 3 on .* have'
  [[ $* == *" nodes" ]] && named='^rank [13] on .* has'  # that of its own node: whoever comes first ends the job
  grep -q "$named not arrived at all-reduce of block 3 within 1.0 s" <<<"$output" && exit 0
  echo "did not name the ranks that hang: $*"
elif [[ $* != *" kill "* && $(grep -c '^rank 1 was told to fail$' <<<"$output") != 1 ]]; then
  echo "did not print its error once: $*"
else
  exit 0
fi
echo "$output"
exit 1
