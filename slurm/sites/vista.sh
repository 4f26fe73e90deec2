# shellcheck shell=bash
# Vista (TACC), one GH200 per node, with InfiniBand. Made from docs/sites/vista.md; not run there.
# EDIT: the modules with which the programs were built
module load gcc cuda openmpi
