# shellcheck shell=bash
# Alps (CSCS), GH200 nodes, in the uenv prgenv-gnu. Made from docs/sites/alps.md; not run there.
export NCCL_NET="AWS Libfabric" NCCL_NET_GDR_LEVEL=PHB NCCL_CROSS_NIC=1 NCCL_PROTO=^LL128
export FI_CXI_DEFAULT_CQ_SIZE=131072 FI_CXI_DEFAULT_TX_SIZE=16384 FI_CXI_DISABLE_HOST_REGISTER=1
export FI_CXI_RX_MATCH_MODE=software FI_MR_CACHE_MONITOR=userfaultfd
# If NCCL hangs: export FI_CXI_RDZV_GET_MIN=0 FI_CXI_RDZV_THRESHOLD=0 FI_CXI_RDZV_EAGER_SIZE=0
SRUN_OPTIONS+=(--mpi=cray_shasta)   # the uenv's MPI is Cray MPICH; with prgenv-gnu-openmpi leave this line out
