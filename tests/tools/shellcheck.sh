#!/usr/bin/env bash
# Usage: shellcheck.sh REPOSITORY. Every shell script there, found by its first line, passes shellcheck; exit status 77: there is none.
set -euo pipefail
cd "$1"
if ! command -v shellcheck >/dev/null; then
  echo "shellcheck is not installed"
  exit 77
fi
folders=()
for folder in tools slurm pbs lsf flux .ci tests inputs docs; do [[ -d $folder ]] && folders+=("$folder"); done
mapfile -t scripts < <(grep --recursive --files-with-matches --max-count=1 --binary-files=without-match -E '^#!.*[/ ](ba)?sh( |$)' "${folders[@]}" | sort)
((${#scripts[@]} > 0)) || { echo "no scripts found" && exit 1; }
echo "${#scripts[@]} scripts"
shellcheck -x "${scripts[@]}"
