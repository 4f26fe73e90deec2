#!/usr/bin/env bash
# from_pytorch.sh REPOSITORY: the first table of docs/from-pytorch-script.md has all lines of both programs, in their order, without indentation.
set -euo pipefail
cd "$1/docs"
# column N: the code in the column of the table's rows, one line for each `...`.
column() {
  awk -v column="$1" '/^## / { exit } /^\| `|^\| \(|^\|  \|/ { cell = column == 1 ? substr($0, 3, index($0, " | ") - 3) : substr($0, index($0, " | ") + 3)
    while (match(cell, /`[^`]*`/)) { print substr(cell, RSTART + 1, RLENGTH - 2); cell = substr(cell, RSTART + RLENGTH) } }' from-pytorch-script.md
}
status=0
diff <(awk '/^"""/ { quotes++; next } quotes != 1' examples/from-pytorch/train.py | sed -E 's/^ +//; /^$/d') <(column 1) || status=1
diff <(sed -E 's/^ +//; /^(\/\/.*)?$/d' examples/from-pytorch/main.cpp) <(column 2) || status=1
((status == 0)) || echo "docs/from-pytorch-script.md has the lines marked with >, the programs have those marked with <"
exit "$status"
