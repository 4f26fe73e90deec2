#!/bin/bash
# flux: --job-name=fsdp-train
# flux: --nodes=2
# flux: --exclusive
# flux: --time-limit=2h
# flux: --output=fsdp-train-{{id}}.out

# Trains on the CPUs of several nodes under Flux. Submit this script from the top folder of the checkout, or set FSDP_BIN, CONFIG and
# FSDP_JOB:
#     flux batch flux/train.flux                         (run tools/quickstart first: it makes the data)
#     flux batch flux/train.flux --max-update 2000       (further options of fsdp-train take precedence over the configuration)
# EDIT the lines above; --time-limit must be well above STOP_BEFORE below. On GPUs, give OPTIONS=(--device cuda --bf16), a rank for each GPU,
# and LAUNCH_OPTIONS=(--gpus-per-task=1).
# When its time is nearly over, the job saves and submits itself again, as it was submitted. The same command also continues a run that was
# stopped. docs/schedulers.md has the details.
set -euo pipefail

# --- EDIT: what to run -------------------------------------------------------------------------------------------------
FSDP_BIN=${FSDP_BIN:-$PWD/build/release/bin}
CONFIG=${CONFIG:-inputs/quickstart.cfg}
RANKS_PER_NODE=${RANKS_PER_NODE:-2}   # inputs/quickstart.cfg is for 4 ranks in all
CORES_PER_RANK=${CORES_PER_RANK:-8}   # cores of a node / RANKS_PER_NODE; each rank runs as many threads
OPTIONS=()
LAUNCH_OPTIONS=()                     # further options of flux run, such as -o pmi=pmix
STOP_BEFORE=${STOP_BEFORE:-300}       # seconds before the end of the job at which it saves, stops and is started again
REQUEUE=${REQUEUE:-yes}               # no: when its time is nearly over, the job saves and ends
MAX_RESTARTS=${MAX_RESTARTS:-100}     # how often the job may be started again
SITE=${SITE:-}                        # a file that prepares the environment of your site, for example slurm/sites/modules.sh
FSDP_JOB=${FSDP_JOB:-slurm/job.sh}    # the common part; if you copy the script, copy this file and other-schedulers.sh, too

# --- the rest -----------------------------------------------------------------------------------------------------------
if [[ $FSDP_JOB == slurm/job.sh && ! -e $FSDP_JOB ]] && program=$(type -P fsdp-train); then   # fsdp is installed
  FSDP_JOB=${program%/*/*}/share/fsdp/slurm/job.sh
fi
if [[ ! -f $FSDP_JOB || ! -r $FSDP_JOB ]]; then
  echo "$FSDP_JOB is not there (this is $PWD): submit from the top folder of a checkout, with fsdp-train in PATH, or give FSDP_JOB" >&2
  exit 2
fi
# shellcheck source=slurm/job.sh
. "$(realpath "$FSDP_JOB")"
require_file CONFIG
train --config "$CONFIG" "${OPTIONS[@]}" "$@"
