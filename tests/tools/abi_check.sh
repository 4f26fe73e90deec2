#!/usr/bin/env bash
# abi_check.sh BUILD INCLUDE COMPILER REPOSITORY: what tools/abi-check says of the installed headers and of changed copies of them, each with a
# library that defines some of their functions. INCLUDE is the folder of headers in a prefix. Exit status 77: abidiff, clang++ or jq is missing.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"
for program in abidiff clang++ jq; do
  if ! command -v "$program" >/dev/null; then
    echo "$program is not installed"
    exit 77
  fi
done
compiler=$3 repository=$4

cmake --install "$1" --prefix "$work/installed" >"$work/output"
mkdir "$work/old"
mv "$work/installed/$2" "$work/old/include"
cat >"$work/old/library.cpp" <<'END'
#include <fsdp/fsdp.hpp>

namespace fsdp {
struct Internal {
  int number;
};
int internal(const Internal& x) { return x.number; }
Job::Job(const JobOptions&) {}
Job::~Job() = default;
int Job::rank() const { return 0; }
int Job::size() const { return 1; }
void Job::barrier() { throw CollectiveError("", 0, true, 2); }
struct Identity : Layer {
  std::size_t inputs() const override { return 1; }
  std::size_t outputs() const override { return 1; }
  void forward(const ForwardPass&) const override {}
  void backward(const BackwardPass&) const override {}
};
LayerPtr gelu(std::size_t) { return std::make_shared<Identity>(); }
}  // namespace fsdp
END
library() { # library PREFIX [SONAME [OPTION]]
  mkdir -p "$1/lib"
  "$compiler" -std=c++20 "${3:--g}" -fPIC -shared -Wl,-soname,"${2:-libfsdp.so.0.1}" -I"$1/include" -I"$1/include/fsdp/internal" "$1/library.cpp" \
    -o "$1/lib/libfsdp.so"
}
check() { # check EXPECTED_STATUS NEW
  local status=0
  "$repository/tools/abi-check" "$work/old" "$2" >"$work/output" 2>&1 || status=$?
  [[ $status == "$1" ]] || fail "status $status instead of $1 with ${2##*/}"
}
# changed EXPECTED_STATUS FILE OLD NEW [SONAME]: compares with a copy in which FILE has the text NEW instead of OLD.
changed() {
  rm -rf "$work/new"
  cp -r "$work/old" "$work/new"
  local text
  text=$(<"$work/new/$2")
  [[ $text == *"$3"* ]] || fail "$2 has no: $3"
  printf '%s\n' "${text/"$3"/"$4"}" >"$work/new/$2"
  library "$work/new" "${5:-libfsdp.so.0.1}"
  check "$1" "$work/new"
}
headers=include/fsdp/internal

library "$work/old"
check 0 "$work/old"
says "has all that programs know"

# Changes that programs notice.
field=$'struct JobOptions {\n  double added = 0;'
changed 1 $headers/api/job.hpp 'struct JobOptions {' "$field"
says "type size changed"
says "both libraries are libfsdp.so.0.1"
changed 1 $headers/layers/layer.hpp '  virtual ~Layer() = default;' $'  virtual ~Layer() = default;\n  virtual int added() const { return 0; }'
says "the vtable offset"
changed 1 $headers/base/user_error.hpp '  bool damage;' $'  bool damage;\n  double added = 0;'
says "fsdp::CollectiveError"
changed 1 library.cpp 'int Job::size() const { return 1; }' ''
says "1 Removed function"

# The same with another minor version.
changed 0 $headers/api/job.hpp 'struct JobOptions {' "$field" libfsdp.so.0.2
says "type size changed"
says "so has the SONAME"

# Changes that they do not notice: an addition, and what is internal.
changed 0 library.cpp 'int Job::size()' $'void Job::agree(const std::function<void()>&) {}\nint Job::size()'
changed 0 library.cpp 'int number;' 'int number, added;'
changed 0 library.cpp 'int internal(const Internal& x) { return x.number; }' ''

# What cannot be compared.
library "$work/new" libfsdp.so.0.1 -g0
check 2 "$work/new"
says "has no debug information"
check 2 "$work/nothing"
says "has no libfsdp.so"
exit $((failures > 0))
