#!/usr/bin/env bash
# install.sh REPOSITORY: what tools/install does with stand-ins for dpkg-query, apt-get, sudo and id first in PATH. Nothing is installed.
set -euo pipefail
install=$1/tools/install
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"

mkdir "$work/bin"
stub() { # stub NAME BODY
  printf '#!/bin/bash\n%s\n' "$2" >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}
# run EXPECTED_STATUS ARGUMENTS...: only the stubs and the few programs that the script needs are in PATH.
run() {
  local expected=$1 status=0
  shift
  : >"$work/calls"
  PATH=$work/bin TMPDIR=$work /bin/bash "$install" "$@" >"$work/output" 2>&1 || status=$?
  [[ $status == "$expected" ]] || fail "status $status instead of $expected with: $*"
}
called() { [[ $(cat "$work/calls") == "$1" ]] || fail "calls are not: $1"; }

for program in cat chmod cmp cp dirname env fold grep mktemp mv paste rm sed tail tee; do ln -s "$(command -v "$program")" "$work/bin/$program"; done
# Installed is what $work/installed/ has a file for; apt-get install makes it, if $work/known exists; apt-get update makes that.
mkdir "$work/installed"
stub dpkg-query "[[ -e $work/installed/\${!#} ]] && echo -n installed"
stub apt-get "verb=
for word in \"\$@\"; do
  if [[ \$verb == install && \$word != -* ]]; then
    [[ -e $work/known ]] && : >\"$work/installed/\$word\"
  fi
  [[ \$word == install || \$word == update ]] && verb=\$word
done
echo \"apt-get \$verb\" >>$work/calls
if [[ \$verb == update ]]; then : >$work/known; fi
if [[ ! -e $work/known || -e $work/broken ]]; then echo 'E: no such package'; exit 100; fi"
stub id 'echo 0'

export CUDA_HOME=$work/cuda
unset CUDACXX
run 0 --help
says "libopenmpi-dev"
says "--check"
run 2 --unknown
says "unknown argument --unknown"

# Nothing there: the check only tells.
run 1 --check
says "Missing: g++ cmake"
called ""

# A new system, whose list of packages is empty: install fails, update, install.
run 0
called $'apt-get install\napt-get update\napt-get install'
says "Installed: g++ cmake"
# Again: nothing to do.
run 0
called ""
says "packages are installed"
run 0 --no-install

# One is missing and the list is there: one call, and only that package.
rm "$work/installed/shellcheck"
run 1 --no-install
[[ $(cat "$work/output") == "Missing: shellcheck" ]] || fail "more is missing than was taken away"
run 0
called "apt-get install"
says "Installed: shellcheck"

# Not root: with sudo, and it says so.
rm "$work/installed/shellcheck"
stub id 'echo 1000'
stub sudo "echo sudo >>$work/calls; exec \"\$@\""
run 0
says "with sudo: shellcheck"
called $'sudo\napt-get install'

# Neither: the command to give to an administrator.
rm "$work/installed/shellcheck" "$work/bin/sudo"
run 1
says "install --yes --no-install-recommends shellcheck"
called ""

# apt-get fails for good: its words, and the log stays.
stub id 'echo 0'
: >"$work/broken"
run 1
says "E: no such package"
says "$work/fsdp-install."

# CUDA: nothing is installed that apt-get does not know, and how to get it is said.
rm "$work/broken"
run 0
run 1 --cuda --check
says "Missing: cuda-toolkit-13-0 libnccl-dev"
called ""
stub apt-cache "[[ -e $work/repository ]]"
run 1 --cuda
says "does not know cuda-toolkit-13-0, and nothing was installed"
says "cuda-keyring"
called ""
: >"$work/repository"
run 0 --cuda
says "Installed: cuda-toolkit-13-0 libnccl-dev"
called "apt-get install"
run 0 --cuda
called ""
# One that is there is enough, if it is new enough, and NCCL beside it.
rm "$work"/installed/{cuda-toolkit-13-0,libnccl-dev} "$work/repository"
mkdir -p "$CUDA_HOME/bin" "$CUDA_HOME/include"
nvcc() { # nvcc VERSION
  printf '#!/bin/bash\necho "Cuda compilation tools, release %s, V%s"\n' "$1" "$1" >"$CUDA_HOME/bin/nvcc"
  chmod +x "$CUDA_HOME/bin/nvcc"
}
nvcc 11.8
run 1 --cuda --check
says "Missing: cuda-toolkit-13-0"
nvcc 12.4
if [[ ! -e /usr/include/nccl.h && ! -e /usr/local/include/nccl.h ]]; then
  run 1 --cuda --check
  says "Missing: libnccl-dev"
fi
: >"$CUDA_HOME/include/nccl.h"
run 0 --cuda
says "CUDA is there: $CUDA_HOME/bin/nvcc"
says "NCCL is there: $CUDA_HOME/include/nccl.h"
called ""
run 0

