# shellcheck shell=bash
# A centre with modules: SITE=slurm/sites/modules.sh sbatch slurm/train.sbatch
# EDIT: the modules with which the programs were built, above all the same MPI: what `module list` showed then.
if ! type module >/dev/null 2>&1; then   # centres mostly define it for login shells, and a job's shell is none
  for file in /etc/profile.d/{lmod,modules,z00_lmod}.sh; do
    # shellcheck disable=SC1090
    if [[ -r $file ]]; then . "$file"; fi
  done
fi
module purge
module load gcc openmpi hdf5          # and for GPUs: cuda nccl
