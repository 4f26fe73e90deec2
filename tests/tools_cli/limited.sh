#!/usr/bin/env bash
# limited.sh COMMAND...: runs COMMAND with files, and therefore shared memory, limited to 64 KiB.
trap '' XFSZ
ulimit -f 64
exec "$@"
