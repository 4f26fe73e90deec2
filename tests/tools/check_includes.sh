#!/usr/bin/env bash
# check_includes.sh REPOSITORY: plants, in a copy, each kind of line that tools/check-includes must find, and looks for it in its output.
set -euo pipefail
repository=$1
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"
copy=$work
mkdir "$copy/docs"
cp "$repository/docs/design.md" "$copy/docs/"
cp -r "$repository/lib" "$copy/"
check=$repository/tools/check-includes
# finds FILE LINE_NUMBER WORD LINE...: with these lines as FILE the check fails and names FILE:LINE_NUMBER with WORD in the reason.
finds() {
  local file=$1 number=$2 word=$3 output status=0
  shift 3
  mkdir -p "$(dirname "$copy/$file")"
  printf '%s\n' "$@" >"$copy/$file"
  output=$("$check" "$copy" 2>&1) || status=$?
  rm "$copy/$file"
  [[ $status == 1 ]] || fail "status $status instead of 1 for: $*"
  [[ $(grep -c "^$file:$number: .*$word" <<<"$output") == 1 && $(wc -l <<<"$output") == 1 ]] || fail "$file:$number: $word not found in: $output"
}

"$check" "$copy" || fail "the repository itself does not pass"
finds lib/tensor/planted.hpp 2 "comm/communicator.hpp" '#pragma once' '#include "comm/communicator.hpp"'
finds lib/base/deep/planted.cpp 1 "options/options.hpp" '#  include "options/options.hpp"  // why'
finds lib/plan/planted.cpp 1 "mpi.h" '#include <mpi.h>'
finds lib/comm/planted.cpp 1 "belongs to kernels" '#include <oneapi/dnnl/dnnl.hpp>'
finds lib/train/planted.cpp 3 "cuda_runtime.h" '' '' '#include <cuda_runtime.h>'
finds lib/nn/planted.cpp 1 "is no path" '#include "config.hpp"'
finds lib/nn/planted.cpp 1 "is no path" '#include "../base/error.hpp"'
finds lib/train/planted.cpp 1 "is no path" '#include "fsdp-plan/plan_table.hpp"'
finds lib/unknown/planted.cpp 1 "no row" '// not in the table'
finds apps/planted.cpp 1 "hdf5.h" '#include <hdf5.h>'

# Allowed: itself, above, the owner, a commented line.
printf '%s\n' '#include "comm/mesh.hpp"' '#include "base/error.hpp"' '#include <mpi.h>' '// #include <omp.h>' >"$copy/lib/comm/planted.cpp"
"$check" "$copy" || fail "allowed lines are refused"

# Without a table nothing can pass.
echo '# Design' >"$copy/docs/design.md"
status=0
"$check" "$copy" 2>/dev/null || status=$?
[[ $status == 2 ]] || fail "status $status instead of 2 without a table"

exit $((failures > 0))
