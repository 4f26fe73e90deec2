#!/usr/bin/env bash
# gpu_check_curve.sh BUILD REPOSITORY: the item of tools/gpu-check that compares losses with PyTorch's, on CPUs, with GPT-2 of one layer. Exit
# status 77: there is no PyTorch (tools/install --tests installs it).
set -euo pipefail
build=$1 repository=$2
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"
export PATH=$repository/build/python/bin:$PATH CUDA_VISIBLE_DEVICES='' OMP_NUM_THREADS=1
python3 -c 'import torch' 2>/dev/null || { echo "skipped: no PyTorch" && exit 77; }
eval "$(sed -n '/^loss_curve() {/,/^}/p' "$repository/tools/gpu-check")"

# curve BOUND LEARNING_RATE: PyTorch's learning rate is 3e-4.
curve() {
  loss_curve "$work/curve" "$1" 2 "$repository/tools/gpu-check-torch.py" gpt2 1 16 --layers 1 --precision fp32 --updates 4 -- \
    mpirun --allow-run-as-root --oversubscribe --bind-to none -np 2 "$build/bin/fsdp-train" --device cpu --batch-size 1 --tokens-per-sample 16 \
    --max-update 4 --optimizer adamw --lr "$2" --lr-scheduler fixed --weight-decay 0 --clip-norm 1 >"$work/output" 2>&1
}
curve 0.0005 3e-4 || fail "the losses are not PyTorch's"
[[ $(tail -n 1 "$work/output") == '{"updates":4,'*'"bound":0.0005}' ]] || fail "no figures"
! curve 0.0005 3.1e-4 || fail "another learning rate is not noticed"
exit $((failures > 0))
