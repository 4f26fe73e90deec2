#!/usr/bin/env bash
# compare_losses.sh GOLDEN OUTPUT: the first losses in OUTPUT ("step 3  loss 0.123") are those of GOLDEN, one on a line, to 1e-5.
set -euo pipefail
sed -nE 's/^step [0-9]+  loss ([^ ]+).*/\1/p' "$2" | head -n "$(grep -c . "$1")" | paste "$1" - | awk '
  NF != 2 { print "line " NR ": one of the two has no loss"; bad = 1; next }
  { d = ($1 - $2) / $1; if (d < 0) d = -d; if (!(d <= 1e-5)) { print "step " NR ": PyTorch has " $1 ", and the program " $2; bad = 1 } }
  END { exit bad || NR == 0 }'
