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
