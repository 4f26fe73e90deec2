# shellcheck shell=bash
# For libraries in a folder of your own, and programs installed with `cmake --install build/release --prefix $PREFIX`:
#     SITE=slurm/sites/prefix.sh sbatch slurm/train.sbatch
# EDIT: the folder, which all nodes must see.
PREFIX=${PREFIX:-$HOME/.local}
export PATH=$PREFIX/bin:$PATH
export LD_LIBRARY_PATH=$PREFIX/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export FSDP_BIN=$PREFIX/bin
