#!/usr/bin/env bash
# api_options.sh REPOSITORY: docs/api-options.md, docs/layers.md or docs/api.md has a row for each option of the API, and no other rows.
set -euo pipefail
cd "$1"
# options_of HEADER STRUCT: prints the sorted names of the struct's fields. Lines with functions are left out.
options_of() {
  sed -n "/^struct $2 {/,/^};/p" "$1" | sed -e 's|//.*||' -e '1d;$d' -e '/(/d' | tr '\n' ' ' | tr ';' '\n' |
    sed -E -e 's/^ *(std::[a-z0-9_:]+(<.*>)?|int|bool|double|float|BlockStyle) //' -e 's/ = ("[^"]*"|\{\}|[^,]*)//g' -e 's/[, ]+/\n/g' | sed '/^$/d' | sort
}
# rows_of STRUCT: prints the names in the first column of its table.
rows_of() {
  sed -sn "/^| .$1::/,/^$/p" docs/api-options.md docs/layers.md docs/api.md | sed '1,2d' | cut -d'|' -f2 | grep -oE '[a-z][a-z0-9_]+' | sort
}
status=0
for pair in lib/api/fully_sharded.hpp:FsdpOptions lib/nn/lora.hpp:Lora lib/api/job.hpp:JobOptions \
  lib/layers/tape.hpp:RecordedLossOptions lib/layers/attention.hpp:{AttentionOptions,TransformerBlockOptions} \
  lib/api/generator.hpp:{TextGeneratorOptions,GenerationConfig} lib/api/checkpoint_options.hpp:CheckpointOptions lib/api/weights.hpp:LoadOptions \
  lib/api/data.hpp:TokenDataOptions lib/api/metrics.hpp:MetricsOptions; do
  options=$(options_of "${pair%:*}" "${pair#*:}")
  [[ $(wc -l <<<"$options") -ge 3 ]] || { echo "${pair#*:} was not found (this test looks in the wrong place)" && exit 1; }
  if ! diff <(echo "$options") <(rows_of "${pair#*:}"); then
    echo "the page says of ${pair#*:} what is marked with >, and the header has what is marked with <"
    status=1
  fi
done
exit "$status"
