# shellcheck shell=bash
# For tests of folders that tools/packaging/bundle makes: a root of Debian 11, whose C library (2.31) is older than the one that the programs were
# linked with (2.36). A test sources this file and tests/tools/support.sh.

# make_root ROOT FOLDER PLACE: the root, which is made once, with FOLDER at PLACE. Ends the test with 77 if there can be no root here.
# shellcheck disable=SC2154
make_root() {
  root=$1 folder=$2 place=$3
  if [[ ! -e $root/complete ]]; then
    if [[ $(id -u) != 0 ]] || ! command -v debootstrap >/dev/null; then echo "skipped: no root of Debian 11 (debootstrap, as root, makes one)" && exit 77; fi
    rm -rf "$root"
    # Its packages are unpacked, and not configured, which would take longer.
    debootstrap --foreign --variant=minbase bullseye "$root" >"$work/output" 2>&1 || { echo "skipped: $(tail -n 1 "$work/output")" && exit 77; }
    ln -s mawk "$root/usr/bin/awk"
    [[ ! -L $root/proc ]] || { rm "$root/proc" && mkdir "$root/proc"; }
    echo 'root:x:0:0:root:/root:/bin/bash' >"$root/etc/passwd"
    touch "$root/complete"
  fi
  mkdir -p "$root/$place"
}
# in_root COMMAND: bash runs it there. Besides FOLDER, only the kernel's folders are mounted.
in_root() {
  # shellcheck disable=SC2016
  unshare --mount --pid --fork bash -c '
    mount --bind "$1" "$0/$2" && mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount --rbind /sys "$0/sys" || exit 77
    exec chroot "$0" env -i PATH=/usr/bin:/bin bash -c "$3"' "$root" "$folder" "$place" "$1"
}
