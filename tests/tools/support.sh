# shellcheck shell=bash
# For tests of scripts, which source it: $work, an empty folder that goes away with them, and how they count what is wrong. A test puts what
# the script under test prints into $work/output, and ends with `exit $((failures > 0))`.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# fail WHAT: says it, and what has been printed, and which stand-ins were called.
fail() {
  local file
  echo "$1"
  for file in "$work/output" "$work/calls"; do [[ ! -e $file ]] || cat "$file"; done
  failures=$((failures + 1))
}
says() { grep -qF -- "$1" "$work/output" || fail "does not say: $1"; }

# ---- stand-ins for programs in PATH
# stub NAME BODY: makes a stand-in in $work/bin; its calls are in $work/calls.
stub() {
  mkdir -p "$work/bin"
  printf '#!/bin/bash\necho "%s $*" >>"%s/calls"\n%s\n' "$1" "$work" "$2" >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}
called() { grep -qF -- "$1" "$work/calls" || fail "was not called: $1"; }
# run EXPECTED_STATUS COMMAND...: runs a command with the stand-ins.
run() {
  local expected=$1 status=0
  shift
  : >"$work/calls"
  PATH=$work/bin:$PATH "$@" >"$work/output" 2>&1 || status=$?
  [[ $status == "$expected" ]] || fail "status $status instead of $expected of: $*"
}
