# shellcheck shell=bash
# Frontier (OLCF), only the CPUs of its nodes. Made from docs/sites/frontier-cpu.md; not run there.
# EDIT: the modules with which the programs were built
module load PrgEnv-gnu cray-hdf5
SRUN_OPTIONS+=(--mpi=cray_shasta --threads-per-core=1)   # Cray MPICH
