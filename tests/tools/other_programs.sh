#!/usr/bin/env bash
# Usage: other_programs.sh ROOT
# Every option that docs/from-*.md name is in docs/options.md, which is made from the programs: ours, or another program's among
# the names that fsdp-train answers. So is every key in the first column of docs/from-trl.md: an option, another name of one, or a
# name that fsdp-train answers. Rows that begin with a word are not about keys.
set -euo pipefail

cd "$1"
known=$(grep -oE -- '`--[a-zA-Z0-9._-]*' docs/options.md | tr -d '`' | sort -u)
status=0
for page in docs/from-*.md; do
  while read -r option; do
    grep -qxF -- "$option" <<<"$known" || { echo "$page: $option is no option of a program" && status=1; }
  done < <(sed -E -e 's/cmake --build//' -e 's/(torchrun|srun|--ntasks) --?[a-z-]+[= ][0-9]+//' "$page" | grep -oE -- '--[a-z][a-z0-9.-]*' | sort -u)
done
keys=0
# shellcheck disable=SC2016
while read -r key; do
  ((++keys))
  grep -qxF -- "--${key//_/-}" < <(tr -d '`' <<<"$known") || { echo "docs/from-trl.md: fsdp-train does not know $key" && status=1; }
done < <(grep -oE '^\| `[^|]*' docs/from-trl.md | sed -E 's/`: `.*//' | grep -oE '`[a-z][a-z0-9_]*' | tr -d '`' | sort -u)
((keys > 150)) || { echo "only $keys keys were found in docs/from-trl.md" && status=1; }
exit $status
