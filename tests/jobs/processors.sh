#!/usr/bin/env bash
# processors.sh REPOSITORY BIN NATIVE_BIN LAUNCHER EMULATOR: a job of 2 ranks on the emulated processor, with programs from BIN, and on this
# machine's, with programs from NATIVE_BIN (empty: on the emulated one alone). LAUNCHER and EMULATOR are words separated by spaces.
# Each trains, saves and resumes with the same bits. Each resumes the other's checkpoint, inspects and consolidates it.
set -euo pipefail
repository=$1 bin=$2 native_bin=$3
read -ra launcher <<<"$4"
read -ra emulator <<<"$5"
work=$(mktemp -d --tmpdir fsdp-processors.XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
golden=$repository/tests/golden/runs/gpt2-tied
failures=0
fail() { echo "FAILED: $1" >&2 && failures=$((failures + 1)); }

# program WHO NAME ARGUMENT...: WHO is "emulated" or "native".
program() {
  local who=$1 name=$2
  shift 2
  if [[ $who == emulated ]]; then "${emulator[@]}" "$bin/$name" "$@"; else "$native_bin/$name" "$@"; fi
}
# start WHO FOLDER OPTION...: fsdp-train on 2 ranks.
start() {
  local who=$1 folder=$2 command=("$native_bin/fsdp-train")
  shift 2
  if [[ $who == emulated ]]; then command=("${emulator[@]}" "$bin/fsdp-train"); fi
  mkdir -p "$folder"
  if ! "${launcher[@]}" -np 2 "${command[@]}" --data "$golden/train.bin" --tokens-per-sample 32 --batch-size 3 --total-batch-size 12 \
    --model "$golden" --log-file "$folder/metrics.jsonl" --save-dir "$folder/saves" "$@" >"$folder/log.txt" 2>&1; then
    cat "$folder/log.txt" >&2
    fail "training in $folder"
  fi
}
# train WHO FOLDER: the 20 updates of tests/golden/runs, saved after each ten; continues from the checkpoint in FOLDER, if there is one.
train() {
  start "$1" "$2" --lr 0.01 --end-learning-rate 0.001 --lr-scheduler polynomial_decay --power 1 --warmup-updates 5 --max-update 20 \
    --adam-betas '(0.9,0.95)' --weight-decay 0.1 --clip-norm 1 --save-interval-updates 10
}
losses() { jq -r 'select(.type == "train") | "\(.step) \(.loss)"' "$1/metrics.jsonl"; }
# continue_from FOLDER WHO NEW: WHO continues the run in FOLDER from update 10, in NEW.
continue_from() {
  mkdir -p "$3/saves"
  cp -r "$1/saves/step-00000010" "$3/saves/"
  train "$2" "$3"
}
# compare NAME A B LIMIT: the largest difference of the losses of B's updates from those of A.
compare() {
  local difference
  difference=$(join <(losses "$2" | sort) <(losses "$3" | sort) | awk '{d = $2 - $3; if (d < 0) d = -d; if (d > most) most = d} END {printf "%d %g\n", NR, most}')
  echo "$1: the losses of ${difference% *} updates differ by up to ${difference#* }"
  awk -v d="${difference#* }" -v n="${difference% *}" -v limit="$4" 'BEGIN {exit !(n >= 10 && d <= limit)}' || fail "$1"
}

train emulated a
[[ $(losses a | wc -l) == 20 ]] || fail "there are not 20 updates"
mkdir p && jq -c '.steps[] | {type: "train", step: .update, loss: .loss}' "$golden/run.json" >p/metrics.jsonl
compare "emulated, and PyTorch" p a 5e-6
continue_from a emulated a-a
compare "emulated, resumed" a a-a 0

if [[ -n $native_bin ]]; then
  train native n
  compare "emulated, and native" n a 5e-6
  continue_from a native a-n
  continue_from n emulated n-a
  compare "native from an emulated checkpoint" n a-n 5e-6
  compare "emulated from a native checkpoint" n n-a 5e-6
  for who in emulated native; do
    for of in a n; do
      program $who fsdp-consolidate "$of/saves/step-00000020" --format safetensors --out "$of-by-$who" >log.txt 2>&1 || { cat log.txt >&2; fail "$who fsdp-consolidate of $of"; }
      program $who fsdp-inspect "$of/saves/step-00000020" >"$of-seen-by-$who.txt" 2>&1 || fail "$who fsdp-inspect of $of"
    done
  done
  for of in a n; do
    cmp "$of-by-emulated/model.safetensors" "$of-by-native/model.safetensors" || fail "consolidation of $of"
    cmp "$of-seen-by-emulated.txt" "$of-seen-by-native.txt" || fail "inspection of $of"
  done
  for who in emulated native; do  # an update without a step: the initial weights
    start $who "first-$who" --init random --lr 0 --weight-decay 0 --max-update 1
  done
  program native fsdp-inspect first-emulated/saves/step-00000001 first-native/saves/step-00000001 >first.txt || fail "fsdp-inspect of initial weights"
  grep 'are the same, bit for bit' first.txt || fail "initial weights: $(cat first.txt)"
fi
exit $((failures > 0))
