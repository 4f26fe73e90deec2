# shellcheck shell=bash
# Perlmutter (NERSC), A100 nodes. Made from docs/sites/perlmutter.md; not run there.
# EDIT: the modules with which the programs were built
module load PrgEnv-gnu cudatoolkit nccl
export NCCL_NET="AWS Libfabric" NCCL_NET_GDR_LEVEL=PHB NCCL_CROSS_NIC=1 NCCL_SOCKET_IFNAME=hsn
export FI_CXI_DISABLE_HOST_REGISTER=1 FI_MR_CACHE_MONITOR=userfaultfd
SRUN_OPTIONS+=(--mpi=cray_shasta)   # Cray MPICH
