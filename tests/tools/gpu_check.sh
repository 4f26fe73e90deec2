#!/usr/bin/env bash
# gpu_check.sh BUILD [LIBRARY] REPOSITORY: tools/gpu-check where there is no GPU, or, with the library of the double of CUDA, on that.
set -euo pipefail
build=$1 double='' repository=${!#}
(($# < 3)) || double=$2
gpu_check=$repository/tools/gpu-check
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"

mkdir "$work/bin"
# run EXPECTED_STATUS ARGUMENTS...
run() {
  local expected=$1 status=0
  shift
  rm -rf "$work/report"
  PATH=$work/bin:$PATH "$gpu_check" --report "$work/report" "$@" >"$work/output" 2>&1 || status=$?
  [[ $status == "$expected" ]] || fail "status $status instead of $expected with: $*"
}
says() { grep -qE -- "$1" "$work/output" || fail "does not say: $1"; }
in_items() { jq -r "$1" "$work/report/items.jsonl"; } # in_items FILTER
on_page() { grep -qE -- "$1" "$work/report/report.txt" || fail "the page does not say: $1"; }
nvidia_smi() { printf '#!/bin/bash\n%s\n' "$1" >"$work/bin/nvidia-smi" && chmod +x "$work/bin/nvidia-smi"; }
nvidia_smi 'exit 9'
unset FSDP_CUDA_LIBRARY

if [[ -z $double ]]; then
  export CUDA_VISIBLE_DEVICES=''
  run 77 --build "$build"
  items=$("$gpu_check" --list | wc -l)
  ((items > 60)) || fail "$items items"
  [[ $(in_items 'select(.status == "not run" and .reason == "no GPU can be used here") | .item' | wc -l) == "$items" ]] || fail "not all items are not run"
  says "0 passed, 0 failed, $items not run"
  # The prediction stands alone, and the measurement is empty.
  [[ $(in_items 'select(.item == "step.124M") | .figures == null and ."fsdp-plan".ms > 0 and ."fsdp-plan".bytes > 1e9') == true ]] || fail "no prediction"
  on_page '^  step.124M {20,}[0-9.]+ '
  on_page '^gpu: none: no driver'
  for question in 'Does it work' 'Is it right' 'How fast is it' 'Why not faster' 'Is memory as planned'; do on_page "^[1-5]\. $question\? 0 "; done

  # A GPU that is there, and of no use.
  # shellcheck disable=SC2016
  nvidia_smi '[[ $1 == -L ]] && echo "GPU 0: something"'
  run 1 --build "$build"
  nvidia_smi 'exit 9'

  # The tables of docs/gpu.md are those of the script, and its section says of every item whether a GPU has shown it.
  docs=$(sed -n '/^## What was checked/,$p' "$repository/docs/gpu.md") first=$(sed -n '/^### The first machine/,/^### /p' "$repository/docs/gpu.md")
  # shellcheck disable=SC2016
  table() { sed -nE "s/^\\| ([^|]*[^|:-]) \\| (.*[^:-]) \\|\$/\1|\2/p" <<<"$1" | grep '^`' | sed -E 's/^`([^`]*)`/\1/'; }
  items_of() { eval "$(sed -n "/^$1_items() {/,/^}/p" "$gpu_check")" && "$1_items"; }
  diff <(table "$first") <(items_of first) || fail "docs/gpu.md has another table for --first (it is above, with <)"
  diff <(table "$(sed -n '/^### What a GPU must show/,/^### /p' <<<"$docs")") <(items_of pending) || fail "docs/gpu.md has another table for --pending"
  shown=$(sed -nE 's/^\| ([0-9-]{10}) \| ([^|]*) \| (.*) \|$/\1|\2|\3/p' <<<"$docs" | tr -d '`,')
  diff <(echo "$shown") <(items_of shown) || fail "docs/gpu.md has another table of what a GPU has shown"
  "$gpu_check" --list | sort >"$work/items"
  # shellcheck disable=SC2016
  {
    items_of pending | cut -d '|' -f 1
    cut -d '|' -f 3 <<<"$shown" | tr ' ' '\n'
    sed -n '/^Not run/,/^$/p' <<<"$docs" | grep -oE '`[^`]*`' | tr -d '`'
  } >"$work/named"
  while read -r name; do
    # shellcheck disable=SC2053 # names in docs/gpu.md are patterns
    of_name=$(while read -r item; do [[ $item != $name ]] || echo "$item"; done <"$work/items")
    [[ -n $of_name ]] || fail "$name is no item"
    echo "$of_name"
  done <"$work/named" | sort | uniq -c >"$work/counted"
  diff "$work/items" <(awk '$1 == 1 { print $2 }' "$work/counted") || fail "docs/gpu.md does not name each item once"
  items_of first | cut -d '|' -f 1 | grep -vxFf "$work/items" && fail "--first has what is no item"
  diff <("$gpu_check" --list --pending) <(items_of pending | cut -d '|' -f 1) || fail "--pending has another order"
  # Every option of the list is one of our programs, or of the other programs that items start.
  others='run_test tool target-processes error-exitcode trace stats force-overwrite output standalone nproc-per-node recompute updates'
  while read -r option; do
    awk -F ' [|] ' 'NF >= 3' "$repository/docs/options.md" | grep -E -- "\`${option}[ \`=]" >/dev/null || grep -qxF -- "${option#--}" <(tr ' ' '\n' <<<"$others") || fail "$option is no option"
  done < <(sed -n '/^# --- The list/,/^noting=false$/p' "$gpu_check" | grep -v '^ *#' | grep -oE -- '--[a-z][a-z0-9_-]+' | sort -u)
  run 77 --build "$build" --pending
  on_page '^  step.1.3B.cudnn +not run +good: 50 % or more$'
  on_page 'predicted by fsdp-plan for h200:'

  run 2 --only
  run 2 --only '['
  run 2 --only '^no_such_item$'
  run 2 --unknown
  says "unknown argument --unknown"
  run 0 --help

  exit $((failures > 0))
fi

# The double has two GPUs. Its nvidia-smi reports a clock that the power cap slows.
export FSDP_CUDA_LIBRARY=$double FSDP_CUDA_DOUBLE_DEVICES=2
# shellcheck disable=SC2016
nvidia_smi 'case $* in
  *clocks_event*) exit 2 ;; # the name is unknown to drivers before 535
  *clocks.sm,power*) printf "%s\n" "0, 1980, 120.50, 900, 0, 0x0000000000000001" "0, 1410, 698.10, 1200, 97, 0x0000000000000004" ;;
  *memory.used*) echo 100 ;;
  *topo*) echo "GPU0 NV18" ;;