# Slurm: while its packages are installed, nothing may start a daemon; what said so before is back afterwards, also after a failure.
export FSDP_POLICY_RC_D=$work/policy-rc.d
run 1 --slurm --check
says "Missing: slurmctld slurmd"
called ""
cp "$work/bin/apt-get" "$work/apt-get"
stub apt-get "status=0; $work/policy-rc.d slurmd start || status=\$?
echo \"starting exits \$status\" >>$work/calls
exec $work/apt-get \"\$@\""
run 0 --slurm
called $'starting exits 101\napt-get install'
[[ -z $(compgen -G "$work/policy-rc.d*") ]] || fail "a policy is left"
printf '#!/bin/sh\nexit 104\n' >"$work/policy-rc.d"
chmod 700 "$work/policy-rc.d"
cp -p "$work/policy-rc.d" "$work/policy"
policy_is_back() {
  cmp -s "$work/policy" "$work/policy-rc.d" || fail "the policy is not back"
  [[ -x $work/policy-rc.d && -z $(compgen -G "$work/policy-rc.d?*") ]] || fail "the policy is back, but not as it was"
}
rm "$work/installed/slurmd"
run 0 --slurm
says "Installed: slurmd"
called $'starting exits 101\napt-get install'
policy_is_back
rm "$work/installed/slurmd"
: >"$work/broken"
run 1 --slurm
policy_is_back
rm "$work/broken"
# One that is killed leaves its policy, which the next one takes away.
cp -p "$work/bin/apt-get" "$work/apt-get.whole"
rm "$work/installed/slurmd"
stub apt-get "kill -KILL \$PPID"
run 137 --slurm
[[ -e $work/policy-rc.d.before-fsdp-install ]] || fail "was not killed where the test means it"
cp -p "$work/apt-get.whole" "$work/bin/apt-get"
run 0 --slurm
policy_is_back

# Every test's packages: Slurm's, those of single tests, and a Python of its own, which is made again if the list of its packages changes.
mkdir -p "$work/repository/tools" "$work/repository/tests/jobs"
cp "$install" "$work/repository/tools/"
install=$work/repository/tools/install
echo "numpy==1" >"$work/repository/tests/jobs/requirements.txt"
ln -s "$(command -v mkdir)" "$work/bin/mkdir"
stub python3 "mkdir -p \"\$3/bin\" && cp $work/bin/pip \"\$3/bin/pip\"; echo \"python3 \$1 \$2\" >>$work/calls"
stub pip "[[ ! -e $work/unreachable ]] && echo \"pip \$1\" >>$work/calls"
run 1 --tests --check
says "stockfish"
called ""
run 0 --tests --no-python
says "Installed:"
! grep -qF build/python "$work/output" || fail "makes a Python that nobody asked for"
run 0 --tests
says "into $work/repository/build/python"
[[ $(tail -n 2 "$work/calls") == $'python3 -m venv\npip install' ]] || fail "Python's packages are not installed"
run 0 --tests
called ""
run 0 --tests --check
echo "numpy==2" >"$work/repository/tests/jobs/requirements.txt"
run 1 --tests --check
says "Missing: $work/repository/build/python"
: >"$work/unreachable"
run 1 --tests
says "PyPI must be reachable"
run 1 --tests --check
rm "$work/unreachable"
run 0 --tests
called $'python3 -m venv\npip install'

# The matrix: what can be installed is installed, and the rest is unpacked once.
stub dpkg-deb "[[ ! -e $work/unreachable ]] || exit 1
mkdir -p \"\$3/usr/lib/llvm-19/lib\" && : >\"\$3/usr/lib/llvm-19/lib/libomp.so\"
echo \"dpkg-deb \$1 \$2\" >>$work/calls"
cp -p "$work/bin/apt-get" "$work/apt-get.whole"
stub apt-get "if [[ \$1 == download ]]; then echo \"apt-get \$*\" >>$work/calls; : >\$2.deb; exit; fi
exec $work/apt-get.whole \"\$@\""
run 1 --matrix --check
says "clang-19"
: >"$work/unreachable"
run 1 --matrix
says "could not be unpacked"
run 1 --matrix --check
says "Missing: $work/repository/build/libomp-19, with libomp-19-dev"
rm "$work/unreachable"
run 0 --matrix
called $'apt-get download libomp-19-dev libomp5-19\ndpkg-deb --extract libomp-19-dev.deb'
run 0 --matrix --check
called ""

# CUDA for aarch64: nvcc of this machine and libraries of the other, in the folders of NVIDIA's packages. It is unpacked once, or not at all.
for program in ln realpath; do ln -s "$(command -v "$program")" "$work/bin/$program"; done
stub python3 "[[ \$2 == pip ]] || exit 1
[[ \$3 == install ]] || exit 0
[[ ! -e $work/unreachable ]] || exit 1
cuda=nvidia/cu13 nccl=nvidia/nccl
for word in \"\$@\"; do if [[ \$word == */*.part/* ]]; then cd / && mkdir -p \"\$word\" && cd \"\$word\"; fi; done
mkdir -p \$cuda/{bin,include,lib,nvvm} \$nccl/{include,lib} nvidia_{cublas-1,nccl_cu13-1}.dist-info/licenses
: >nvidia_cublas-1.dist-info/licenses/License.txt >nvidia_nccl_cu13-1.dist-info/licenses/License.txt
: >\$nccl/include/nccl.h >\$nccl/lib/libnccl.so.2
if [[ \$* == *_aarch64* ]]; then : >\$cuda/include/cuda.h >\$cuda/lib/libcudart.so.13; else : >\$cuda/bin/nvcc >\$cuda/include/fatbinary_section.h; fi"
: >"$work/unreachable"
run 1 --sbsa-cuda "$work/sbsa"
[[ ! -e $work/sbsa ]] || fail "a folder is left that is not complete"
rm "$work/unreachable"
run 0 --sbsa-cuda "$work/sbsa"
for file in bin/nvcc targets/sbsa-linux/{include/{cuda,fatbinary_section,nccl}.h,lib/{libcudart.so.13,libnccl.so,libnccl.so.2.license}}; do
  [[ -e $work/sbsa/$file ]] || fail "$file is missing in $(cd "$work/sbsa" && find .)"
done
run 0 --sbsa-cuda "$work/sbsa"
says "is there."
stub python3 'exit 1'
run 1 --sbsa-cuda "$work/other"
says "apt-get install python3-pip"

# Another system.
rm "$work/bin/dpkg-query"
run 1
says "no Debian system"

exit $((failures > 0))
