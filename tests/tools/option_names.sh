#!/usr/bin/env bash
# option_names.sh REPOSITORY: only lib/machine/, lib/record/, lib/options/, lib/job/, lib/train/, lib/report/ (which shows the options of runs) and programs know the names of options. Messages there name quantities between backquotes, and each of
# these is one that an option of some program sets, so that programs can say which.
set -euo pipefail
cd "$1"
status=0
below=$(find lib \( -name '*.cpp' -o -name '*.hpp' \) -not -path 'lib/machine/*' -not -path 'lib/record/*' -not -path 'lib/options/*' -not -path 'lib/job/*' -not -path 'lib/train/*' -not -path 'lib/report/*' -not -path 'lib/base/options.*')
# shellcheck disable=SC2086  # file names of ours have no spaces
if grep -nE '("|//).*--[a-z]{2}' $below | grep -v 'srun --mpi='; then
  echo "the lines above name an option (only lib/machine/, lib/record/, lib/options/, lib/job/, lib/train/, lib/report/ and programs know them) name the quantity: \`micro-batch\`"
  status=1
fi
# shellcheck disable=SC2086,SC2016
quantities=$(grep -hvE '^[[:space:]]*//' $below | grep -oE '"[^"]*"' | grep -oE '`[^`{}]+`' | sort -u || true)
[[ -n $quantities ]] || { echo "no quantity was found (this test looks in the wrong place)" && exit 1; }
# Of texts, of changed architectures, of adapters that a program merges, of files that it writes: no function of the API raises them.
# shellcheck disable=SC2016
not_in_api='`activation` `adapter` `attention within documents` `conversations` `field of JSON` `form of JSON` `largest file` `learned positions` `names in JSON`
  `scaled embedding` `sinusoidal positions` `skipping of lines` `states of the optimizer` `tokenizer` `unscaled embedding`'
while IFS= read -r quoted; do
  name=${quoted//\`/}
  if ! grep -qF "\"$name\"" lib/options/*options.cpp apps/*/*.cpp; then
    echo "no option sets $quoted (see Option::sets)"
    status=1
  fi
  if ! grep -qF "{\"$name\", " lib/api/words.cpp && [[ $not_in_api != *$quoted* ]]; then
    echo "programs that use the library have no word for $quoted (see lib/api/words.cpp)"
    status=1
  fi
done <<<"$quantities"
exit "$status"
