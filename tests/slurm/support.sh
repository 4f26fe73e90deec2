# Sourced by tests that start their own cluster in their own folder. `fsdp_slurm_test NAME REPOSITORY` makes that
# folder, changes to it, and makes sure that the cluster and the folder end with the test.
# shellcheck shell=bash disable=SC2034,SC2317  # The test uses what is set here, and the trap calls finish.

fsdp_slurm_test() {
  work=$(mktemp -d "/tmp/fsdp-$1-test.XXXXXX")
  export FSDP_CLUSTER_STATE=$work/state
  cluster=$work/cluster
  failures=0
  trap finish EXIT
  chmod 755 "$work"
  cp "$2/tests/slurm/cluster" "$cluster"  # Maybe only root can read the repository.
  cd "$work" || exit
}
finish() {
  if [[ $(id -u) == 0 ]]; then "$cluster" down >/dev/null 2>&1 || true; fi
  rm -rf "$work"
}
# cluster_up OPTION...: starts the test's cluster, with home/ as its users' folder. Ends the test if this machine cannot
# have one.
cluster_up() {
  local status=0
  "$cluster" up --work "$work/home" "$@" || status=$?
  [[ $status == 0 ]] || exit "$status"
}
# fsdp_slurm_programs REPOSITORY BIN: copies the programs to where nodes see them, since maybe only root can read BIN.
fsdp_slurm_programs() {
  cp "$1"/slurm/*.sbatch "$1/slurm/job.sh" .
  mkdir bin lib
  cp "$2"/fsdp-{train,tokenize,consolidate,inspect,plan,report} bin
  cp -a "$2"/../lib/libfsdp.so* lib
}
# small_run: writes data and a configuration to home/. An update of the model takes some milliseconds on one or two
# ranks.
small_run() {
  seq 20000 >home/text
  bin/fsdp-tokenize home/text --tokenizer bytes --out home/train.bin
  chmod 644 home/train.bin
  cat >home/small.cfg <<'EOT'
data = train.bin
arch = gpt2
vocab-size = 256
decoder-layers = 2
decoder-embed-dim = 64
decoder-attention-heads = 4
tokens-per-sample = 64
batch-size = 4
total-batch-size = 8
max-update = 1000000
log-interval = 1000
EOT
}
# submit NAME SCRIPT [VARIABLE=VALUE | OPTION]... [-- OPTION OF THE PROGRAM...]: submits a job with a script of slurm/.
# Its output is home/NAME.out. SECONDS makes the script believe that it has run for 100 s, because a job that has to
# stop in its first minute would not be requeued.
submit() {
  local name=$1 script=$2 words=(env SECONDS=100 FSDP_BIN="$work/bin" FSDP_JOB="$work/job.sh" CONFIG=small.cfg)
  shift 2
  while [[ ${1:-} == [A-Z]*=* ]]; do
    words+=("$1")
    shift
  done
  words+=(sbatch --parsable --job-name="$name" --output="$name.out")
  while (($# > 0)) && [[ $1 != -- ]]; do
    words+=("$1")
    shift
  done
  (cd home && at_head "${words[@]}" "../$script" "${@:2}")
}
# submit_training NAME ...: like submit, with checkpoints in home/NAME and metrics in home/NAME.jsonl.
submit_training() {
  local name=$1 words=()
  shift
  while (($# > 0)) && [[ $1 != -- ]]; do
    words+=("$1")
    shift
  done
  submit "$name" train.sbatch "${words[@]}" -- --save-dir "$name" --log-file "$name.jsonl" "${@:2}" >/dev/null
}
# leftovers NODE...: prints the processes of fsdp-train on these nodes, and the files in their shared memory.
leftovers() {
  local node
  for node in "$@"; do
    at_head --on "$node" --as root bash -c 'pgrep -x fsdp-train; ls /dev/shm' | sed "s/^/$node: /"
  done
}
is_quiet() { [[ -z $(leftovers "$@") ]]; }
# updates NAME: prints lines `update loss` from the metrics home/NAME.jsonl, in the order of training.
updates() { sed -nE 's/.*"loss":([^,}]*).*"step":([0-9]+).*"type":"train".*/\2 \1/p' "home/$1.jsonl" 2>/dev/null || true; }
last_update() { updates "$1" | tail -n 1 | cut -d ' ' -f 1; }
has_done() { (($(last_update "$1") + 0 >= $2)); }
has_started() { (($(grep -c '"type":"start"' "home/$1.jsonl" 2>/dev/null) + 0 >= $2)); }
is_over() { [[ -z $(at_head squeue --noheader --name="$1") ]]; }
fail() { # fail TEXT: counts a failure, and shows the output of the jobs
  echo "$1"
  for file in home/*.out; do
    if [[ -e $file ]]; then echo "  --- the end of $file" && tail -n 25 "$file" | sed 's/^/  | /'; fi
  done
  failures=$((failures + 1))
}
says() { grep -qE -- "$2" "home/$1.out" || fail "$1 does not say: $2"; } # says JOB PATTERN
at_head() { "$cluster" exec "$@"; }
step() { printf '%3d s  %s\n' "$SECONDS" "$1"; }
wait_for() { # wait_for SECONDS WHAT COMMAND...: ends the test if COMMAND does not succeed in time
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    if ((SECONDS >= end)); then
      fail "waited in vain: $what"
      exit 1
    fi
    sleep 0.2
  done
}
