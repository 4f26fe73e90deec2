#!/usr/bin/env bash
# packages.sh BUILD CUDA: cpack makes the Debian package, to which lintian has no objection, and the self-contained archive, which is unpacked and
# moved in a root of Debian 11. CUDA is 1 if the build has libfsdp_cuda: its libraries are large, and so they are left out of the archive here.
# Exit status 77: there is no lintian, or there can be no such root.
set -euo pipefail
tools=$(dirname "$(realpath "$0")")/../tools
# shellcheck source-path=SCRIPTDIR source=../tools/support.sh
source "$tools/support.sh"
# shellcheck source-path=SCRIPTDIR source=../tools/debian11.sh
source "$tools/debian11.sh"
build=$1 cuda=$2
command -v lintian >/dev/null || { echo "skipped: lintian is not installed" && exit 77; }

(cd "$build" && cpack -G DEB -B "$work/deb") >"$work/output" 2>&1 || fail "cpack -G DEB"
lintian --allow-root --pedantic "$work"/deb/fsdp_*.deb >"$work/output" 2>&1 || fail "lintian"
[[ ! -s $work/output ]] || fail "lintian objects"
dpkg-deb --field "$work"/deb/fsdp_*.deb Depends >"$work/output"
for library in libopenmpi3 libhdf5-103 libdnnl libc6; do says "$library"; done
dpkg-deb --contents "$work"/deb/fsdp_*.deb >"$work/output"
for file in ./usr/bin/fsdp-train ./usr/share/man/man1/fsdp-plan.1.gz ./usr/share/fsdp/slurm/job.sh; do says "$file"; done
rm -r "$work/deb"

# The archive: in a folder with a space in its name, by a link, and after it was moved.
configuration=()
((cuda == 0)) || configuration=(-D CPACK_FSDP_WITHOUT_CUDA=ON)
(cd "$build" && cpack -G TZST "${configuration[@]}" -B "$work/tzst") >"$work/output" 2>&1 || fail "cpack -G TZST"
rm -rf "$work"/tzst/_CPack_Packages
mkdir "$work/place"
tar -C "$work/place" -I zstd -xf "$work"/tzst/fsdp-*-linux-*.tar.zst
mv "$work"/place/fsdp-* "$work/place/my fsdp"
"$tools/../../tools/packaging/bundle" --check "$work/place/my fsdp" 2>"$work/output" || fail "the archive is not complete"
readelf --notes "$work/place/my fsdp/lib/libc.so.6" >"$work/output"
grep -qE 'ABI: 3\.2\.0' "$work/output" || fail "the C library needs a newer kernel than docs/install.md says"
((failures == 0)) || exit 1

make_root "$build/debian11" "$work/place" /place
# shellcheck disable=SC2016
in_root '
  cd /tmp && rm -rf checkpoints && p="/place/my fsdp"
  ldd --version | head -n 1
  ln -sf "$p/bin/fsdp-train" fsdp-train && ./fsdp-train --version
  ln -sf "$p/bin/fsdp-train" other && ./other --version || echo "status $?"
  seq 9999 >text.txt
  for updates in 2 4; do
    "$p/openmpi/bin/mpirun" --allow-run-as-root --oversubscribe --bind-to none -np 2 "$p/bin/fsdp-train" text.txt --arch gpt2 --vocab-size 256 \
      --decoder-layers 1 --decoder-embed-dim 16 --decoder-attention-heads 2 --tokens-per-sample 8 --batch-size 1 --max-update $updates || exit
    [[ $p == /place/moved ]] || mv "$p" /place/moved; p=/place/moved
  done' >"$work/output" 2>&1 || fail "status $? in the root"
for text in "GLIBC 2.31" "fsdp-train 0." "a link to a program of /place/my fsdp must have the program's name" "status 126" "step 2/2" "restored step 2 from" "step 4/4"; do
  says "$text"
done
exit $((failures > 0))
