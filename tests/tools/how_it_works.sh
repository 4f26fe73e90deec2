#!/usr/bin/env bash
# how_it_works.sh FOLDER-OF-PROGRAMS REPOSITORY: the figures and tables of docs/how-it-works.md are what the programs give today, and the commands
# that the page shows run.
set -euo pipefail
bin=$1
repository=$2
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"

mkdir "$work/docs"
"$repository/tools/update-how-it-works" "$bin" "$work/docs"
diff -r "$repository/docs/figures" "$work/docs/figures" >"$work/diff" || fail "figures in docs/figures are out of date: $(grep -E '^(diff|Only)' "$work/diff")"
diff "$repository/docs/how-it-works.md" "$work/docs/how-it-works.md" || fail "tables in docs/how-it-works.md are out of date, see above"
((failures == 0)) || echo "look at what has changed, and if it is right: tools/update-how-it-works $bin"

# Every figure is shown, and what is shown is there.
page=$work/docs/how-it-works.md
shown=$(grep -oE '\]\(figures/[^)]*' "$page" | sed 's/.*figures\///' | sort)
there=$(cd "$work/docs/figures" && printf '%s\n' *.svg)
[ "$shown" = "$there" ] || fail "shown and drawn figures differ: $(diff <(echo "$shown") <(echo "$there"))"

# Numbers in the text, such as 6,592, are numbers of a figure or a plan.
cd "$repository"
for strategy in full none; do "$bin/fsdp-plan" --config inputs/lesson.cfg --ranks-per-node 4 --sharding-strategy $strategy --json --explain; done >"$work/plans"
numbers=$(sed '/^<!-- made/,/^<!-- end/d' "$page" | grep -oE '[0-9]{1,3}(,[0-9]{3})+' | sort -u)
(($(wc -l <<<"$numbers") >= 8)) || fail "the page's numbers were not found"
for number in $numbers; do
  grep -qwF -- "$number" "$work"/docs/figures/*.svg || grep -qwF -- "${number//,/}" "$work/plans" || fail "no figure or plan has the number $number"
done

# The commands, one a line, with lines that go on joined.
commands=$(sed -e ':join' -e '/\\$/{N;s/\\\n *//;b join' -e '}' "$page" | sed -n 's/^  *fsdp-plan /fsdp-plan /p')
(($(wc -l <<<"$commands") >= 8)) || fail "the page's commands were not found"
while read -r -a words; do
  for i in "${!words[@]}"; do [ "${words[i]}" != '>full' ] || unset "words[i]"; done
  "$bin/fsdp-plan" "${words[@]:1}" >"$work/printed" || fail "this fails: ${words[*]}"
done <<<"$commands"

# Question 7: the lesson's model is trained on text.
"$bin/fsdp-train" README.md --config inputs/lesson.cfg --vocab-size 256 --max-update 2 --save-dir "$work/saves" 2>"$work/output" || fail "the lesson cannot be trained"

# Figures of a model of 8 billion parameters have its numbers; a file that cannot be drawn is refused, and nothing is written then.
"$bin/fsdp-plan" --arch llama-3.1-8b --ranks-per-node 2 --bf16 --print-config >"$work/large"
"$bin/fsdp-report" --figure units "$work/large" --out "$work/units.svg"
grep -qF '>8,030,261,248<' "$work/units.svg" || fail "the figure of units writes 8,030,261,248 otherwise"
"$bin/fsdp-plan" --config inputs/lesson.cfg --json >"$work/numbers"
status=0
"$bin/fsdp-report" --figure units "$work/numbers" --out "$work/none.svg" 2>"$work/error" || status=$?
[ $status = 2 ] || fail "status $status for a file without options"
grep -qF '(it is JSON); give a file that fsdp-plan' "$work/error" || fail "this is said of a file without options: $(cat "$work/error")"
[ ! -e "$work/none.svg" ] || fail "a figure was written in spite of an error"
((failures == 0))
