#!/usr/bin/env bash
# slim_library.sh REPOSITORY: tools/packaging/slim-library clears the code of other architectures, and nothing else. Exit status 77: there
# is no python3.
set -euo pipefail
slim=$1/tools/packaging/slim-library
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"
command -v python3 >/dev/null || { echo "skipped: no python3" && exit 77; }

# make FILE CODE_80 CODE_90: a library with a container of two codes, and with a mark that begins no container.
make() {
  python3 - "$@" <<'END'
import struct, sys
def entry(architecture, code):
    return struct.pack("<HHIQ", 2, 1, 64, len(code)) + bytes(12) + struct.pack("<I", architecture) + bytes(32) + code
entries = entry(80, sys.argv[2].encode()) + entry(90, sys.argv[3].encode())
mark = struct.pack("<I", 0xBA55ED50)
with open(sys.argv[1], "wb") as file:
    file.write(b"before" + mark + b"no container" + mark + struct.pack("<HHQ", 1, 16, len(entries)) + entries + b"after" + mark)
END
}
make "$work/whole" "code of A100" "code of H100"
"$slim" "$work/whole" "$work/slim" 90 >"$work/output" || fail "status $?"
cmp "$work/slim" <(sed 's/code of A100/\x0\x0\x0\x0\x0\x0\x0\x0\x0\x0\x0\x0/' "$work/whole") || fail "not only the code for the A100 is cleared"
! "$slim" "$work/whole" "$work/none" 100 2>"$work/output" || fail "no code for an architecture is no error"
grep -q 'has no machine code for architecture 100' "$work/output" || fail "the error does not name the architecture"
[[ ! -e $work/none ]] || fail "a library without code is written"
exit $((failures > 0))
