# shellcheck shell=bash
# Roihu (CSC), GH200 nodes with InfiniBand. Made from docs/sites/roihu.md; not run there.
# EDIT: the modules with which the programs were built
module load gcc/14.3.0 cuda/12.9.1 openmpi/5.0.10 openblas/0.3.30 nccl
