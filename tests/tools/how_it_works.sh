#!/usr/bin/env bash
# how_it_works.sh FOLDER-OF-PROGRAMS REPOSITORY: the figures and tables of docs/how-it-works.md are what the programs give today, the commands
# that the page shows run, and tools/draw says what is wrong with what it is given.
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

# Numbers above 2^31 are drawn whole, and what is sharded is what the strategy says: ZeRO-1 in bf16 on 2 ranks has whole parameters.
"$bin/fsdp-plan" --arch llama-3.1-8b --ranks-per-node 2 --bf16 --json --explain >"$work/large"
tools/draw units "$work/large" >"$work/units.svg"
grep -qF '>8,030,261,248<' "$work/units.svg" || fail "tools/draw units writes 8,030,261,248 otherwise"
tools/draw strategies "$work/large" >"$work/strategies.svg"
widths() { grep -E "fill=\"$2\".*>$1, rank 1: " "$work/strategies.svg" | grep -o ' width="[^"]*"'; } # STRATEGY COLOUR
[ "$(widths optim '#77aadd')" = "$(widths none '#77aadd')" ] || fail "tools/draw strategies cuts the parameters of optim"
[ "$(widths full '#77aadd')" = "$(widths optim '#44bb99')" ] || fail "tools/draw strategies cuts full in another way than the state of optim"

# refuses WORD ARGUMENT...: exit status 2 and WORD in the message.
refuses() {
  local status=0
  tools/draw "${@:2}" >/dev/null 2>"$work/error" || status=$?
  if [[ $status != 2 ]] || ! grep -q -- "$1" "$work/error"; then fail "status $status and '$(cat "$work/error")' for: draw ${*:2}"; fi
}
"$bin/fsdp-plan" --config inputs/lesson.cfg --json >"$work/numbers"
echo '{"plan": {"units": [' >"$work/cut"
refuses 'no figure is named'
refuses "no figure 'units-of'" units-of "$work/numbers"
refuses 'no file is given' units
refuses "cannot read 'none'" units none
refuses '--unit needs a number' units --unit x "$work/numbers"
refuses "unknown option '--units'" units --units
refuses "'two@onne' ends in no mode that is known (TITLE@streams, TITLE@thread and TITLE@one are)" timeline "two@onne=$work/numbers"
refuses 'has no plan' units "$work/numbers"
refuses 'is no JSON' units "$work/cut"
((failures == 0))
