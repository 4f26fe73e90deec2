# shellcheck shell=bash
# Copies the archive of docs/install.md to a folder of each node, and starts the programs there:
#     ARCHIVE=$PWD/fsdp-0.1.0-linux-x86_64.tar.zst SITE=slurm/sites/sbcast.sh sbatch slurm/train.sbatch
# EDIT: the archive, and a folder that each node has for itself. The nodes need tar and zstd.
ARCHIVE=${ARCHIVE:-fsdp-0.1.0-linux-x86_64.tar.zst}
NODE_FOLDER=${NODE_FOLDER:-/tmp}/fsdp-${SLURM_JOB_ID:-none}
on_each_node=(srun --nodes="${SLURM_JOB_NUM_NODES:-1}" --ntasks="${SLURM_JOB_NUM_NODES:-1}" --ntasks-per-node=1 --cpus-per-task=1)
"${on_each_node[@]}" mkdir -p "$NODE_FOLDER" && sbcast --force "$ARCHIVE" "$NODE_FOLDER/archive" &&
  "${on_each_node[@]}" tar -C "$NODE_FOLDER" -xf "$NODE_FOLDER/archive" || return 1
trap 'timeout 60 "${on_each_node[@]}" rm -rf "$NODE_FOLDER" || true' EXIT
export FSDP_BIN
FSDP_BIN=$(echo "$NODE_FOLDER"/fsdp-*/bin)
