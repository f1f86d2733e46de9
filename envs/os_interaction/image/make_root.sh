#!/bin/sh
# Makes the image without docker: Debian by debootstrap, with packages.txt, as a tar.
#
#   make_root.sh FILE.tar [PACKAGE...]     needs root; the mirror is DEBIAN_MIRROR or that of apt
#
# The bubblewrap sandbox takes the file as it is; docker after `docker import FILE.tar NAME`.
set -eu

[ $# -gt 0 ] || { echo "usage: $0 FILE.tar [PACKAGE...]" >&2; exit 2; }
file=$1
shift
PATH=$PATH:/usr/sbin:/sbin
codename=bookworm
[ "$(id -u)" = 0 ] || { echo "$0: debootstrap needs root" >&2; exit 1; }
command -v debootstrap >/dev/null || {
    echo "$0: no debootstrap (Debian: apt-get install debootstrap)" >&2
    exit 1
}
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(SITE) $(COMPONENT)' 2>/dev/null |
    awk '$2 == "main" {print $1; exit}')}
names=$(cat "$(dirname "$0")/packages.txt")
packages=$(echo $names "$@" | tr ' ' ',')
root=$(mktemp -d)
trap 'rm -rf "$root" "$file.part"' EXIT
chmod 755 "$root"
debootstrap --variant=minbase --include="$packages" "$codename" "$root" "$mirror" >&2
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/doc \
    "$root"/usr/share/locale "$root"/etc/apt/sources.list "$root"/dev/* "$root"/var/log/*.log
tar --numeric-owner --sort=name -C "$root" -cf "$file.part" .
mv "$file.part" "$file"
