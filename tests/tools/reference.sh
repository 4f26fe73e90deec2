#!/usr/bin/env bash
# reference.sh REPOSITORY: every declaration of the public headers has a comment, and tools/reference finds those that have none. Exit status 77:
# there is no doxygen.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"
reference=$1/tools/reference
if ! command -v doxygen >/dev/null; then
  echo "doxygen is not installed"
  exit 77
fi
"$reference" "$work/pages" >"$work/output" 2>&1 || fail "the public headers are not documented"
for page in classfsdp_1_1FullyShardedDataParallel classfsdp_1_1Job classfsdp_1_1TextGenerator classfsdp_1_1Layer structfsdp_1_1FsdpOptions \
  structfsdp_1_1CollectiveError structfsdp_1_1Lora namespacefsdp_1_1ops structfsdp_1_1GradientCheck index files; do
  [[ -e $work/pages/html/$page.html ]] || fail "there is no page $page"
done
# A comment reaches the page: above a function, after a field, of a field's second line, and of a function that a comment above names, too.
has() { grep -qF -- "$2" "$work/pages/html/$1.html" || fail "$1 does not have: $2"; }
has classfsdp_1_1FullyShardedDataParallel "Runs one update: forward and backward of all micro-batches"
has structfsdp_1_1FsdpOptions "positions per sequence"
has structfsdp_1_1FsdpOptions "one unit"
has classfsdp_1_1Loss "are as in"
has layer_8hpp "R = B*T rows"
# The pages need no network.
! grep -rE '(src="|url\(|@import |<link [^>]*href=")["'\'']?(https?:)?//' "$work/pages/html" --include='*.html' --include='*.css' >"$work/output" ||
  fail "pages need a network"

# misses FILE TEXT_BEFORE LINE NAME: with this line after TEXT_BEFORE, NAME is reported at its line.
mkdir "$work/lib"
(cd "$1/lib" && find . -name '*.hpp' -exec cp --parents -t "$work/lib" {} +)
misses() {
  local file=$work/lib/$1 number
  cp "$file" "$work/original"
  awk -v before="$2" -v line="$3" '{ print } index($0, before) { print ""; print line }' "$work/original" >"$file"
  number=$(grep -nxF -- "$3" "$file" | cut -d: -f1) || fail "$1 has no line with $2"
  local status=0
  FSDP_REFERENCE_OF=$work/lib "$reference" "$work/planted" >"$work/output" 2>&1 || status=$?
  ((status == 1)) || fail "status $status with $3"
  grep -qE "/$1:$number: .*$4.* is not documented" "$work/output" || fail "does not report $1:$number, $4"
  cp "$work/original" "$file"
}
misses api/job.hpp "int size() const;" "  int planted(int number) const;" "planted"
misses layers/layers.hpp "LayerPtr rms_norm(" "LayerPtr planted(std::size_t width);" "planted"
misses api/fully_sharded.hpp "std::size_t sequence_length = 1;" "  std::size_t planted = 0, other = 1;" "other"
exit $((failures > 0))
