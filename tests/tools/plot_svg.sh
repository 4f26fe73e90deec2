#!/usr/bin/env bash
# plot_svg.sh REPOSITORY: tools/plot-svg draws metrics, each update once, and settings that were measured; exit status 77: no gnuplot.
set -euo pipefail
plot=$1/tools/plot-svg
if ! command -v gnuplot >/dev/null; then
  echo "gnuplot is not installed"
  exit 77
fi
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"
cd "$work"
run() { # run EXPECTED_STATUS FILE
  local status=0
  "$plot" "$2" >output 2>&1 || status=$?
  [[ $status == "$1" ]] || fail "status $status instead of $1 with: $2"
}

for step in 1 2 3; do echo "{\"loss\":$((9 - step)).5,\"step\":$step,\"type\":\"train\"}"; done >metrics.jsonl
echo '{"loss":99,"step":2,"type":"lost"}' >>metrics.jsonl
run 0 metrics.jsonl
says "<svg"
says "training, each update"
! grep -q "validation" output || fail "draws a validation that was not there"
! grep -q ">90<" output || fail "draws an update that was lost"
echo '{"loss":5,"step":3,"type":"valid"}' >>metrics.jsonl
run 0 metrics.jsonl
says "validation"

cat >tuning.txt <<'TABLE'
# gpt2, 2 ranks
# strategy      recompute batch-size   tokens/s         ms        MiB
full                   no          1        175      182.5        125
full                   no          2          -          -        147  does not fit
full                  yes          4        584      219.0        134
none                   no          1          -          -        149  does not fit
the fastest that fits: --sharding-strategy full --batch-size 4 --checkpoint-activations
TABLE
run 0 tuning.txt
says "full, recomputing"
! grep -q ">none<" output || fail "draws a strategy of which nothing was measured"
# A strategy has a colour of its own, and no point lies on the frame, where half of it and its number would be cut off.
for strategy in full grad-op optim none hybrid hybrid-grad-op; do
  for batch in 1 2; do
    echo "$strategy no $batch ${batch}00 1.0 $((100 + batch))"
    echo "$strategy yes $batch ${batch}00 1.0 $((100 + batch))"
  done
done >rows.txt
{ grep '^# strategy' tuning.txt && cat rows.txt; } >many.txt
run 0 many.txt
colours=$(grep -o "gpPt[0-9]*'.*rgb([^)]*" output | sed 's/.*rgb/rgb/' | sort -u | wc -l)
[ "$colours" = 6 ] || fail "$colours colours for 6 strategies"
highest=$(sed -n "s/.*gpPt.*translate([0-9.]*,\([0-9]*\).*/\1/p" output | sort -n | head -n 1)
((highest > 22)) || fail "the fastest point lies on the frame, at $highest"
grep -v " [0-9]*\.[0-9] " tuning.txt >none.txt
run 2 none.txt
says "has no setting that was measured"
echo "a text" >other.txt
run 2 other.txt
says "has neither updates of fsdp-train nor settings of fsdp-bench tuning"
run 2 missing
says "missing cannot be read"
exit $((failures > 0))
