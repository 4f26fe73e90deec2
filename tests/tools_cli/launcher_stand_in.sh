#!/bin/sh
# Stands in for a launcher of fsdp-doctor --transports: answers as fsdp-bench collectives, fails, or hangs, depending on the transport.
if [ -n "${STAND_IN_FAILS:-}" ]; then echo "no route to host" >&2; exit 1; fi
case "${OMPI_MCA_pml:-} ${OMPI_MCA_btl:-}" in
"ob1 self,tcp") exec sleep 60 ;;
"ob1 "*) ms=10 ;;
"ucx "*) echo "PML ucx cannot be selected" >&2; exit 1 ;;
"cm "*) echo "no object"; exit 0 ;;
*) ms=40 ;;
esac
echo "{\"comm\":\"MPI, $1 ranks\",\"update_ms\":$ms}"
