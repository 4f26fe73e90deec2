# shellcheck shell=bash
# LUMI-C, CPU nodes. Made from docs/sites/lumi-c.md; not run there.
# EDIT: the modules with which the programs were built
module load LUMI/24.03 partition/C PrgEnv-gnu cray-hdf5
SRUN_OPTIONS+=(--mpi=cray_shasta --mem=0)   # Cray MPICH; all memory of the node
