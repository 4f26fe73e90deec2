#!/usr/bin/env bash
# public_headers.sh BUILD INCLUDE COMPILER: installs BUILD, and compiles each public header by itself, with COMPILER and with clang++. No public
# header may use fmt or nlohmann-json, so that programs need neither. INCLUDE is the folder of headers in a prefix. Exit status 77: there is no
# clang++.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../tools/support.sh
source "$(dirname "$(realpath "$0")")/../tools/support.sh"
cmake --install "$1" --prefix "$work/prefix" >"$work/output"
include=$work/prefix/$2
compilers=("$3")
if command -v clang++ >/dev/null; then compilers+=(clang++); fi

# compile COMPILER HEADER OPTIONS...: a file that only includes the header.
compile() { "$1" -std=c++20 -I"$include" -I"$include/fsdp/internal" "${@:3}" -x c++ - <<<"#include \"$2\""; }
uses_others() {
  compile "${compilers[0]}" "$1" -E >"$work/expanded"
  grep -qwE 'fmt|nlohmann' "$work/expanded"
}

# The public headers are the two that programs include, and all that these include.
tops=(fsdp/fsdp.hpp fsdp/check_gradients.hpp)
mapfile -t headers < <(for top in "${tops[@]}"; do compile "$3" "$top" -MM; done | grep -oE '[^ ]+\.hpp' | sort -u)
[[ " ${headers[*]} " == *"/fsdp/internal/nn/init.hpp "* ]] || fail "not all public headers were found: ${headers[*]}"
for compiler in "${compilers[@]}"; do
  for header in "${headers[@]}"; do
    compile "$compiler" "$header" -Wall -Wextra -Werror -fsyntax-only >"$work/output" 2>&1 || fail "$compiler cannot compile $header"
  done
done
: >"$work/output"
for top in "${tops[@]}"; do
  if uses_others "$top"; then fail "<$top> uses fmt or nlohmann-json"; fi
done
# Some internal headers use them, so this test can fail.
for header in base/format.hpp files/json.hpp; do
  uses_others "$header" || fail "$header uses neither fmt nor nlohmann-json"
done
((failures == 0)) || exit 1
if ((${#compilers[@]} == 1)); then
  echo "clang++ is not installed"
  exit 77
fi
