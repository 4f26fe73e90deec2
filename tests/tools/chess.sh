#!/usr/bin/env bash
# chess.sh REPOSITORY: inputs/chess/games.py plays the same games again, and knows which moves are legal; exit status 77: no chess engine, or
# no openings.
set -euo pipefail
games=$1/inputs/chess/games.py
if [[ ! -x $(PATH=$PATH:/usr/games command -v stockfish) || ! -e /usr/share/scid/data/scid.eco ]]; then
  echo "stockfish or scid-data is not installed"
  exit 77
fi
export PYTHONDONTWRITEBYTECODE=1
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"
cd "$work"

for folder in first again; do python3 "$games" make $folder --games 3 --valid-games 2 --nodes 100 --max-moves 40; done
cmp first/train.txt again/train.txt || fail "the games for training are others"
cmp first/valid.txt again/valid.txt || fail "the games that are held out are others"
[[ $(wc -l <first/train.txt) == 3 && $(wc -l <first/valid.txt) == 2 ]] || fail "there are more games, or fewer"
# Whole games, a word for each move of 4 or 5 signs.
if grep -vE '^([a-h][1-8][a-h][1-8][qrbn]? ?){8,40}$' first/*.txt; then fail "that is no game"; fi

python3 "$games" prompts first/valid.txt --after 2,7 >beginnings
[[ $(wc -l <beginnings) == 4 && $(head -n 2 beginnings | tail -n 1 | wc -w) == 7 ]] || fail "these are no beginnings: $(<beginnings)"
cat >generated <<'LINES'
{"prompt": "e2e4 e7e5", "text": " g1f3 b8c6"}
{"prompt": "e2e4 e7e5", "text": " e1e3"}
{"prompt": "e2e4 e7e5", "text": "q g1f3"}
{"prompt": "e2e4 e7e5", "text": "\ng1f3"}
{"prompt": "e2e4 e7e5 g1f3 b8c6 f1c4 g8f6", "text": " e1g1"}
{"prompt": "f2f3 e7e5 g2g4 d8h4", "text": " a2a3"}
LINES
python3 "$games" legal generated >output
grep -q "^after   2 moves     1 of    4 are legal" output || fail "says: $(<output)"
grep -q "^legal 2 of 6, 33.3 %" output || fail "says: $(<output)"

# refused STATUS WHAT ARGUMENTS...: with one message, and none of Python's.
refused() {
  local status=0
  python3 "$games" "${@:3}" >output 2>&1 || status=$?
  [[ $status == "$1" ]] || fail "status $status instead of $1 of: ${*:3}"
  says "$2"
  ! grep -q Traceback output || fail "Python says where it was"
}
refused 1 "games.py: none cannot be read or written (No such file or directory)" legal none
refused 1 "games.py: none cannot be read or written (No such file or directory)" prompts none
echo "e2e4 e7e5" >no-json
refused 1 "games.py: line 1 of no-json is not output of fsdp-generate" legal no-json
echo '{"text": " e2e4"}' >no-prompt
refused 1 "games.py: line 1 of no-prompt is not output of fsdp-generate" legal no-prompt
refused 1 "cannot be read or written (Not a directory)" make no-json/games --games 1 --valid-games 1
refused 1 "games are too many" make many --games 99999
refused 2 "argument --games: '-5' is not a whole number, 1 or more" make none --games -5
exit $((failures > 0))