esac'
run 0 --build "$build" --only '^(out_of_memory|killed_rank|smoke|nccl.info|same_bits.tiny|trace.tiny|topology|golden.nccl|nodes.smoke)'
for item in out_of_memory killed_rank smoke.step nccl.info same_bits.tiny trace.tiny topology; do says "^$item +passed"; done
says '^golden.nccl +not run .*needs 3 GPUs, and there are 2'
says '^nodes.smoke +not run .*needs a Slurm job of several nodes'
says '^golden +not run +left out by --only'
[[ $(in_items 'select(.item == "smoke.gemm") | .figures.device | startswith("GPU made of threads")') == true ]] || fail "no figures"
on_page '^gpus: 2$'
on_page '^1\. Does it work\? [0-9]+ passed, 0 failed'
on_page '^  same_bits.tiny +\{"updates":4\}$'
on_page '^  smoke.step +[0-9.]+ '
on_page '^  trace.tiny +exposed communication -?[0-9]+ ms; SM clock 1410 MHz \(least 1410\), at most 698 W, slowed by power cap in 100 %'
on_page '^ +[0-9.]+ ms +[0-9.]+ %  compute  head and loss$'
on_page '^5\. Is memory as planned\? 1 updates measured, 0 with more$'
on_page '^  smoke.step +[0-9]{4} +1100 +[0-9]+$'
grep -q NV18 "$work/report/topology.log" || fail "no topology"

