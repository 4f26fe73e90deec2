#!/usr/bin/env bash
# Usage: other_programs.sh ROOT
# Every option that docs/from-*.md name is in docs/options.md, which is made from the programs: ours, or another program's among
# the names that fsdp-train answers.
set -euo pipefail

cd "$1"
known=$(grep -oE -- '`--[a-zA-Z0-9._-]*' docs/options.md | tr -d '`' | sort -u)
status=0
for page in docs/from-*.md; do
  while read -r option; do
    grep -qxF -- "$option" <<<"$known" || { echo "$page: $option is no option of a program" && status=1; }
  done < <(sed -E -e 's/cmake --build//' -e 's/(torchrun|srun|--ntasks) --?[a-z-]+[= ][0-9]+//' "$page" | grep -oE -- '--[a-z][a-z0-9.-]*' | sort -u)
done
exit $status
