#!/usr/bin/env bash
# pkg_config.sh BUILD LIB COMPILER FLAGS VERSION REPOSITORY MPIRUN...: installs BUILD, moves the prefix, builds a program of docs/tutorial with what
# pkg-config prints, and runs it on 2 ranks. LIB is the folder of libraries in a prefix. Exit status 77: there is no pkg-config.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../tools/support.sh
source "$(dirname "$(realpath "$0")")/../tools/support.sh"
if ! command -v pkg-config >/dev/null; then
  echo "pkg-config is not installed"
  exit 77
fi
build=$1 lib=$2 compiler=$3 version=$5 repository=$6
read -ra flags <<<"$4"
shift 6
cmake --install "$build" --prefix "$work/first" >"$work/output"
mv "$work/first" "$work/moved"
export PKG_CONFIG_PATH=$work/moved/$lib/pkgconfig
unset LD_LIBRARY_PATH

[[ $(pkg-config --modversion fsdp) == "$version" ]] || fail "pkg-config has another version"
read -ra options <<<"$(pkg-config --cflags --libs fsdp)"
macros=$("$compiler" "${options[@]}" -E -x c++ - <<<$'#include <fsdp/fsdp.hpp>\nFSDP_VERSION_MAJOR.FSDP_VERSION_MINOR' | tail -n 1)
[[ ${macros// /} == "${version%.*}" ]] || fail "<fsdp/fsdp.hpp> has version $macros, but this is $version"
"$compiler" "${flags[@]}" -Wall -Wextra -Werror "$repository/docs/tutorial/fsdp_basics.cpp" "${options[@]}" -o "$work/fsdp_basics"
library=$(ldd "$work/fsdp_basics" | sed -nE 's/^\s*libfsdp\.so\S* => (.*) \(0x.*/\1/p')
[[ $(realpath "$library") == "$(realpath "$work/moved/$lib")"/* ]] || fail "the program uses the library '$library'"
"$@" -np 2 "$work/fsdp_basics" >"$work/output" 2>&1 || fail "the program failed"
says "step 200  loss"
says "held out  loss"
read -ra options <<<"$(pkg-config --cflags --libs fsdp-testing)"
"$compiler" "${flags[@]}" -x c++ - -x none "${options[@]}" -o "$work/checks" <<'END'
#include <fsdp/check_gradients.hpp>
#include <fsdp/fsdp.hpp>
int main() { return fsdp::check_gradients(*fsdp::linear(3, 2)).passed ? 0 : 1; }
END
"$work/checks" || fail "the program that uses fsdp-testing failed"
exit $((failures > 0))
