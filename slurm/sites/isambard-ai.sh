# shellcheck shell=bash
# Isambard-AI (BriCS), GH200 nodes. Made from docs/sites/isambard-ai.md; not run there.
# EDIT: the modules with which the programs were built
module load PrgEnv-gnu cudatoolkit brics/nccl   # brics/nccl sets the variables of NCCL and libfabric
SRUN_OPTIONS+=(--mpi=cray_shasta)               # PrgEnv-gnu has Cray MPICH; the site forbids mpirun
