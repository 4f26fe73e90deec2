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
exit $((failures > 0))
