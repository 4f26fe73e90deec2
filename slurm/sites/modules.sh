# shellcheck shell=bash
# For sites with environment modules: SITE=slurm/sites/modules.sh sbatch slurm/train.sbatch
# EDIT: the modules with which the programs were built (the output of `module list` then). The MPI must be the same.
if ! type module >/dev/null 2>&1; then   # most sites define it only for login shells, and a job's shell is not one
  for file in /etc/profile.d/{lmod,modules,z00_lmod}.sh; do
    # shellcheck disable=SC1090
    if [[ -r $file ]]; then . "$file"; fi
  done
fi
module purge
module load gcc openmpi hdf5          # and for GPUs: cuda nccl; and fsdp, if it is installed as a module (docs/install.md)
