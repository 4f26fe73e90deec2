# Sourced by tests that start a cluster of their own, in a folder of their own: `fsdp_slurm_test NAME REPOSITORY` makes that folder, goes
# there, and sees to it that cluster and folder end with the test.
# shellcheck shell=bash disable=SC2034,SC2317  # The test uses what is set here, and the trap calls finish.

fsdp_slurm_test() {
  work=$(mktemp -d "/tmp/fsdp-$1-test.XXXXXX")
  export FSDP_CLUSTER_STATE=$work/state
  cluster=$work/cluster
  failures=0
  trap finish EXIT
  chmod 755 "$work"
  cp "$2/tests/slurm/cluster" "$cluster"  # The repository may lie where other users than root cannot look.
  cd "$work" || exit
}
finish() {
  if [[ $(id -u) == 0 ]]; then "$cluster" down >/dev/null 2>&1 || true; fi
  rm -rf "$work"
}
# cluster_up OPTION...: the test's cluster, with home/ as its users' folder. The test ends if this machine cannot have one.
cluster_up() {
  local status=0
  "$cluster" up --work "$work/home" "$@" || status=$?
  [[ $status == 0 ]] || exit "$status"
}
# fsdp_slurm_programs REPOSITORY BIN: copies to where nodes see them, since BIN may lie where other users than root cannot look.
fsdp_slurm_programs() {
  cp "$1"/slurm/*.sbatch "$1/slurm/job.sh" .
  mkdir bin lib
  cp "$2"/fsdp-{train,tokenize,consolidate,inspect,plan} bin
  cp -a "$2"/../lib/libfsdp.so* lib
}
# small_run: data and a configuration in home/, of a model whose updates take some milliseconds, on two ranks or one.
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
# submit NAME SCRIPT [VARIABLE=VALUE | OPTION]... [-- OPTION OF THE PROGRAM...]: a job of a script of slurm/, whose output is home/NAME.out.
# SECONDS is how long it believes to have run: one that has to stop in its first minute would not go back into the queue.
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
# submit_training NAME ... as above: with checkpoints in home/NAME, and metrics in home/NAME.jsonl.
submit_training() {
  local name=$1 words=()
  shift
  while (($# > 0)) && [[ $1 != -- ]]; do
    words+=("$1")
    shift
  done
  submit "$name" train.sbatch "${words[@]}" -- --save-dir "$name" --log-file "$name.jsonl" "${@:2}" >/dev/null
}
# Processes of fsdp-train's and what they could leave in shared memory, on the nodes named.
leftovers() {
  local node
  for node in "$@"; do
    at_head --on "$node" --as root bash -c 'pgrep -x fsdp-train; ls /dev/shm' | sed "s/^/$node: /"
  done
}
is_quiet() { [[ -z $(leftovers "$@") ]]; }
# What the metrics home/NAME.jsonl say: lines `update loss`, in the order of their training.
updates() { sed -nE 's/.*"loss":([^,}]*).*"step":([0-9]+).*"type":"train".*/\2 \1/p' "home/$1.jsonl" 2>/dev/null || true; }
last_update() { updates "$1" | tail -n 1 | cut -d ' ' -f 1; }
has_done() { (($(last_update "$1") + 0 >= $2)); }
has_started() { (($(grep -c '"type":"start"' "home/$1.jsonl" 2>/dev/null) + 0 >= $2)); }
is_over() { [[ -z $(at_head squeue --noheader --name="$1") ]]; }
fail() { # fail TEXT: counts, and shows what jobs have written
  echo "$1"
  for file in home/*.out; do
    if [[ -e $file ]]; then echo "  --- the end of $file" && tail -n 25 "$file" | sed 's/^/  | /'; fi
  done
  failures=$((failures + 1))
}
says() { grep -qE -- "$2" "home/$1.out" || fail "$1 does not say: $2"; } # says JOB PATTERN
at_head() { "$cluster" exec "$@"; }
step() { printf '%3d s  %s\n' "$SECONDS" "$1"; }
wait_for() { # wait_for SECONDS WHAT COMMAND...: the test ends if COMMAND never succeeds
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
