#!/usr/bin/env bash
# predictions.sh FOLDER-OF-PROGRAMS REPOSITORY: the predictions in docs/ are those that fsdp-plan prints today.
set -euo pipefail
bin=$1
repository=$2
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"

mkdir "$work/docs"
"$repository/tools/update-predictions" "$bin" "$work/docs"
for page in "$work"/docs/*.md; do
  diff "$repository/docs/${page##*/}" "$page" || fail "predictions in docs/${page##*/} are out of date, see above"
done
((failures == 0)) || echo "look at what has changed, and if it is right: tools/update-predictions $bin"
((failures == 0))