# Two nodes of a Slurm job, with a GPU each. This srun starts both ranks here.
cat >"$work/bin/srun" <<'END'
#!/bin/bash
[[ $* != --mpi=list ]] || { echo "MPI plugin types are... pmix" && exit; }
[[ $1 == --mpi=pmix ]] || exit 9
while [[ $1 == --* ]]; do [[ $1 != --ntasks=* ]] || np=${1#*=}; shift; done
exec mpirun --allow-run-as-root --oversubscribe --bind-to none -np "$np" "$@"
END
chmod +x "$work/bin/srun"
SLURM_JOB_NUM_NODES=2 FSDP_CUDA_DOUBLE_DEVICES=1 run 0 --build "$build" --only '^nodes.(smoke|doctor)'
says '^nodes.smoke +passed'
[[ $(in_items 'select(.item == "nodes.smoke") | .figures.ranks') == 2 ]] || fail "not 2 ranks"
[[ $(SLURM_PROCID=1 "$gpu_check" --report "$work/none" && ls "$work") != *none* ]] || fail "a second task does not end at once"

# NCCL with two ranks on one GPU, in the order of --pending, whose page says what good looks like.
export FSDP_CUDA_DOUBLE_DEVICES=1
on_one='^(nccl.shared.(golden|memory_2)|nccl.nodes.same_bits|smoke.step|same_bits.tiny)$'
FSDP_CUDA_DOUBLE_NCCL_VERSION=23007 run 0 --build "$build" --pending --only "$on_one"
for item in golden memory_2; do says "^nccl.shared.$item +passed"; done
says '^nccl.nodes.same_bits +passed'
[[ $(grep -oE '^[^ ]+ +passed' "$work/output" | head -n 3 | xargs) == "smoke.step passed same_bits.tiny passed nccl.shared.golden passed" ]] || fail "another order"
on_page '^  smoke.step +passed +[0-9.]+ ms, [0-9]+ tokens/s +good: passes$'
on_page '^  nccl.shared.memory_2 +[0-9]{4} +1100 +[0-9]+$' # of both ranks
run 0 --build "$build" --pending --only '^(nccl.shared.abort|smoke.step)$'
says '^nccl.shared.abort +not run +needs NCCL 2.30 or newer, and there is 2.28.9$'
export FSDP_CUDA_DOUBLE_DEVICES=2

# More memory than planned; what does not fit is not run; what fails, fails, and does not stop the rest.
nvidia_smi '[[ $* != *clocks.sm,power* ]] || echo "0, 1980, 120.50, 90000, 97, 0x0000000000000000"'
run 0 --build "$build" --only '^smoke.step$'
on_page '^5\. Is memory as planned\? NO: 1 updates measured, 1 with more$'
FSDP_CUDA_DOUBLE_MEMORY=20000000 run 0 --build "$build" --only '^smoke.step$'
says "^smoke.step +not run .*memory is too small"
mkdir -p "$work/build/tests"
ln -s "$build/bin" "$work/build/bin"
printf '#!/bin/bash\necho "two and two are five"; exit 3\n' >"$work/build/tests/test_kernels_gpu"
printf '#!/bin/bash\necho "skipped: not today"; exit 77\n' >"$work/build/tests/test_run_golden_on_gpu"
chmod +x "$work"/build/tests/*
run 1 --build "$work/build" --only '^(kernels.all|golden)$'
says "^kernels.all +failed .*exit status 3; see kernels.all.log"
says "^golden +not run .*skipped: not today"
on_page '^2\. Is it right\? NO: 0 passed, 1 failed'
on_page '^  FAILED kernels.all: exit status 3'
grep -q "two and two are five" "$work/report/kernels.all.log" || fail "the log lacks the output"
exit $((failures > 0))
