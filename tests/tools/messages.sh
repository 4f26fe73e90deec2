#!/usr/bin/env bash
# messages.sh REPOSITORY: what the tables of docs/slurm.md "When it does not work" and docs/help-desk.md quote is what the sources say. A row
# begins with its message between backquotes, in which words in capitals may stand for what programs put there. Messages that begin with
# `sbatch:`, `srun:` or `slurmstepd:`, and what `squeue` shows, are Slurm's. Each message of ours is looked for once more with a word too many:
# that must not be found.
set -euo pipefail
export LC_ALL=C   # grep is several times as fast
cd "$1"
failures=0

# All sources in one line, with strings joined that C++ or bash has on several.
sources=$(mktemp)
trap 'rm -f "$sources"' EXIT
find lib apps slurm -type f \( -name '*.[ch]pp' -o -name '*.sh' -o -name '*.sbatch' \) -exec cat {} + |
  tr '\n' ' ' | sed -E 's/" +"//g; s/\\ //g' >"$sources"

# The placeholder of a value in the sources: {}, {:.0f}, $1, $PWD, ${VALUE:-0} or $((...)), or a path of several of them.
value='(\{[^{}]*\}|\$[A-Za-z0-9_]+|\$\{[^{}]*\}|\$\(\([^()]*\)\))'
value="$value(/$value)*"
is_said() { # is_said MESSAGE
  local pattern
  pattern=$(sed -E 's/[][\.*^$+?(){}|]/\\&/g; s/\b[A-Z]+\b/(&|@)/g' <<<"$1")
  grep -qE -e "[\" ]${pattern//@/"$value"}" "$sources"
}

check_page() { # check_page PAGE HEADING
  local page=$1 heading=$2 number=0 compared=0 in_table=false line message
  while IFS= read -r line; do
    number=$((number + 1))
    if [[ $line == "## "* ]]; then in_table=false; fi
    if [[ $line == "$heading" ]]; then in_table=true; fi
    if ! $in_table || [[ $line != "|"* || $line == "| message |"* || $line == "|---"* ]]; then continue; fi
    if [[ ! $line =~ ^\|\ \`([^\`]+)\` ]]; then
      echo "$page:$number: this row does not begin with a message between backquotes"
      failures=$((failures + 1))
      continue
    fi
    message=${BASH_REMATCH[1]}
    if [[ $message == squeue || $message == sbatch:* || $message == srun:* || $message == slurmstepd:* ]]; then continue; fi
    compared=$((compared + 1))
    if ! is_said "$message"; then
      echo "$page:$number: nothing in lib/, apps/ or slurm/ says: $message"
      failures=$((failures + 1))
    elif is_said "${message/ / never }"; then
      echo "$page:$number: this is found with a word too many, so that the test finds anything: $message"
      failures=$((failures + 1))
    fi
  done <"$page"
  ((compared > 0)) || { echo "there are no messages below '$heading' in $page (this test looks in the wrong place)" && exit 1; }
  echo "$page: $compared messages"
}
check_page docs/slurm.md "## When it does not work"
check_page docs/help-desk.md "## The ten commonest tickets"
exit $((failures > 0))
