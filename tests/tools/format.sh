#!/usr/bin/env bash
# Usage: format.sh REPOSITORY. Every C++ file there is as clang-format 14 (Debian 12's) makes it; exit status 77: there is none. Other
# versions make other lines.
set -euo pipefail
cd "$1"
if ! clang-format --version 2>/dev/null | grep -q ' version 14\.'; then
  echo "clang-format 14 is not installed"
  exit 77
fi
folders=()
for folder in apps lib tests docs; do [[ -d $folder ]] && folders+=("$folder"); done
mapfile -t files < <(find "${folders[@]}" -name '*.cpp' -o -name '*.hpp' | sort)
((${#files[@]} > 0)) || { echo "no files found" && exit 1; }
echo "${#files[@]} files"
clang-format --dry-run -Werror "${files[@]}" || { echo "clang-format -i FILE mends it" && exit 1; }
