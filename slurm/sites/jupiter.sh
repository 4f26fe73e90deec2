# shellcheck shell=bash
# JUPITER Booster (JSC), GH200 nodes with InfiniBand. Made from docs/sites/jupiter.md; not run there.
# EDIT: the modules with which the programs were built; `module spider` lists newer stages
module load Stages/2025
module load GCC/13.3.0 CUDA/12 OpenMPI/5.0.5 NCCL/default-CUDA-12 MPI-settings/CUDA
