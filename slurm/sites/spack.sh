# shellcheck shell=bash
# For libraries from Spack: SITE=slurm/sites/spack.sh sbatch slurm/train.sbatch
# EDIT: where Spack is, and the environment in which the programs were built.
# shellcheck disable=SC1091
. "${SPACK_ROOT:-$HOME/spack}/share/spack/setup-env.sh"
spack env activate "${SPACK_ENVIRONMENT:-fsdp}"
